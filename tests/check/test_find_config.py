"""The model's config: from its folder, the hub's cache, the hub, or among those that ship; never for long."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from diptych.check import ModelFacts
from diptych.check import find_config as module
from diptych.check.find_config import find_model
from diptych.spec import Document

CONFIG = {"architectures": ["LlamaForCausalLM"], "hidden_size": 8}
COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_the_right_one"


class Hub(BaseHTTPRequestHandler):
    """The hub's own answers: a public model, a gated one, one that is not there, and one that never answers."""

    def do_GET(self) -> None:
        asked.append((self.path, self.headers.get("authorization", "")))
        status, body = 200, json.dumps(CONFIG)
        if self.path.startswith("/gated/"):
            status = 200 if self.headers.get("authorization") == f"Bearer {TOKEN}" else 401
        elif self.path.startswith("/owner/none/"):
            status = 404
        elif self.path.startswith("/owner/odd/"):
            body = "[]"
        elif self.path.startswith("/owner/slow/"):
            time.sleep(1)
        self.send_response(status)
        self.send_header("x-repo-commit", COMMIT)
        self.end_headers()
        with suppress(BrokenPipeError):
            self.wfile.write(body.encode())

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


asked: list[tuple[str, str]] = []


@pytest.fixture
def hub() -> Iterator[str]:
    asked.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.daemon_threads, server.block_on_close = True, False
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def find(source: str, endpoint: str = "", offline: bool = False, **more: Any) -> ModelFacts:
    environ = {"HF_ENDPOINT": endpoint} | more.pop("environ", {})
    document = Document.model_validate({"model": {"source": source, **more}})
    return find_model(document, offline=offline, environ=environ)


def test_the_embedded_model_needs_no_network() -> None:
    found = find("embedded", "http://127.0.0.1:1")
    assert found.config is not None
    assert found.config["architectures"] == ["LlamaForCausalLM"]


def test_a_folder_holds_its_own_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "model.safetensors").write_bytes(b"12345678")
    found = find(str(tmp_path))
    assert found.config == CONFIG
    assert found.checkpoint_bytes == 8


@pytest.mark.parametrize("content", [None, "no JSON", "[]"])
def test_a_folder_without_a_config_holds_no_model(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    found = find(str(tmp_path))
    assert found.config is None
    assert "config.json" in found.missing


def test_a_folder_on_a_cluster_may_be_there_and_not_here(tmp_path: Path) -> None:
    document = Document.model_validate({"on": "eks", "model": str(tmp_path / "none")})
    found = find_model(document, offline=True, environ={})
    assert (found.config, found.missing) == (None, "")
    assert "none" in found.why


def test_the_hub_is_asked_for_what_is_not_on_this_disk(hub: str) -> None:
    found = find("owner/tiny", hub)
    assert (found.config, found.commit) == (CONFIG, COMMIT)
    assert found.found == f"on {hub}"
    assert asked == [("/owner/tiny/resolve/main/config.json", "")]


def test_the_revision_is_the_documents(hub: str) -> None:
    find("owner/tiny", hub, revision="v2")
    assert asked[0][0] == "/owner/tiny/resolve/v2/config.json"


def test_the_cache_is_looked_into_before_the_hub_is_asked(hub: str, tmp_path: Path) -> None:
    cached = tmp_path / "hub-cache" / "models--owner--tiny"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text(COMMIT)
    (cached / "snapshots" / COMMIT).mkdir(parents=True)
    (cached / "snapshots" / COMMIT / "config.json").write_text(json.dumps({**CONFIG, "hidden_size": 16}))
    found = find("owner/tiny", hub)
    assert found.config is not None
    assert (found.config["hidden_size"], found.commit) == (16, COMMIT)
    assert asked == []


@pytest.mark.parametrize(
    ("more", "environ"),
    [
        ({"token_env": "MINE"}, {"MINE": TOKEN}),
        ({}, {"HF_TOKEN": TOKEN}),
        ({"token_file": "FILE"}, {}),
        ({}, {"HF_HOME": "HOME"}),
    ],
)
def test_a_token_is_taken_from_where_the_document_or_the_hubs_own_tools_have_it(
    hub: str, tmp_path: Path, more: dict[str, str], environ: dict[str, str]
) -> None:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    more = {name: str(tmp_path / "token") if value == "FILE" else value for name, value in more.items()}
    environ = {name: str(tmp_path) if value == "HOME" else value for name, value in environ.items()}
    assert find("gated/model", hub, environ=environ, **more).config == CONFIG


def test_a_gated_model_is_not_said_to_be_missing(hub: str) -> None:
    found = find("gated/model", hub)
    assert (found.config, found.missing) == (None, "")
    assert "HTTP 401" in found.why
    assert "private, gated" in found.why
    wrong = find("gated/model", hub, environ={"HF_TOKEN": "hf_wrong"})
    assert "not accepted" in wrong.why
    assert "hf_wrong" not in wrong.why


def test_a_config_that_ships_does_not_hide_that_the_hub_refuses_the_model(
    hub: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diptych.check.find_config.shipped_config", lambda _: CONFIG)
    found = find("gated/model", hub)
    assert (found.config, found.why) == (CONFIG, "")
    assert "HTTP 401" in found.refused
    assert find("gated/model", hub, environ={"HF_TOKEN": TOKEN}).refused == ""


def test_a_model_that_the_hub_does_not_have_is_missing(hub: str) -> None:
    assert "owner/none at v9" in find("owner/none", hub, revision="v9").missing


def test_an_answer_that_is_no_config_is_none(hub: str) -> None:
    assert "no JSON object" in find("owner/odd", hub).why


def test_nobody_waits_long_for_the_hub(hub: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert module.PATIENCE_S == 5
    monkeypatch.setattr(module, "PATIENCE_S", 0.3)
    began = time.monotonic()
    found = find("owner/slow", hub)
    assert time.monotonic() - began < 0.9
    assert found.config is None
    assert "did not answer" in found.why or "can't be reached" in found.why


def test_a_hub_that_is_not_there_is_told(tmp_path: Path) -> None:
    assert "can't be reached" in find("owner/tiny", "http://127.0.0.1:1").why


@pytest.mark.parametrize(("offline", "environ"), [(True, {}), (False, {"HF_HUB_OFFLINE": "1"})])
def test_offline_means_that_nobody_is_asked(hub: str, offline: bool, environ: dict[str, str]) -> None:
    found = find("owner/tiny", hub, offline=offline, environ=environ)
    assert found.config is None
    assert asked == []
    assert found.why


def test_what_ships_is_taken_where_the_hub_can_not_be_asked() -> None:
    for found in (find("Qwen/Qwen3-8B", offline=True), find("qwen/qwen3-8b", "http://127.0.0.1:1")):
        assert found.config is not None
        assert found.config["num_hidden_layers"] == 36


def test_a_bucket_is_not_looked_into() -> None:
    assert "S3" in find("s3://bucket/model").why
