"""What is up on this machine, asked of the processes and the endpoint rather than remembered."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diptych.endpoint import Endpoint
from diptych.endpoint.metrics import fetch_status
from diptych.errors import NotUpError
from diptych.local.paths import ServicePaths
from diptych.local.plan import Plan
from diptych.local.processes import ServiceProcess, is_alive, marked
from diptych.local.state import ServiceState, known_names, load

_PHASES = {"split": ("prefill", "decode"), "aggregated": ("aggregated",)}


@dataclass(frozen=True)
class PhaseStatus:
    """One phase. Memory in bytes, resident, of its replicas and engines; `pid` is the first replica's engine."""

    phase: str
    replicas: int
    ready: int
    pid: int | None
    memory_bytes: int
    requests: int | None
    problems: tuple[str, ...]
    replica_details: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True)
class Status:
    """One service.

    `blocker` is the first thing that keeps it from being ready, in words; `fallback` what carries the KV cache instead
    of what was asked for, where that is allowed.
    """

    state: ServiceState
    api_key_file: str | None
    ready: bool
    blocker: str | None
    phases: dict[str, PhaseStatus] = field(default_factory=dict)
    memory_bytes: int = 0
    processes: int = 0
    fallback: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The stable shape that `docs/json.md` describes."""
        return {
            "name": self.state.name,
            "place": "local",
            "topology": self.state.topology,
            "endpoint": self.state.url,
            "api_key_file": self.api_key_file,
            "model": self.state.model,
            "model_source": self.state.model_source,
            "document": self.state.document,
            "ready": self.ready,
            "blocker": self.blocker,
            "fallback": self.fallback,
            "started_at": self.state.started_at,
            "memory_bytes": self.memory_bytes,
            "processes": self.processes,
            "phases": {name: _phase_json(phase, self.state.model) for name, phase in self.phases.items()},
        }


def _phase_json(phase: PhaseStatus, model: str) -> dict[str, Any]:
    return {
        "replicas": phase.replicas,
        "ready": phase.ready,
        "pid": phase.pid,
        "model": model,
        "memory_bytes": phase.memory_bytes,
        "requests": phase.requests,
        "problems": list(phase.problems),
        "replica_details": list(phase.replica_details),
    }


def endpoint_of(name: str, *, admin: bool = False) -> Endpoint:
    """The endpoint of a service that is up.

    Args:
        admin: with the admin key of Diptych's own commands, else with the clients' key.

    Raises:
        NotUpError: there is none of that name here.
    """
    paths = ServicePaths.of(name)
    state = load(paths)
    if state is None:
        raise NotUpError(f"No service called {name!r} is up on this machine.", "`diptych up` starts one.")
    return Endpoint(state.url, paths.admin_key if admin else _api_key_file(paths), state.model)


def _api_key_file(paths: ServicePaths) -> Path:
    try:
        return Path(Plan.load(paths.plan).api_key_file)
    except (OSError, ValueError):
        return paths.api_key


def look(name: str) -> Status | None:
    """Look at one service; None when nothing of that name is here."""
    paths = ServicePaths.of(name)
    state = load(paths)
    if state is None:
        return None
    mark = state.mark
    processes = marked(mark)
    endpoint = Endpoint(state.url, paths.admin_key, state.model)
    answer = (fetch_status(endpoint) or {}) if processes else {}
    told, readiness = answer.get("phases", {}), answer.get("readiness") or {}
    phases = {phase: _phase(phase, told.get(phase, []), processes) for phase in _PHASES[state.topology]}
    blocker = _blocker(state, phases, bool(told), is_alive(state.keeper_pid, mark))
    if blocker is None and readiness.get("state") == "contradicted":
        blocker = f"{readiness.get('why')} `diptych verify` shows the evidence."
    return Status(
        state=state,
        api_key_file=str(_api_key_file(paths)),
        ready=blocker is None,
        blocker=blocker,
        phases=phases,
        memory_bytes=sum(process.rss_bytes for process in processes),
        processes=len(processes),
        fallback=(readiness.get("transport") or {}).get("fallback") or state.fallback,
    )


def look_at_all() -> list[Status]:
    """Every service that left a state on this machine."""
    return [status for name in known_names() if (status := look(name)) is not None]


def _phase(phase: str, told: list[dict[str, Any]], processes: list[ServiceProcess]) -> PhaseStatus:
    own = [process for process in processes if process.phase == phase]
    replicas = [process for process in own if process.role == "replica"]
    engines = [process for process in own if process.role == "engine"]
    stopped = {process.pid for process in own if process.is_stopped}
    alive = {process.pid for process in engines} - stopped
    ready = [
        one for one in told if one["ready"] and (one["engine_pid"] is None or one["engine_pid"] in alive)
    ]
    problems = [one["problem"] for one in told if one.get("problem")]
    problems += [f"engine process {pid} is stopped" for pid in sorted(stopped)]
    return PhaseStatus(
        phase=phase,
        replicas=max(len(replicas), len(told)),
        ready=len(ready),
        pid=engines[0].pid if engines else None,
        memory_bytes=sum(process.rss_bytes for process in own),
        requests=round(sum(one["counters"]["requests_finished"] for one in told)) if told else None,
        problems=tuple(dict.fromkeys(problems)),
        replica_details=tuple(told),
    )


def _blocker(state: ServiceState, phases: dict[str, PhaseStatus], answers: bool, kept: bool) -> str | None:
    if state.failure:
        return state.failure
    if not kept:
        return "The keeper of this service is gone: run `diptych down`, then `diptych up`."
    if state.ready_at is None:
        return "It is still coming up."
    for phase in phases.values():
        if phase.problems:
            return f"{phase.phase}: {phase.problems[0]}; Ray Serve replaces the replica."
        if not phase.pid:
            return f"{phase.phase}: no engine process; Ray Serve is starting one."
    if not answers:
        return f"The endpoint {state.url} does not answer yet; Ray Serve is starting a replica."
    for phase in phases.values():
        if not phase.ready:
            return f"{phase.phase}: no replica is ready; Ray Serve is starting one."
    return None
