"""A model comes to a node once, whoever asks for it and whatever interrupts it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from diptych.serving.stage import ATTEMPTS, MARKER
from fakes.model_hub import COMMIT, REPO, Hub, serving

FILES = {
    "config.json": b"{}",
    "tokenizer.json": b"{}",
    "model-00001-of-00002.safetensors": b"weights " * 5000,
    "model-00002-of-00002.safetensors": b"more weights "
    * 2_000_000,  # several of the client's chunks of 10 MB
    "sub/extra.json": b"{}",
    "pytorch_model.bin": b"the same weights",
    "consolidated.safetensors": b"the same weights",
    "README.md": b"about",
}
WANTED = {*FILES} - {"pytorch_model.bin", "consolidated.safetensors", "README.md"}


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serving(Hub(FILES)) as running:
        yield running


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "node" / "owner--tiny" / "main"


def command(folder: Path, source: str = REPO, *more: str) -> list[str]:
    # Its pauses are for networks, not for tests.
    code = (
        "import sys, diptych.serving.stage as s; s.stage.__kwdefaults__['pause_s'] = 0.01; sys.exit(s.main())"
    )
    return [sys.executable, "-c", code, source, *more, "--into", str(folder)]


def environment(hub: Hub | None, tmp: Path, **more: str) -> dict[str, str]:
    address = {"HF_ENDPOINT": hub.address} if hub else {}
    own = {"HF_HOME": str(tmp / "home"), "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    return kept | own | address | more


def stage(
    folder: Path, hub: Hub | None, *more: str, source: str = REPO, **variables: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(folder, source, *more),
        env=environment(hub, folder.parents[1], **variables),
        capture_output=True,
        text=True,
        timeout=120,
    )


def staged(folder: Path) -> set[str]:
    found = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {str(name) for name in found if name.parts[0] not in (MARKER, ".cache")}


def test_the_engines_files_are_fetched_and_the_same_weights_in_other_formats_are_not(
    hub: Hub, folder: Path
) -> None:
    done = stage(folder, hub)
    assert done.returncode == 0, done.stderr
    assert staged(folder) == WANTED
    assert (folder / "model-00001-of-00002.safetensors").read_bytes() == FILES[
        "model-00001-of-00002.safetensors"
    ]
    assert json.loads((folder / MARKER).read_text())["commit"] == COMMIT


def test_the_second_pod_finds_all_there_and_asks_nobody(hub: Hub, folder: Path) -> None:
    stage(folder, hub)
    hub.fetched.clear()
    unreachable = Hub({}, address="http://127.0.0.1:9")
    done = stage(folder, unreachable)
    assert (done.returncode, hub.fetched) == (0, [])
    assert "already" in done.stdout


def test_two_pods_on_one_node_fetch_it_once(hub: Hub, folder: Path) -> None:
    both = [
        subprocess.Popen(command(folder), env=environment(hub, folder.parents[1]), stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    assert [each.wait(120) for each in both] == [0, 0]
    assert sorted(hub.fetched) == sorted(WANTED)
    for each in both:
        assert each.stdout is not None
        each.stdout.close()


def test_a_pod_that_is_killed_leaves_no_lock_and_no_marker(hub: Hub, folder: Path) -> None:
    folder.mkdir(parents=True)
    hold = "import fcntl, sys, time; f = open(sys.argv[1], 'w'); fcntl.flock(f, 2); print(flush=True); time.sleep(60)"
    holder = subprocess.Popen(
        [sys.executable, "-c", hold, f"{folder}.lock"], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    waiting = subprocess.Popen(
        command(folder), env=environment(hub, folder.parents[1]), stdout=subprocess.PIPE, text=True
    )
    assert waiting.stdout is not None
    assert "waiting" in waiting.stdout.readline()
    assert not hub.fetched
    holder.send_signal(signal.SIGKILL)
    assert waiting.wait(60) == 0
    assert staged(folder) == WANTED
    for process in (holder, waiting):
        process.wait(5)
        assert process.stdout is not None
        process.stdout.close()


def test_a_line_that_breaks_is_taken_up_where_it_broke(hub: Hub, folder: Path) -> None:
    hub.break_off = 1
    assert stage(folder, hub).returncode == 0
    assert hub.ranges
    assert not hub.ranges[0].startswith("bytes=0-")
    assert all((folder / name).read_bytes() == FILES[name] for name in WANTED)


def test_a_busy_hub_is_asked_again_and_not_for_ever(hub: Hub, folder: Path) -> None:
    hub.busy = 2
    assert stage(folder, hub).returncode == 0
    hub.busy = 10_000
    done = stage(folder.with_name("other"), hub)
    assert done.returncode == 1
    assert f"{ATTEMPTS} attempts" in done.stderr


def test_a_file_that_was_cut_short_is_noticed_and_fetched_again(hub: Hub, folder: Path) -> None:
    stage(folder, hub)
    (folder / "config.json").write_bytes(b"")
    assert stage(folder, hub).returncode == 0
    assert (folder / "config.json").read_bytes() == FILES["config.json"]


@pytest.mark.parametrize(
    ("gated", "said"),
    [(True, "accept its terms"), (False, "no model owner/tiny for us")],
    ids=["gated", "private"],
)
def test_what_patience_does_not_help_against_is_said_at_once(
    hub: Hub, folder: Path, gated: bool, said: str
) -> None:
    hub.token, hub.gated = "hf_right", gated
    done = stage(folder, hub)
    assert done.returncode == 1
    assert said in done.stderr
    assert "attempt" not in done.stdout
    assert stage(folder, hub, HF_TOKEN="hf_right").returncode == 0


def test_a_revision_that_is_not_there_is_named(hub: Hub, folder: Path) -> None:
    done = stage(folder, hub, "--revision", "v9")
    assert done.returncode == 1
    assert "no revision v9" in done.stderr


class TestABucket:
    @pytest.fixture
    def bin_folder(self, tmp_path: Path) -> Path:
        """An `aws` that knows one bucket, `s3 sync`, and the options that we use, and refuses everything else."""
        bucket = tmp_path / "bucket" / "models" / "tiny"
        bucket.mkdir(parents=True)
        (bucket / "config.json").write_text("{}")
        (bucket / "model.safetensors").write_text("weights")
        (bucket / "name with spaces.json").write_text("{}")
        fake = tmp_path / "bin" / "aws"
        fake.parent.mkdir()
        fake.write_text(
            "#!/bin/bash\n"
            '[ "$1 $2" = "s3 sync" ] && [ "$5 $6" = "--no-progress --only-show-errors" ] && [ $# = 6 ] ||'
            ' { echo "Unknown options: $*" >&2; exit 252; }\n'
            f'from="{tmp_path}/${{3#s3://}}"\n'
            '[ -d "$from" ] || { echo "fatal error: An error occurred (NoSuchBucket)" >&2; exit 1; }\n'
            f'[ ! -e {tmp_path}/broken ] || {{ rm {tmp_path}/broken; echo "Could not connect" >&2; exit 1; }}\n'
            'cp -ru "$from/." "$4"\n'
        )
        fake.chmod(0o755)
        return fake.parent

    def run(self, bin_folder: Path, folder: Path, source: str) -> subprocess.CompletedProcess[str]:
        return stage(folder, None, source=source, PATH=f"{bin_folder}:/usr/bin:/bin")

    def test_is_fetched_with_awss_own_command(self, bin_folder: Path, folder: Path) -> None:
        done = self.run(bin_folder, folder, "s3://bucket/models/tiny")
        assert done.returncode == 0, done.stderr
        assert staged(folder) == {"config.json", "model.safetensors", "name with spaces.json"}
        assert "already" in self.run(bin_folder, folder, "s3://bucket/models/tiny").stdout

    def test_that_answers_at_the_second_attempt_will_do(self, bin_folder: Path, folder: Path) -> None:
        (bin_folder.parent / "broken").touch()
        done = self.run(bin_folder, folder, "s3://bucket/models/tiny")
        assert done.returncode == 0
        assert "Could not connect" in done.stdout

    def test_that_is_not_there_is_named(self, bin_folder: Path, folder: Path) -> None:
        done = self.run(bin_folder, folder, "s3://other/model")
        assert done.returncode == 1
        assert "s3://other/model can't be read" in done.stderr
        assert "attempt" not in done.stdout

    def test_without_a_checkpoint_is_refused(self, bin_folder: Path, folder: Path) -> None:
        done = self.run(bin_folder, folder, "s3://bucket/models")
        assert done.returncode == 1
        assert "no config.json" in done.stderr

    def test_needs_the_command_in_the_image(self, tmp_path: Path, folder: Path) -> None:
        done = self.run(tmp_path, folder, "s3://bucket/models/tiny")
        assert done.returncode == 1
        assert "awscli" in done.stderr
