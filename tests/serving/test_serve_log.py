"""Ray Serve's log of a replica survives vLLM's set-up of logging."""

import logging
from collections.abc import Iterator
from logging.config import dictConfig
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("ray.serve.llm")

from ray.serve._private.common import ServeComponentType
from ray.serve._private.logging_utils import configure_component_logger
from ray.serve.schema import LoggingConfig

from diptych.serving import serve_log

SERVE = logging.getLogger("ray.serve")


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """A replica's context, its log set up by Serve as in a replica."""
    monkeypatch.setattr("ray._private.worker._global_node", SimpleNamespace(max_bytes=2**20, backup_count=1))
    config = LoggingConfig(logs_dir=str(tmp_path))
    before = SERVE.handlers[:], SERVE.level, SERVE.propagate
    configure_component_logger(
        component_type=ServeComponentType.REPLICA,
        component_name="app_Decode:m",
        component_id="r1",
        logging_config=config,
    )
    yield SimpleNamespace(
        app_name="app",
        deployment="Decode:m",
        replica_id=SimpleNamespace(unique_id="r1"),
        _deployment_config=SimpleNamespace(logging_config=config.model_dump()),
    )
    SERVE.handlers[:], SERVE.propagate = before[0], before[2]
    SERVE.setLevel(before[1])


def written(folder: Path) -> str:
    (file,) = folder.glob("replica_*.log")
    return file.read_text()


def test_what_is_said_after_logging_was_set_up_anew_is_written_and_what_was_said_meanwhile_too(
    context: SimpleNamespace, tmp_path: Path
) -> None:
    SERVE.info("before")
    dictConfig({"version": 1, "disable_existing_loggers": False})
    SERVE.info("meanwhile")
    assert "meanwhile" not in written(tmp_path)
    serve_log.reopen_serve_log(context)
    SERVE.info("afterwards")
    assert [word for word in ("before", "meanwhile", "afterwards") if word in written(tmp_path)] == [
        "before",
        "meanwhile",
        "afterwards",
    ]


def test_a_log_that_is_open_is_left_alone(context: SimpleNamespace) -> None:
    handlers = SERVE.handlers[:]
    serve_log.reopen_serve_log(context)
    assert SERVE.handlers == handlers
