"""What long work tells while it runs: events of stages, and the view that is told of them."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["start", "detail", "done", "ready", "failed", "stopped"]


@dataclass(frozen=True)
class Event:
    """One thing that happened. `at` is in Unix seconds; `stage` is its name, or empty for the whole."""

    kind: Kind
    stage: str = ""
    text: str = ""
    hint: str = ""
    at: float = 0.0


class View:
    """Told what happens while a service comes up or goes down; the command line draws it."""

    def stage(self, event: Event) -> None:
        """A stage started, moved on or is done."""

    def say(self, text: str) -> None:
        """Something was decided that the user would not expect."""

    def tick(self) -> None:
        """Time has passed."""

    def ending(self) -> None:
        """It will not come up, or was interrupted: what runs is being ended."""
