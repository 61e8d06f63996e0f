"""What every step is given, and what it tells of itself."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from diptych.progress import Event, Kind, View
from diptych.render.inputs import Facts
from diptych.spec import Document

STEPS = ("operator", "service")
"""The steps of a cluster that exists, in the order of `up`; `down` goes the other way."""

State = Literal["absent", "coming", "ready", "failed", "going", "foreign", "unknown"]
"""What a step's part of the cluster is like; `foreign`: there, and somebody else's."""


@dataclass(frozen=True)
class StepStatus:
    """One step: what its part is like, in a word and in a sentence. `details` are for `--json`."""

    step: str
    state: State
    text: str
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Job:
    """One document on its way up or down.

    Args:
        document: what is served.
        facts: what rendering is told beside it, the serving archive included.
        view: is told what happens.
        folder: a private folder for logs, key files and what is rendered.
        dry_run: nothing is changed; each change is told instead.
        timeout_s: deadline of each wait, in seconds; None: derived from sizes and counts.
        replace: go on although a change needs the GPUs of a second cluster, or ends what serves now.
    """

    document: Document
    facts: Facts
    view: View
    folder: Path
    dry_run: bool = False
    timeout_s: float | None = None
    replace: bool = False

    def tell(self, kind: Kind, stage: str, text: str = "", hint: str = "") -> None:
        """Tell the view that something happened, now."""
        self.view.stage(Event(kind, stage, text, hint, time.time()))

    def log(self, name: str) -> Path:
        """The log file of a program, in the job's folder."""
        return self.folder / f"{name}.log"
