"""Puts a model's files on a node, once: what an init container runs before the pod's engine starts.

    python -m diptych.serving.stage Qwen/Qwen3-8B --revision main --into /models/Qwen--Qwen3-8B/main
    python -m diptych.serving.stage s3://bucket/folder --into /models/s3--bucket--folder
    python -m diptych.serving.stage Qwen/Qwen3-8B --check

The folder lies on the node and outlives the pod. Pods on one node take turns by a lock beside it; a marker in it names
all files and their sizes, so that the next pod sees at once that all are there. What was fetched before an interruption
is not fetched again. `--check` only asks whether the files may be read, by reading one of them.
"""

import argparse
import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

MARKER = ".diptych-complete"
ATTEMPTS = 6
FIRST_PAUSE_S = 5.0
_SAY_EVERY_S = 15.0
_LOOK_EVERY_S = 1.0
_ROOM_TO_SPARE = 2**30

# Beside safetensors, the same weights in other formats, which the engine does not load.
_OTHER_WEIGHTS = ("*.bin", "*.pt", "*.pth", "*.gguf", "*.onnx", "*.h5", "*.msgpack", "*.ot", "original/*")
_NO_RIGHTS = ("AccessDenied", "NoSuchBucket", "Unable to locate credentials", "(403)")
_NEVER = ("*.md", ".gitattributes", "*.png", "*.jpg", "*.pdf")

Fetch = Callable[[str, str | None, Path], dict[str, Any]]


class StagingError(Exception):
    """The model can't be fetched, and trying again would not help; the message says what to do."""


def stage(source: str, revision: str | None, folder: Path, *, pause_s: float = FIRST_PAUSE_S) -> bool:
    """Have the model's files in `folder`, complete; True if they had to be fetched.

    Args:
        source: a Hugging Face id, or `s3://bucket/folder`.
        revision: a commit, branch or tag on the hub; its main branch without.
        pause_s: seconds before the second attempt; each further one waits twice as long.

    Raises:
        StagingError: there is no such model, no right to it, or no room for it; or it failed `ATTEMPTS` times.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder):
        if is_complete(folder, source, revision):
            _say(f"{source} is in {folder} already")
            return False
        (folder / MARKER).unlink(missing_ok=True)
        fetch = _from_bucket if source.startswith("s3://") else _from_hub
        started = time.monotonic()
        found = _with_patience(fetch, source, revision, folder, pause_s)
        files = _files(folder)
        if "config.json" not in files:
            raise StagingError(f"{source} has no config.json: name the folder of a whole checkpoint")
        os.sync()  # the marker must not reach the disk before the files do
        marker = {"source": source, "revision": revision, **found, "files": files}
        (folder / MARKER).write_text(json.dumps(marker, indent=1))
        _say(f"{source} is in {folder}: {_rate(sum(files.values()), time.monotonic() - started)}")
    return True


def check(source: str, revision: str | None) -> None:
    """Read the model's config.json, by the same way and with the same rights as staging would.

    Raises:
        StagingError: there is no such model, or no right to it; or it could not be asked for `ATTEMPTS` times.
    """
    with tempfile.TemporaryDirectory() as folder:
        look = _look_into_bucket if source.startswith("s3://") else _look_into_hub
        _with_patience(look, source, revision, Path(folder), FIRST_PAUSE_S)
    _say(f"{source} can be read")


def is_complete(folder: Path, source: str, revision: str | None) -> bool:
    """Whether `folder` holds all files of this model, as its marker lists them."""
    try:
        marker = json.loads((folder / MARKER).read_text())
        wanted = (marker["source"], marker["revision"], marker["files"])
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return wanted == (source, revision, _files(folder))


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the node's lock on `folder`; it ends with the process, however that ends."""
    with folder.with_name(folder.name + ".lock").open("w") as lock:
        said = 0.0
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() - said > _SAY_EVERY_S or not said:
                    said = time.monotonic()
                    _say("another pod on this node is fetching the model: waiting for it")
                time.sleep(_LOOK_EVERY_S)
        yield


def _with_patience(
    fetch: Fetch, source: str, revision: str | None, folder: Path, pause_s: float
) -> dict[str, Any]:
    attempt = 1
    while True:
        try:
            with _progress(folder):
                return fetch(source, revision, folder)
        except StagingError:
            raise
        except Exception as error:  # whatever a network does: the last one is told
            if attempt == ATTEMPTS:
                raise StagingError(
                    f"{source} could not be fetched in {ATTEMPTS} attempts: {error}"
                ) from error
            _say(f"attempt {attempt} of {ATTEMPTS} failed, again in {pause_s:.0f} s: {error}")
        time.sleep(pause_s)
        attempt, pause_s = attempt + 1, pause_s * 2


def _from_hub(source: str, revision: str | None, folder: Path) -> dict[str, Any]:
    """Fetch the snapshot of one commit, so that a branch that moves meanwhile does no harm."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    from huggingface_hub import HfApi, snapshot_download

    with _hub_refusals(source, revision):
        info = HfApi().model_info(source, revision=revision, files_metadata=True)
    sizes = {file.rfilename: file.size or 0 for file in info.siblings or []}
    ignored = _ignored({*sizes})
    wanted = {name: size for name, size in sizes.items() if not _matches(name, ignored)}
    for name, size in wanted.items():  # the hub's client would take one that was cut short for whole
        if (folder / name).is_file() and (folder / name).stat().st_size != size:
            (folder / name).unlink()
    _check_room(folder, sum(wanted.values()))
    snapshot_download(source, revision=info.sha, local_dir=folder, ignore_patterns=ignored)
    return {"commit": info.sha}


def _look_into_hub(source: str, revision: str | None, folder: Path) -> dict[str, Any]:
    """Fetch one file: what a gated model is like may be told to everybody, and its files to nobody."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    from huggingface_hub import HfApi, hf_hub_download

    with _hub_refusals(source, revision):
        info = HfApi().model_info(source, revision=revision)
        hf_hub_download(source, "config.json", revision=info.sha, local_dir=folder)
    return {}


