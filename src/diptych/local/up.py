"""Bring a service up: plan, spawn the keeper, follow its events until the service is ready."""

import contextlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path

from diptych.errors import StartError
from diptych.local.down import clear_leftovers
from diptych.local.environment import require_engines, service_environment
from diptych.local.events import Event, EventLog
from diptych.local.paths import ServicePaths
from diptych.local.plan import Plan
from diptych.local.planning import Model, make_plan
from diptych.local.processes import Mark, end_all, is_alive, marked
from diptych.local.state import ServiceState, exclusive, load, save
from diptych.models.embedded import EMBEDDED
from diptych.models.hub import resolve_model
from diptych.spec import Document

_CLEAN_UP_S = 30.0
_SPACE_NEEDED = 256 * 2**20


@dataclass(frozen=True)
class Service:
    """A service that is up: what it is called, where it answers and with which key file."""

    state: ServiceState
    paths: ServicePaths
    already: bool


class View:
    """Told what happens while a service comes up; the command line draws it."""

    def stage(self, event: Event) -> None:
        """A stage started, moved on or is done."""

    def say(self, text: str) -> None:
        """Something was decided that the user would not expect."""

    def tick(self) -> None:
        """Time has passed."""

    def ending(self) -> None:
        """It will not come up, or was interrupted: what runs is being ended."""


def bring_up(
    document: Document, document_path: Path | None, view: View, *, hold: bool = False
) -> Generator[Service, None, None]:
    """Bring the service up and yield it when it is ready; with `hold`, it lives until the generator is closed.

    Whatever ends the generator before that (an error, Ctrl-C, `close()`) leaves nothing running.

    Raises:
        DiptychError: it did not come up; the message says why.
    """
    paths = ServicePaths.of(document.name)
    paths.create()
    with exclusive(paths):
        running = _already_up(paths, document)
        if running is None:
            require_engines()
            _require_space(paths)
            clear_leftovers(paths)
            plan, state = _prepare(document, document_path, paths, view)
            keeper = _spawn_keeper(plan, paths)
            with _torn_down_on_failure(keeper, plan, paths, view):
                save(paths, state.model_copy(update={"keeper_pid": keeper.pid}))
                _follow(keeper, plan, paths, view)
    if running is not None:
        yield Service(running, paths, already=True)
        return
    service = Service(load(paths) or state, paths, already=False)
    if not hold:
        _let_go(keeper)
        yield service
        return
    with _torn_down_on_failure(keeper, plan, paths, view):
        yield service
        _wait_while_it_lives(keeper, plan, view)
    _tear_down(keeper, plan, paths)


@contextlib.contextmanager
def _torn_down_on_failure(
    keeper: "subprocess.Popen[str]", plan: Plan, paths: ServicePaths, view: View
) -> Iterator[None]:
    try:
        yield
    except BaseException:
        view.ending()
        _tear_down(keeper, plan, paths)
        raise


def _already_up(paths: ServicePaths, document: Document) -> ServiceState | None:
    state = load(paths)
    if state is None or not is_alive(state.keeper_pid, Mark(state.run_id, paths.ray)):
        return None
    if state.ready_at is None:
        raise StartError(
            f"The service {document.name!r} is still coming up or going down.", "`diptych status` shows it."
        )
    return state


def _prepare(
    document: Document, document_path: Path | None, paths: ServicePaths, view: View
) -> tuple[Plan, ServiceState]:
    model = find_model(document, view)
    plan = make_plan(document, model, paths, view.say)
    plan.save(paths.plan)
    paths.events.unlink(missing_ok=True)
    state = ServiceState(
        name=document.name,
        run_id=plan.run_id,
        topology=document.topology,
        model=plan.model,
        model_source=model.source,
        url=plan.url,
        document=str(document_path.absolute()) if document_path else None,
        keeper_pid=0,
        started_at=time.time(),
    )
    return plan, state


