"""Deploys the application to a running Ray and proves a KV transfer; a process of its own that ends afterwards.

Importing Ray Serve LLM costs a process about ten seconds and 700 MB, so this is neither the keeper, which stays,
nor the command line, which must answer at once. Run as `python -m diptych.local.deploy PLAN`; reads Ray's address
from standard input, writes events to the plan's event log, exits 0 when the service is ready.
"""

import importlib
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from diptych.engine_log import last_exception
from diptych.errors import DiptychError, StartError
from diptych.local.events import EventLog
from diptych.local.logs import last_words, phase_log_files
from diptych.local.plan import Plan
from diptych.local.proof import prove

TOLD = 3  # the exit code of a failure that the event log tells
_POLL_S = 0.25
_STAGE_OF_PREFIX = {"Prefill": "prefill engine", "Decode": "decode engine", "Aggregated": "engine"}
_MILESTONES = (
    ("Started initializing replica", "importing vLLM"),
    ("Initializing a V1 LLM engine", "starting"),
    ("Starting to load model", "loading weights"),
    ("KV cache size", "KV cache allocated"),
    ("Initializing NIXL wrapper", "joining NIXL"),
    ("init engine", "warming up"),
    ("Proving a KV transfer", "proving a KV transfer"),
)


def main() -> int:
    """Deploy the plan named on the command line."""
    plan = Plan.load(Path(sys.argv[1]))
    events = EventLog(Path(plan.events))
    try:
        deploy(plan, events)
    except DiptychError as error:
        events.append("failed", text=error.message, hint=error.hint)
        return TOLD
    return 0


def deploy(plan: Plan, events: EventLog) -> None:
    """Bring the application up and prove it.

    Raises:
        StartError: an engine or Ray failed; the message carries its own last words.
    """
    application = plan.serve_config["applications"][0]
    module, _, builder = application["import_path"].partition(":")
    build = getattr(importlib.import_module(module), builder)
    import ray
    from ray import serve

    address = sys.stdin.readline().strip()
    if not address:
        raise StartError("Ray was gone before the application could be deployed.")
    ray.init(address=address, namespace="serve", log_to_driver=False, configure_logging=False)
    serve.start(proxy_location="HeadOnly", http_options={"host": plan.host, "port": plan.port})
    run = _Run(lambda: serve.run(build(application["args"]), name=application["name"], route_prefix="/"))
    _wait_until_running(plan, events, run, serve)
    prove(plan, events)


class _Run(threading.Thread):
    """`serve.run` beside us: it blocks until the application runs, and we have stages to tell."""

    def __init__(self, call: Any) -> None:
        super().__init__(daemon=True)
        self._call = call
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._call()
        except BaseException as error:
            self.error = error


def _wait_until_running(plan: Plan, events: EventLog, run: _Run, serve: Any) -> None:
    told: dict[str, str] = {}
    milestones = _Milestones(Path(plan.ray_logs))
    deadline = time.monotonic() + plan.start_deadline_s
    while run.is_alive() or run.error:
        application = serve.status().applications.get(plan.application)
        for name, deployment in (application.deployments if application else {}).items():
            _tell(plan, events, told, milestones, name, deployment)
        if run.error:
            raise _failure(plan, f"{type(run.error).__name__}: {run.error}")
        if time.monotonic() > deadline:
            waiting = ", ".join(stage for stage, text in told.items() if text != "done") or "Ray Serve"
            raise _failure(plan, f"the {waiting} was not up after {plan.start_deadline_s:.0f} s")
        time.sleep(_POLL_S)
    for stage in plan.engine_stages:
        if told.get(stage) != "done":
            events.append("done", stage)


def _tell(
    plan: Plan, events: EventLog, told: dict[str, str], milestones: "_Milestones", name: str, deployment: Any
) -> None:
    prefix = name.partition(":")[0]
    stage = _STAGE_OF_PREFIX[prefix]
    if deployment.status.value == "HEALTHY":
        now = "done"
    elif "failed to start" in deployment.message or "Retrying" in deployment.message:
        raise _failure(plan, deployment.message.strip(), prefix.lower())
    else:
        now = milestones.of(prefix.lower())
    if told.get(stage) != now:
        events.append("done" if now == "done" else "detail", stage, "" if now == "done" else now)
        told[stage] = now


class _Milestones:
    """How far each phase's engine has come, read off what its logs have gained since the last look."""

    def __init__(self, ray_logs: Path) -> None:
        self._ray_logs = ray_logs
        self._reached: dict[str, int] = {}
        self._read: dict[Path, int] = {}

    def of(self, phase: str) -> str:
        """The last milestone of a phase, in words."""
        reached = self._reached.get(phase, -1)
        for path in phase_log_files(self._ray_logs, phase):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                text = file.read().decode(errors="replace")
                self._read[path] = file.tell()
            reached = max([reached, *(i for i, (words, _) in enumerate(_MILESTONES) if words in text)])
        self._reached[phase] = reached
        return _MILESTONES[reached][1] if reached >= 0 else "waiting for a process"


def _failure(plan: Plan, what: str, phase: str | None = None) -> StartError:
    for candidate in [phase] if phase else plan.phases:
        words = last_words(phase_log_files(Path(plan.ray_logs), candidate or ""))
        if words:
            return StartError(
                f"The {candidate} engine did not start. Its own last words: {words}",
                f"`diptych logs {candidate}` shows the rest.",
            )
    what = last_exception(what.splitlines()) or what  # a replica's own start is told with its whole traceback
    return StartError(f"The application did not start: {what}", f"See the logs under {plan.ray_logs}.")


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # leaving Ray in order takes seconds in which `up` would wait for nothing
