"""NIXL's progress thread, made to wait instead of to spin.

NIXL's Python agent asks for a progress thread with no pause between its looks (`pthrDelay = 0`): one core at 100 %
per engine, for as long as the engine lives. Where cores are many and belong to the network that is right; on a CPU
engine the spinning thread takes the core that computes. With a pause the thread sleeps in poll(2) and UCX wakes it.
"""

import importlib
from typing import Any

PAUSE_US = 20_000
_MODULES = ("nixl_cu13._api", "nixl_cu12._api", "nixl._api")


def wait_instead_of_spinning() -> None:
    """Give every NIXL agent made from now on in this process a pause of `PAUSE_US` between its looks."""
    for name in _MODULES:
        try:
            bindings: Any = importlib.import_module(name).nixlBind
        except (ImportError, AttributeError):
            continue
        if not getattr(bindings.nixlAgentConfig, "is_patient", False):
            bindings.nixlAgentConfig = _patient(bindings.nixlAgentConfig)
        return


def _patient(config_class: Any) -> Any:
    class PatientConfig(config_class):
        is_patient = True

        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, PAUSE_US if name == "pthrDelay" and value == 0 else value)

    return PatientConfig
