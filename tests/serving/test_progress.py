"""NIXL's progress thread waits instead of spinning."""

import pytest

pytest.importorskip("nixl")

from diptych.serving.progress import PAUSE_US, wait_instead_of_spinning


def test_an_agent_that_asks_for_no_pause_gets_one_and_one_that_asks_for_its_own_keeps_it() -> None:
    import importlib

    wait_instead_of_spinning()
    wait_instead_of_spinning()
    for name in ("nixl_cu13._api", "nixl_cu12._api", "nixl._api"):
        try:
            config = importlib.import_module(name).nixlBind.nixlAgentConfig()
        except ImportError:
            continue
        config.pthrDelay = 0
        assert config.pthrDelay == PAUSE_US
        config.pthrDelay = 7
        assert config.pthrDelay == 7
        return
    pytest.fail("no NIXL bindings were found")