@contextlib.contextmanager
def _hub_refusals(source: str, revision: str | None) -> Iterator[None]:
    """Refusals of the hub in our words."""
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        yield
    except GatedRepoError as error:
        raise StagingError(
            f"{source} is gated: accept its terms on its page and set model.token_*"
        ) from error
    except RevisionNotFoundError as error:
        raise StagingError(f"{source} has no revision {revision}: correct model.revision") from error
    except EntryNotFoundError as error:
        raise StagingError(f"{source} has no config.json: name the folder of a whole checkpoint") from error
    except RepositoryNotFoundError as error:
        do = "correct model.source, or set model.token_* if it is private"
        raise StagingError(f"the hub has no model {source} for us: {do}") from error


def _ignored(names: set[str]) -> list[str]:
    """Patterns of the files in a repository with these names that the engine does without."""
    ignored = [*_NEVER]
    if any(name.endswith(".safetensors") for name in names):
        ignored += _OTHER_WEIGHTS
    if any(name.startswith("model") and name.endswith(".safetensors") for name in names):
        ignored.append("consolidated*")
    return ignored


def _from_bucket(source: str, _: str | None, folder: Path) -> dict[str, Any]:
    """Fetch with AWS's own command, which the image has; files that are there already are left out."""
    _aws(source, "sync", source.rstrip("/") + "/", str(folder), "--no-progress", "--only-show-errors")
    return {}


def _look_into_bucket(source: str, _: str | None, folder: Path) -> dict[str, Any]:
    """List the folder and fetch one file: each takes a right of its own."""
    base = source.rstrip("/")
    _aws(source, "ls", f"{base}/")
    _aws(source, "cp", f"{base}/config.json", str(folder), "--only-show-errors")
    return {}


def _aws(source: str, *arguments: str) -> None:
    try:
        done = subprocess.run(
            ["aws", "s3", *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        raise StagingError(
            "the image has no `aws` command: add awscli to image.packages, or set staging.enabled: false"
        ) from None
    if not done.returncode:
        return
    said = done.stderr.strip()[-500:]
    if any(word in said for word in _NO_RIGHTS):
        raise StagingError(f"{source} can't be read with the rights of this pod: {said}")
    if arguments[0] != "sync" and (
        not said or "404" in said
    ):  # `aws s3 ls` says nothing of what is not there
        raise StagingError(f"{source} has no config.json: name the folder of a whole checkpoint")
    raise RuntimeError(said or f"aws ended with {done.returncode}")


def _check_room(folder: Path, size: int) -> None:
    there = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    missing = size - there + _ROOM_TO_SPARE
    free = shutil.disk_usage(folder).free
    if missing > free:
        raise StagingError(
            f"the node's disk has {free / 1e9:.1f} GB free and {missing / 1e9:.1f} GB are needed: "
            "raise nodes.volume_size, or set staging.path to a larger disk"
        )


def _files(folder: Path) -> dict[str, int]:
    """The model's files by relative name, with their sizes; what we and the hub's client note down left out."""
    found = (path for path in sorted(folder.rglob("*")) if path.is_file())
    names = ((path.relative_to(folder), path.stat().st_size) for path in found)
    return {str(name): size for name, size in names if name.parts[0] not in (MARKER, ".cache")}


def _matches(name: str, patterns: list[str]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)


@contextlib.contextmanager
def _progress(folder: Path) -> Iterator[None]:
    """Say every few seconds how much has come and how fast, so that slow and stuck can be told apart."""
    done = threading.Event()

    def watch() -> None:
        before = _bytes_under(folder)
        while not done.wait(_SAY_EVERY_S):
            now = _bytes_under(folder)
            _say(f"{now / 1e9:.2f} GB are here, {(now - before) / 1e6 / _SAY_EVERY_S:.0f} MB/s")
            before = now

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _bytes_under(folder: Path) -> int:
    total = 0
    for directory, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # files move while they come
                total += (Path(directory) / name).stat().st_blocks * 512
    return total


def _rate(size: int, seconds: float) -> str:
    return f"{size / 1e9:.2f} GB in {seconds:.0f} s, {size / 1e6 / max(seconds, 0.001):.0f} MB/s"


def _say(text: str) -> None:
    print(f"stage: {text}", flush=True)


def main(arguments: list[str] | None = None) -> int:
    """The command; 0 when the model is there, or can be read."""
    parser = argparse.ArgumentParser(prog="diptych.serving.stage", description=__doc__)
    parser.add_argument("source")
    parser.add_argument("--revision")
    task = parser.add_mutually_exclusive_group(required=True)
    task.add_argument("--into", type=Path)
    task.add_argument("--check", action="store_true")
    asked = parser.parse_args(arguments)
    try:
        if asked.check:
            check(asked.source, asked.revision)
        else:
            stage(asked.source, asked.revision, asked.into)
    except (StagingError, OSError) as error:
        print(f"stage: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