def find_model(document: Document, view: View) -> Model:
    """The document's model on this disk: the embedded one made ready once, a path checked, a hub's model fetched."""
    view.stage(Event("start", "model", at=time.time()))

    def progress(text: str) -> None:
        view.stage(Event("detail", "model", text, at=time.time()))

    directory = resolve_model(document.model.source, document.model.revision, progress)
    embedded = document.model.source in ("embedded", EMBEDDED.name)
    source = EMBEDDED.hub_id if embedded else document.model.source
    view.stage(Event("done", "model", at=time.time()))
    return Model(Path(directory), source, embedded)


def _spawn_keeper(plan: Plan, paths: ServicePaths) -> "subprocess.Popen[str]":
    shutil.rmtree(paths.ray, ignore_errors=True)
    try:
        paths.ray.mkdir(mode=0o700)
    except OSError as error:
        raise StartError(
            f"Ray's temporary directory {paths.ray} cannot be made: {error.strerror}.",
            "Remove what is there, or point TMPDIR at a directory of your own.",
        ) from None
    with paths.keeper_log.open("w") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "diptych.local.keeper", str(paths.plan)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=paths.directory,
            env=service_environment(plan.run_id, plan.host, paths.ray_token),
            text=True,
            start_new_session=True,
        )


def _follow(keeper: "subprocess.Popen[str]", plan: Plan, paths: ServicePaths, view: View) -> None:
    for event in EventLog(paths.events).follow():
        if event is None:
            view.tick()
            if keeper.poll() is not None and not _has_ended(paths):
                raise StartError(_silent_end(keeper.returncode, paths), f"See {paths.keeper_log}.")
            continue
        view.stage(event)
        if event.kind == "ready":
            return
        if event.kind == "failed":
            raise StartError(event.text, event.hint)
        if event.kind == "stopped":
            raise StartError(f"The service was stopped while it came up: {event.text}.")


def _has_ended(paths: ServicePaths) -> bool:
    """Whether the last event says how it ended (it may be written but not read yet)."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        return json.loads(paths.events.read_text().splitlines()[-1])["kind"] in ("failed", "stopped", "ready")
    return False


def _silent_end(code: int, paths: ServicePaths) -> str:
    if code < 0:
        return f"The keeper of the service was killed by signal {-code}."
    lines = (
        paths.keeper_log.read_text(errors="replace").strip().splitlines() if paths.keeper_log.exists() else []
    )
    return f"The keeper of the service ended with code {code}: {lines[-1] if lines else 'it wrote nothing'}"


def _let_go(keeper: "subprocess.Popen[str]") -> None:
    assert keeper.stdin is not None
    keeper.stdin.write("detach\n")
    keeper.stdin.close()


def _wait_while_it_lives(keeper: "subprocess.Popen[str]", plan: Plan, view: View) -> None:
    while keeper.poll() is None:
        time.sleep(0.3)
        view.tick()
    last = [e for e in _events(plan) if e.kind == "failed"]
    if last:
        raise StartError(last[-1].text, last[-1].hint)


def _events(plan: Plan) -> list[Event]:
    lines = Path(plan.events).read_text().splitlines()
    return [Event(**json.loads(line)) for line in lines]


def _tear_down(keeper: "subprocess.Popen[str]", plan: Plan, paths: ServicePaths) -> None:
    """End the keeper and all it started, and stay until that is done, whatever is pressed meanwhile."""
    deadline = time.monotonic() + _CLEAN_UP_S
    with contextlib.suppress(OSError, ValueError):
        if keeper.stdin is not None:
            keeper.stdin.close()
    while keeper.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(KeyboardInterrupt):
            time.sleep(0.1)
    mark = Mark(plan.run_id, paths.ray)
    while marked(mark):
        with contextlib.suppress(KeyboardInterrupt):
            end_all(mark, grace_s=1.0)
            break
    with contextlib.suppress(OSError):
        for path in paths.secrets_and_state:
            path.unlink(missing_ok=True)


def _require_space(paths: ServicePaths) -> None:
    for directory in (paths.directory, paths.ray.parent):
        free = shutil.disk_usage(directory).free
        if free < _SPACE_NEEDED:
            raise StartError(
                f"The disk that holds {directory} is full: {free // 2**20} MiB free, "
                f"{_SPACE_NEEDED // 2**20} needed for logs.",
                "Free space there, or point TMPDIR and DIPTYCH_STATE_DIR elsewhere.",
            )
