"""What is remembered of a service between commands: names and numbers, never whether it works.

Whether it works is asked of the processes and the endpoint each time.
"""

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import BaseModel, ValidationError

from diptych import remembering
from diptych.errors import StartError
from diptych.local.paths import ServicePaths
from diptych.local.processes import Mark
from diptych.remembering import state_root, write_private


class ServiceState(BaseModel):
    """One service on this machine.

    Times are Unix seconds; `ready_at` is None until a KV transfer was proven. `fallback` is what `verify
    --allow-fallback` put up with, in a sentence.
    """

    name: str
    run_id: str
    ray_directory: str
    topology: str
    model: str
    model_source: str
    url: str
    document: str | None
    keeper_pid: int
    started_at: float
    ready_at: float | None = None
    failure: str | None = None
    fallback: str | None = None

    @property
    def mark(self) -> Mark:
        """How the processes of this run are told from all others."""
        return Mark(self.run_id, Path(self.ray_directory))

    @property
    def ray_logs(self) -> Path:
        """Where Ray and the engines write."""
        return Path(self.ray_directory) / "session_latest" / "logs"


def save(paths: ServicePaths, state: ServiceState) -> None:
    """Write the state, whole or not at all."""
    write_private(paths.state, state.model_dump_json(indent=2) + "\n")


def load(paths: ServicePaths) -> ServiceState | None:
    """The state of a service, or None when there is none that can be read."""
    try:
        return ServiceState.model_validate_json(paths.state.read_text())
    except (OSError, ValidationError):
        return None


def remember_fallback(name: str, says: str | None) -> None:
    """Have every status say what transport was put up with; None: it is the one that was asked for.

    While `up` or `down` is at work nothing is remembered: the service is another one then.
    """
    paths = ServicePaths.of(name)
    with contextlib.suppress(StartError), exclusive(paths):
        state = load(paths)
        if state is not None and state.fallback != says:
            save(paths, state.model_copy(update={"fallback": says}))


def known_names() -> list[str]:
    """The names of the services that left a state on this machine."""
    root = state_root()
    return sorted(path.parent.name for path in root.glob("*/state.json")) if root.is_dir() else []


def ports_of_others(name: str) -> set[int]:
    """The endpoint ports that other services on this machine have or are about to listen on."""
    others = (load(ServicePaths.of(other)) for other in known_names() if other != name)
    return {urlsplit(state.url).port or 0 for state in others if state is not None}


@contextmanager
def exclusive(paths: ServicePaths) -> Iterator[None]:
    """Hold the service's lock: one `up` or `down` of a name at a time.

    Raises:
        StartError: another command holds it.
    """
    busy = StartError(
        f"Another diptych command is working on the service {paths.directory.name!r}.",
        "Wait for it, or press Ctrl-C there.",
    )
    with remembering.exclusive(paths.directory, busy):
        yield
