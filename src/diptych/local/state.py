"""What is remembered of a service between commands: names and numbers, never whether it works.

Whether it works is asked of the processes and the endpoint each time.
"""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import BaseModel, ValidationError

from diptych.errors import StartError
from diptych.local.paths import ServicePaths, state_root, write_private


class ServiceState(BaseModel):
    """One service on this machine. Times are Unix seconds; `ready_at` is None until a KV transfer was proven."""

    name: str
    run_id: str
    topology: str
    model: str
    model_source: str
    url: str
    document: str | None
    keeper_pid: int
    started_at: float
    ready_at: float | None = None
    failure: str | None = None


def save(paths: ServicePaths, state: ServiceState) -> None:
    """Write the state, whole or not at all."""
    write_private(paths.state, state.model_dump_json(indent=2) + "\n")


def load(paths: ServicePaths) -> ServiceState | None:
    """The state of a service, or None when there is none that can be read."""
    try:
        return ServiceState.model_validate_json(paths.state.read_text())
    except (OSError, ValidationError):
        return None


def known_names() -> list[str]:
    """The names of the services that left a state on this machine."""
    root = state_root()
    return sorted(path.parent.name for path in root.glob("*/state.json")) if root.is_dir() else []


@contextmanager
def exclusive(paths: ServicePaths) -> Iterator[None]:
    """Hold the service's lock: one `up` or `down` of a name at a time.

    Raises:
        StartError: another command holds it.
    """
    with _open_lock(paths.lock) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StartError(
                f"Another diptych command is working on the service {paths.directory.name!r}.",
                "Wait for it, or press Ctrl-C there.",
            ) from None
        yield


@contextmanager
def _open_lock(path: Path) -> Iterator[int]:
    with path.open("a") as file:
        yield file.fileno()
