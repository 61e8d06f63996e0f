"""A model is found where it is, and what is missing or out of reach is said at once."""

import importlib
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from diptych.errors import ModelError
from diptych.models import hub
from diptych.models.hub import missing_parts, resolve_model

REPO, COMMIT = "owner/tiny", "0123456789abcdef0123456789abcdef01234567"
FILES = {"config.json": b"{}", "tokenizer.json": b"{}", "model.safetensors": b"weights", "README.md": b"no"}


def write_model(directory: Path, without: str = "") -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        if name != without:
            (directory / name).write_text("{}")
    return directory


def refusal(source: str, revision: str | None = None) -> ModelError:
    with pytest.raises(ModelError) as caught:
        resolve_model(source, revision)
    return caught.value


class TestADirectory:
    def test_a_whole_checkpoint_is_returned_as_it_is(self, tmp_path: Path) -> None:
        assert resolve_model(str(write_model(tmp_path / "model"))) == tmp_path / "model"

    @pytest.mark.parametrize(
        ("without", "named"),
        [("config.json", "config.json"), ("tokenizer.json", "a tokenizer"), ("model.safetensors", "weights")],
    )
    def test_the_missing_part_is_named(self, tmp_path: Path, without: str, named: str) -> None:
        assert named in refusal(str(write_model(tmp_path / "model", without))).message

    def test_a_missing_shard_is_named(self, tmp_path: Path) -> None:
        model = write_model(tmp_path, without="model.safetensors")
        shards = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
        (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
        (model / shards["a"]).write_text("weights")
        assert missing_parts(model) == [shards["b"]]

    def test_a_git_lfs_pointer_is_no_weights(self, tmp_path: Path) -> None:
        model = write_model(tmp_path / "model")
        (model / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
        assert "git lfs pull" in refusal(str(model)).message

    def test_a_path_that_is_not_there_and_one_that_is_a_file_are_told_apart(self, tmp_path: Path) -> None:
        (tmp_path / "model.gguf").write_text("")
        assert "no directory" in refusal(str(tmp_path / "absent")).message
        assert "is a file" in refusal(str(tmp_path / "model.gguf")).message

    def test_neither_path_nor_id(self) -> None:
        assert "neither" in refusal("s3://bucket/model").message


def test_the_embedded_model_is_meant_by_its_word_and_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "prepare_embedded", lambda cache_dir, progress: cache_dir / "made")
    for source in ("embedded", "smollm2-135m-instruct"):
        assert resolve_model(source, cache_dir=tmp_path) == tmp_path / "made"


class Hub(BaseHTTPRequestHandler):
    """As much of the Hugging Face hub as fetching a model takes; `refusals` answers a path with an error."""

    refusals: dict[str, tuple[int, str]] = {}  # noqa: RUF012 - set anew by each test
    tokens: set[str | None] = set()  # noqa: RUF012 - the same

    def do_HEAD(self) -> None:
        self.answer(head=True)

    def do_GET(self) -> None:
        self.answer(head=False)

    def answer(self, head: bool) -> None:
        path = self.path.split("?")[0]
        self.tokens.add(self.headers.get("Authorization"))
        code, error = next((self.refusals[part] for part in self.refusals if part in path), (200, ""))
        body, headers = b"", {"X-Error-Code": error} if error else {}
        if code == 200 and path.startswith(f"/{REPO}/resolve/"):
            body = FILES[path.rsplit("/", 1)[1]]
            headers = {"ETag": f'"{path[-9:]}"', "X-Repo-Commit": COMMIT}
        elif code == 200 and "/tree/" in path:
            body = json.dumps(
                [
                    {"type": "file", "path": name, "size": len(text), "oid": name}
                    for name, text in FILES.items()
                ]
            ).encode()
        elif code == 200 and path.startswith(f"/api/models/{REPO}"):
            files = [{"rfilename": name, "size": len(text)} for name, text in FILES.items()]
            body = json.dumps({"id": REPO, "sha": COMMIT, "siblings": files, "tags": []}).encode()
        self.send_response(code)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if not head:
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Be silent."""


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """huggingface_hub with an empty cache, no token and a closed port for a hub."""
    module = pytest.importorskip("huggingface_hub", reason="the engine packages are absent (huggingface_hub)")
    importlib.import_module("huggingface_hub.constants")
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setattr(module.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(module.constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setattr(module.constants, "HF_HUB_OFFLINE", False)
    point_at(module, "http://127.0.0.1:9", monkeypatch)
    return module


def point_at(module: Any, endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    template = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(module.constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(module.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)


@pytest.fixture
def served(client: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hub]]:
    """A hub on a loopback port that has one tiny model."""
    monkeypatch.setattr(Hub, "refusals", {})
    monkeypatch.setattr(Hub, "tokens", set())
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    point_at(client, f"http://127.0.0.1:{server.server_address[1]}", monkeypatch)
    yield Hub
    server.shutdown()
    server.server_close()


class TestTheHub:
    def test_out_of_reach_is_said_within_seconds_and_names_the_embedded_model(self, client: Any) -> None:
        started = time.monotonic()
        error = refusal(REPO)
        assert time.monotonic() - started < 8
        assert "can't be reached" in error.message
        assert "--model embedded" in error.hint

    def test_a_hub_that_accepts_and_never_answers_is_out_of_reach(
        self, client: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import socket

        monkeypatch.setattr(hub, "REACH_SECONDS", 0.3)
        with socket.create_server(("127.0.0.1", 0)) as silent:
            point_at(client, f"http://127.0.0.1:{silent.getsockname()[1]}", monkeypatch)
            assert "can't be reached" in refusal(REPO).message

    def test_a_model_is_fetched_without_what_the_engine_does_not_load_and_then_found_offline(
        self, client: Any, served: type[Hub], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        told: list[str] = []
        model = resolve_model(REPO, None, told.append)
        assert sorted(file.name for file in model.iterdir()) == [
            "config.json",
            "model.safetensors",
            "tokenizer.json",
        ]
        assert told == [f"fetching {REPO}: 0 MB in 3 files"]
        monkeypatch.setattr(client.constants, "HF_HUB_OFFLINE", True)
        assert resolve_model(REPO) == model

    def test_a_token_that_is_given_is_the_one_that_is_shown(self, client: Any, served: type[Hub]) -> None:
        resolve_model(REPO, token="hf_mine")
        assert "Bearer hf_mine" in served.tokens
        assert served.tokens <= {"Bearer hf_mine", None}  # the probe shows none

    def test_an_incomplete_cache_is_not_taken_for_the_model(
        self, client: Any, served: type[Hub], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (resolve_model(REPO) / "model.safetensors").unlink()
        monkeypatch.setattr(client.constants, "HF_HUB_OFFLINE", True)
        assert "HF_HUB_OFFLINE" in refusal(REPO).message

    @pytest.mark.parametrize(
        ("answer", "message", "hint"),
        [
            ((401, "RepoNotFound"), "no model owner/tiny", "HF_TOKEN"),
            ((404, "RepoNotFound"), "no model owner/tiny", "spelling"),
            ((403, "GatedRepo"), "gated", "set HF_TOKEN"),
            ((404, "RevisionNotFound"), "no revision 'v9'", "branches"),
            ((401, ""), "refuses owner/tiny", "HF_TOKEN"),
            ((403, ""), "HTTP 403", "HF_TOKEN"),
            ((500, ""), "HTTP 500", "later"),
        ],
    )
    def test_each_refusal_says_what_to_do(
        self, served: type[Hub], answer: tuple[int, str], message: str, hint: str
    ) -> None:
        served.refusals["/api/models/"] = answer
        error = refusal(REPO, "v9")
        assert message in error.message
        assert hint in error.hint

    def test_a_gated_file_is_told_as_gated(self, served: type[Hub]) -> None:
        served.refusals["/resolve/"] = (403, "GatedRepo")
        assert "gated" in refusal(REPO).message

    def test_no_token_is_ever_shown(self, served: type[Hub], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HF_TOKEN", "hf_secretsecretsecret")
        served.refusals["/api/models/"] = (401, "")
        error = refusal(REPO)
        assert "secret" not in error.message + error.hint + repr(error)

    def test_a_repository_without_weights_is_refused_by_what_it_lacks(
        self, served: type[Hub], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delitem(FILES, "model.safetensors")
        assert "weights" in refusal(REPO).message

    def test_a_model_larger_than_the_disk_is_refused_before_it_is_fetched(
        self, served: type[Hub], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        usage = hub.shutil.disk_usage("/")._replace(free=3)
        monkeypatch.setattr(hub.shutil, "disk_usage", lambda _: usage)
        assert "HF_HOME" in refusal(REPO).hint
