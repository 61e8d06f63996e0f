"""`diptych up`: a live view of the stages, then how to talk to the endpoint."""

import contextlib
import time
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from diptych.cli.console import err, format_duration, out, print_dim
from diptych.errors import DocumentError
from diptych.local.events import Event
from diptych.local.planning import stages
from diptych.local.run import View
from diptych.local.up import Service, bring_up
from diptych.spec import Document, load

_STYLES = {"waiting": "dim", "running": "yellow", "done": "green", "failed": "red"}
_MARKS = {"waiting": " ", "running": "…", "done": "✓", "failed": "✗"}
# Without a limit a small model may talk until its context is full: minutes.
_MAX_TOKENS = 64
_MESSAGES = '[{"role": "user", "content": "Hello!"}]'


class LiveView(View):
    """The stages with their elapsed times: redrawn on a terminal, one line per step elsewhere."""

    def __init__(self, console: Console, stage_names: tuple[str, ...]) -> None:
        self._console = console
        self._began = time.time()
        self._rows = dict.fromkeys(stage_names, ("waiting", 0.0, 0.0, ""))
        self._live = (
            Live(console=console, refresh_per_second=8, transient=False) if console.is_terminal else None
        )

    def __enter__(self) -> "LiveView":
        if self._live:
            self._live.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self._live:
            self._mark_running("failed" if kind else "done")
            self._live.update(self._table())
            self._live.stop()

    def stage(self, event: Event) -> None:
        if event.stage not in self._rows:
            return
        _, began, _, text = self._rows[event.stage]
        began = began or event.at
        state = "done" if event.kind == "done" else "running"
        self._rows[event.stage] = (
            state,
            began,
            event.at if state == "done" else 0.0,
            event.text or ("" if state == "done" else text),
        )
        if not self._live:
            self._print_line(event, began)
        self.tick()

    def say(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False)

    def tick(self) -> None:
        if self._live:
            self._live.update(self._table())

    def ending(self) -> None:
        if self._live:
            self._mark_running("failed")
            self._live.update(self._table())
            self._live.stop()
            self._live = None
        self.say("Ending what was started …")

    def _mark_running(self, state: str) -> None:
        for name, (now, began, ended, text) in self._rows.items():
            if now == "running":
                self._rows[name] = (state, began, ended or time.time(), text)

    def _print_line(self, event: Event, began: float) -> None:
        since = format_duration(event.at - self._began)
        took = f" in {format_duration(event.at - began)}" if event.kind == "done" else ""
        detail = f": {event.text}" if event.text else ""
        word = {"start": "started", "done": "done"}.get(event.kind, "")
        line = f"[{since:>6}] {event.stage} {word}{took}{detail}".replace(" :", ":")
        with contextlib.suppress(BrokenPipeError):  # nobody reads on: no reason to stop
            self._console.print(line, highlight=False, markup=False)

    def _table(self) -> Table:
        table = Table.grid(padding=(0, 2))
        table.add_column(width=1)
        table.add_column(min_width=18)
        table.add_column(justify="right", min_width=7)
        table.add_column(style="dim")
        for name, (state, began, ended, text) in self._rows.items():
            took = format_duration((ended or time.time()) - began) if began else ""
            table.add_row(Text(_MARKS[state], style=_STYLES[state]), name, took, text)
        return table


def run_up(file: Path | None, overrides: list[str], *, foreground: bool) -> int:
    """Bring the service up; 0 when it is ready (or was), 130 after Ctrl-C."""
    document = load(file, overrides)
    _require_a_place_of_ours(document)
    _require_a_clean_check(file, overrides)
    view = LiveView(err(), ("model", *stages(document.topology)))
    began = time.monotonic()
    services = bring_up(document, file, view, hold=foreground)
    try:
        with view:
            service = next(services)
    except KeyboardInterrupt:
        err().print("Interrupted: nothing is left running.")
        return 130
    held = foreground and not service.already
    try:
        _announce(service, time.monotonic() - began)
        if held:
            err().print("Press Ctrl-C to take it down.", style="dim")
        for _ in services:
            pass
    except KeyboardInterrupt:
        services.close()
        stays = f"{service.state.name} stays up; `diptych down` takes it down."
        err().print("Taken down: nothing is left running." if held else stays)
        return 0 if held else 130
    return 0


def _require_a_place_of_ours(document: Document) -> None:
    if document.on != "local":
        raise DocumentError(
            f"`up` can't bring a service up on {document.on} yet: this version starts it on this machine only.",
            "`diptych check` and `diptych render` work for that place; apply what render writes with your own tools.",
        )


def _require_a_clean_check(file: Path | None, overrides: list[str]) -> None:
    """Say what may go wrong; refuse what will."""
    from diptych.check import check_file
    from diptych.cli.check import this_machine

    report = check_file(file, overrides, offline=True, machine=this_machine)
    for finding in report.findings:
        if finding.severity == "warning":
            print_dim(err(), f"{finding.code} {finding}")
    errors = [f"{each.code} {each}" for each in report.findings if each.severity == "error"]
    if errors:
        raise DocumentError("\n".join(errors), "docs/checks.md explains each code.")


def _announce(service: Service, took_s: float) -> None:
    state, console = service.state, out()

    def line(text: str = "") -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    if service.already:
        line(f"{state.name} is up already and was left alone: {state.model} at {state.url}/v1")
    else:
        line(f"{state.name} is ready after {format_duration(took_s)}: {state.model} at {state.url}/v1")
    line()
    line(f"  curl {state.url}/v1/chat/completions -H @{service.paths.curl_header} \\")
    line("    -H 'Content-Type: application/json' \\")
    line(f"""    -d '{{"model": "{state.model}", "max_tokens": {_MAX_TOKENS}, "messages": {_MESSAGES}}}'""")
    line()
    line(f"  python -c '{_python_line(service)}'")
    line()
    line("  diptych chat    talk to it; shows what each phase took")
    line("  diptych status  what is up        diptych down  take it down")


def _python_line(service: Service) -> str:
    """One line for the official client; in single quotes for the shell."""
    state = service.state
    key = f'pathlib.Path("{_key_file(service)}").read_text().split()[0]'
    asked = f'model="{state.model}", max_tokens={_MAX_TOKENS}, messages={_MESSAGES}'
    return (
        f'import openai, pathlib; client = openai.OpenAI(base_url="{state.url}/v1", api_key={key}); '
        f"print(client.chat.completions.create({asked}).choices[0].message.content)"
    )


def _key_file(service: Service) -> str:
    from diptych.local.status import endpoint_of

    return str(endpoint_of(service.state.name).api_key_file)
