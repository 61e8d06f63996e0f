"""One `up` or `down` in a process of its own, to be killed; tells each event on a line.

`alone.py up|down FOLDER STEP…`; with FOLDER/keys the service's endpoint takes those.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from diptych.eks.aws import Session
from diptych.eks.down import take_down
from diptych.eks.job import EksJob
from diptych.eks.up import bring_up
from diptych.progress import Event, View
from diptych.render.archive import serving_archive
from diptych.render.inputs import Facts
from eks.documents import REGION, document

PENDING_S = 20.0
"""Seconds after which a helm that was killed in the middle is given up; in life they are minutes."""


def look_often() -> None:
    """As in tests inside a cluster; what they import takes its time, so only where it is needed."""
    import pytest

    from kube import world

    patch = pytest.MonkeyPatch()
    world.look_often(patch)
    patch.setattr("diptych.kube.release._PENDING_S", PENDING_S)


class Told(View):
    """Each event as a line."""

    def stage(self, event: Event) -> None:
        print(event.kind, event.stage, event.text, flush=True)


if __name__ == "__main__":
    what, folder, *steps = sys.argv[1:]
    if "service" in steps:
        look_often()
    keys = Path(folder, "keys")
    job = EksJob(
        document=document(**({"access": {"api_key_file": str(keys)}} if keys.exists() else {})),
        facts=Facts(serving_archive=serving_archive()),
        view=Told(),
        folder=Path(folder),
        session=Session(REGION),
        every_s=0.1,
    )
    {"up": bring_up, "down": take_down}[what](job, steps)
