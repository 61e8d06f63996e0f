"""The engines' and Ray's logs by phase, and an engine's own last words."""

from collections.abc import Iterable
from pathlib import Path

from diptych.engine_log import last_exception

PHASES = {"prefill": "Prefill", "decode": "Decode", "aggregated": "Aggregated"}


def phase_log_files(ray_logs: Path, phase: str) -> list[Path]:
    """The files in which a phase's replicas and engines write, oldest first."""
    marker = f":actor_name:ServeReplica:diptych:{PHASES[phase]}:"
    workers = [
        path
        for path in ray_logs.glob("worker-*.*")
        if path.suffix in (".out", ".err") and _starts_with(path, marker)
    ]
    replicas = list((ray_logs / "serve").glob(f"replica_*_{PHASES[phase]}_*.log"))
    return sorted(workers + replicas, key=_changed_at)


def other_log_files(ray_logs: Path) -> list[Path]:
    """Ray's own logs that matter when Ray fails: the store, the node, the controller and the proxy."""
    names = ("gcs_server.*", "raylet.*", "serve/controller_*.log", "serve/proxy_*.log")
    return sorted(path for name in names for path in ray_logs.glob(name))


def last_words(files: Iterable[Path]) -> str | None:
    """The exception that a dying engine wrote, with the words "see above" resolved: the cause, not its echo."""
    return last_exception(line for path in files for line in _tail(path, 400_000))


def _starts_with(path: Path, marker: str) -> bool:
    try:
        with path.open(errors="replace") as file:
            return any(line.startswith(marker) for line, _ in zip(file, range(4), strict=False))
    except OSError:
        return False


def _tail(path: Path, size: int) -> list[str]:
    try:
        with path.open("rb") as file:
            file.seek(max(path.stat().st_size - size, 0))
            return file.read().decode(errors="replace").splitlines()
    except OSError:
        return []


def _changed_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
