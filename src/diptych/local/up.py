"""Bring a service up: plan, spawn the keeper, follow its events until the service is ready."""

import shutil
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

from diptych.errors import StartError
from diptych.local.down import clear_leftovers
from diptych.local.environment import require_engines
from diptych.local.paths import ServicePaths
from diptych.local.planning import Model, make_plan
from diptych.local.processes import is_alive
from diptych.local.run import Run
from diptych.local.state import ServiceState, exclusive, load
from diptych.models.embedded import EMBEDDED
from diptych.models.hub import resolve_model
from diptych.progress import Event, View
from diptych.spec import Document
from diptych.spec.given import given_token

_SPACE_NEEDED = 256 * 2**20


@dataclass(frozen=True)
class Service:
    """A service that is up: what it is called, where it answers and with which key file."""

    state: ServiceState
    paths: ServicePaths
    already: bool


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
            run = _prepare(document, document_path, paths, view)
            with run.ended_on_failure():
                run.start()
                state = run.follow()
                if not hold:
                    run.let_go()
    service = Service(running or state, paths, already=running is not None)
    if service.already or not hold:
        yield service
        return
    with run.ended_on_failure():
        yield service
        run.wait()
    run.end()


def _already_up(paths: ServicePaths, document: Document) -> ServiceState | None:
    state = load(paths)
    if state is None or not is_alive(state.keeper_pid, state.mark):
        return None
    if state.ready_at is None:
        raise StartError(
            f"The service {document.name!r} is still coming up or going down.", "`diptych status` shows it."
        )
    return state


def _prepare(document: Document, document_path: Path | None, paths: ServicePaths, view: View) -> Run:
    model = find_model(document, view)
    plan = make_plan(document, model, paths, view.say)
    plan.save(paths.plan)
    paths.events.unlink(missing_ok=True)
    state = ServiceState(
        name=document.name,
        run_id=plan.run_id,
        ray_directory=plan.ray_directory,
        topology=document.topology,
        model=plan.model,
        model_source=model.source,
        url=plan.url,
        document=str(document_path.absolute()) if document_path else None,
        keeper_pid=0,
        started_at=time.time(),
    )
    return Run(plan, state, paths, view)


def find_model(document: Document, view: View) -> Model:
    """The document's model on this disk: the embedded one made ready once, a path checked, a hub's model fetched."""
    view.stage(Event("start", "model", at=time.time()))

    def progress(text: str) -> None:
        view.stage(Event("detail", "model", text, at=time.time()))

    token = given_token(document)
    directory = resolve_model(document.model.source, document.model.revision, progress, token=token)
    embedded = document.model.source in ("embedded", EMBEDDED.name)
    source = EMBEDDED.hub_id if embedded else document.model.source
    view.stage(Event("done", "model", at=time.time()))
    return Model(Path(directory), source, embedded)


def _require_space(paths: ServicePaths) -> None:
    for directory in (paths.directory, paths.ray.parent):
        free = shutil.disk_usage(directory).free
        if free < _SPACE_NEEDED:
            raise StartError(
                f"The disk that holds {directory} is full: {free // 2**20} MiB free, "
                f"{_SPACE_NEEDED // 2**20} needed for logs.",
                "Free space there, or point TMPDIR and DIPTYCH_STATE_DIR elsewhere.",
            )
