"""Whether a model may be read is found out by reading one of its files, with the rights that staging would have."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fakes.model_hub import COMMIT, REPO, Hub, serving

FILES = {"config.json": b"{}", "model.safetensors": b"weights " * 5000}
BUCKET = "s3://weights/tiny"


def check(source: str, *more: str, **variables: str) -> subprocess.CompletedProcess[str]:
    # Its pauses are for networks, not for tests.
    code = "import sys, diptych.serving.stage as s; s.FIRST_PAUSE_S = 0.01; sys.exit(s.main())"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    return subprocess.run(
        [sys.executable, "-c", code, source, "--check", *more],
        env=kept | {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"} | variables,
        capture_output=True,
        text=True,
        timeout=120,
    )


def check_hub(hub: Hub, folder: Path, *more: str, **variables: str) -> subprocess.CompletedProcess[str]:
    with serving(hub) as running:
        return check(REPO, *more, HF_ENDPOINT=running.address, HF_HOME=str(folder / "home"), **variables)


def test_one_file_is_read_and_no_weights(tmp_path: Path) -> None:
    hub = Hub(FILES, token="hf_right")
    done = check_hub(hub, tmp_path, "--revision", COMMIT, HF_TOKEN="hf_right")
    assert done.returncode == 0 and f"stage: {REPO} can be read" in done.stdout, done.stderr
    assert hub.fetched == ["config.json"]


@pytest.mark.report("G2")
@pytest.mark.parametrize(
    ("hub", "words"),
    [
        (Hub(FILES, token="hf_right", gated=True), "is gated: accept its terms"),
        (Hub(FILES, token="hf_right"), "set model.token_* if it is private"),
        (Hub({"model.safetensors": b""}), "has no config.json"),
    ],
    ids=["gated", "private", "no checkpoint"],
)
def test_why_it_may_not_be_read_is_said_at_once(hub: Hub, words: str, tmp_path: Path) -> None:
    done = check_hub(hub, tmp_path, HF_TOKEN="hf_wrong")
    assert done.returncode == 1 and words in done.stderr
    assert "attempt" not in done.stdout and "hf_wrong" not in done.stdout + done.stderr


@pytest.mark.report("G1")
def test_a_hub_that_is_busy_is_asked_again(tmp_path: Path) -> None:
    assert check_hub(Hub(FILES, busy=2), tmp_path).returncode == 0


def fake_aws(tmp_path: Path, *allowed: str) -> str:
    """A PATH with an `aws` that knows one bucket and lets `allowed` commands of `aws s3` through."""
    folder = tmp_path / "bin"
    folder.mkdir()
    script = folder / "aws"
    script.write_text(
        f"#!{sys.executable}\n"
        "import pathlib, sys\n"
        "service, command, source, *rest = sys.argv[1:]\n"
        "assert service == 's3' and command in ('ls', 'cp')\n"
        f"if command not in {allowed!r}:\n"
        "    sys.exit('An error occurred (AccessDenied) when calling the operation: Access Denied')\n"
        f"if not source.startswith({BUCKET!r} + '/'):\n"
        "    sys.exit('fatal error: (404) when calling the HeadObject operation' if command == 'cp' else 1)\n"
        "if command == 'cp':\n"
        "    (pathlib.Path(rest[0]) / 'config.json').write_text('{}')\n"
    )
    script.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def test_a_bucket_is_listed_and_read(tmp_path: Path) -> None:
    done = check(BUCKET, PATH=fake_aws(tmp_path, "ls", "cp"))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("allowed", [("ls",), ("cp",)], ids=["may not read", "may not list"])
def test_a_bucket_takes_both_rights(tmp_path: Path, allowed: tuple[str, ...]) -> None:
    done = check(BUCKET, PATH=fake_aws(tmp_path, *allowed))
    assert done.returncode == 1 and "can't be read with the rights of this pod" in done.stderr


def test_a_folder_that_is_not_in_the_bucket_is_told(tmp_path: Path) -> None:
    done = check("s3://weights/other", PATH=fake_aws(tmp_path, "ls", "cp"))
    assert done.returncode == 1 and "has no config.json" in done.stderr


def test_it_is_either_checked_or_staged(tmp_path: Path) -> None:
    done = check(REPO, "--into", str(tmp_path))
    assert done.returncode == 2 and "not allowed with" in done.stderr
