"""Long work as it is shown: a table of stages that is redrawn on a terminal, a line per step elsewhere."""

import contextlib
import re
import time

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from diptych.cli.console import format_duration
from diptych.progress import Event, View

_STYLES = {"waiting": "dim", "running": "yellow", "done": "green", "failed": "red"}
_MARKS = {"waiting": " ", "running": "…", "done": "✓", "failed": "✗"}
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_COUNTS_ON_S = 60.0


class LiveView(View):
    """The stages with their elapsed times: redrawn on a terminal, one line per step elsewhere."""

    def __init__(self, console: Console, stage_names: tuple[str, ...]) -> None:
        self._console = console
        self._began = time.time()
        self._rows = dict.fromkeys(stage_names, ("waiting", 0.0, 0.0, ""))
        self._told: dict[str, tuple[str, float]] = {}
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
        if not self._live and self._is_news(event):
            self._print_line(event, began)
        self.tick()

    def _is_news(self, event: Event) -> bool:
        """Where lines stay, one that only counts on is printed once a minute."""
        if event.kind != "detail":
            return True
        words = _NUMBER.sub("#", event.text)
        told, at = self._told.get(event.stage, ("", 0.0))
        if words == told and event.at - at < _COUNTS_ON_S:
            return False
        self._told[event.stage] = (words, event.at)
        return True

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
