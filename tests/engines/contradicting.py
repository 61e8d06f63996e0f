"""Engines that tell of another backend than they use, where a test says so: for `worker_extension_cls`.

Where there is such a file, importing this module puts `told` in the place of what a worker tells for the proof.
"""

import os
from pathlib import Path
from typing import Any

from diptych.serving import signals

FILE_ENV = "CONTRADICTING_ENGINES"
"""Names the file with the process ids of these engines, one a line."""
BACKEND = "LIBFABRIC"

_worker_signals = signals.worker_signals


def told(rank: int) -> dict[str, Any]:
    """What a worker tells."""
    true = _worker_signals(rank)
    contradicts = str(os.getpid()) in Path(os.environ[FILE_ENV]).read_text().split()
    return true | ({"backends": [BACKEND]} if contradicts else {})


class Extension:
    """Adds nothing to the worker of the model."""


if FILE_ENV in os.environ:
    signals.worker_signals = told  # type: ignore[assignment]
