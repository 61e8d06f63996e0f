"""States of services that never were, for what reads them."""

from typing import Any

from diptych.local.paths import ServicePaths
from diptych.local.state import ServiceState, save

NO_PID = 2**22 + 1
"""Larger than any process id that Linux gives out."""


def a_state(name: str = "one", **fields: Any) -> ServiceState:
    """The state of a ready service whose processes are gone, with the given fields instead."""
    known = {
        "name": name,
        "run_id": "no-such-run",
        "ray_directory": "/no/such/directory",
        "topology": "split",
        "model": "m",
        "model_source": "embedded",
        "url": "http://127.0.0.1:9",
        "document": None,
        "keeper_pid": NO_PID,
        "started_at": 1.0,
        "ready_at": 2.0,
    }
    return ServiceState.model_validate(known | fields)


def remember(name: str = "one", **fields: Any) -> ServicePaths:
    """Leave such a state behind; its paths."""
    paths = ServicePaths.of(name)
    paths.create()
    save(paths, a_state(name, **fields))
    return paths
