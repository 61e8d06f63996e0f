"""Where Diptych remembers things between commands, and files that only their owner may read."""

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import platformdirs

from diptych.errors import DiptychError, SetupError

STATE_DIR_ENV = "DIPTYCH_STATE_DIR"


def state_root() -> Path:
    """The directory that holds one directory per service."""
    chosen = os.environ.get(STATE_DIR_ENV)
    return Path(chosen).expanduser().absolute() if chosen else platformdirs.user_state_path("diptych")


@contextmanager
def exclusive(folder: Path, busy: DiptychError) -> Iterator[None]:
    """Hold a folder's lock: one `up` or `down` of what it stands for at a time, on this machine.

    Raises:
        busy: another command holds it.
    """
    # The folder itself, which can be locked on a full or read-only disk too.
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise busy from None
        yield
    finally:
        os.close(descriptor)


def write_private(path: Path, text: str, hint: str = "") -> None:
    """Write a file that only its owner may read (0600), whole or not at all.

    Args:
        hint: what to do where it can't be written, of a file that is not in the state directory.

    Raises:
        SetupError: the disk is full or read-only.
    """
    fresh: Path | None = None
    try:
        descriptor, name = tempfile.mkstemp(
            dir=path.parent, prefix=f".{path.name}."
        )  # 0600, a name of its own
        fresh = Path(name)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        fresh.replace(path)
    except OSError as error:
        raise SetupError(
            f"{path} cannot be written: {error.strerror or error}.",
            hint or f"Free space there, or point {STATE_DIR_ENV} at a directory you can write to.",
        ) from None
    finally:
        if fresh is not None:
            fresh.unlink(missing_ok=True)  # it is not there any more where all went well
