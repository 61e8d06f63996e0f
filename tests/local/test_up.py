"""Bringing a service up, with a keeper that needs no engines: every way it can go, and what is left."""

import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest

from diptych.errors import ModelError, SetupError, StartError
from diptych.local import run, up
from diptych.local.down import take_down
from diptych.local.paths import ServicePaths
from diptych.local.processes import Mark, marked
from diptych.local.state import exclusive, load
from diptych.local.up import bring_up
from diptych.progress import Event, View
from diptych.spec import Document

FAKE = Path(__file__).parents[1] / "fakes" / "keeper.py"


class Seen(View):
    def __init__(self) -> None:
        self.events: list[Event] = []
        self.ended = False

    def stage(self, event: Event) -> None:
        self.events.append(event)

    def ending(self) -> None:
        self.ended = True


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "tiny"
    directory.mkdir()
    sizes = {
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "hidden_size": 16,
        "vocab_size": 99,
        "max_position_embeddings": 256,
    }
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "float32", **sizes}
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "model.safetensors").write_bytes(b"\0" * 64)
    (directory / "tokenizer.json").write_text("{}")
    return directory


@pytest.fixture
def document(model: Path) -> Document:
    return Document.model_validate({"name": "one", "model": str(model)})


@pytest.fixture
def paths() -> ServicePaths:
    return ServicePaths.of("one")


@pytest.fixture(autouse=True)
def fake_keeper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, paths: ServicePaths):
    """The interpreter that `up` starts its keeper with runs the fake one instead."""
    interpreter = tmp_path / "python"
    interpreter.write_text(f'#!/bin/sh\nexec {sys.executable} {FAKE} "$@"\n')
    interpreter.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(interpreter))
    monkeypatch.setattr(up, "require_engines", lambda: None)
    yield
    for process in left(paths):
        os.kill(process, signal.SIGKILL)
    shutil.rmtree(paths.ray, ignore_errors=True)


RUN_IDS: list[str] = []


@pytest.fixture(autouse=True)
def remember_run_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    RUN_IDS.clear()
    environment = run.service_environment

    def remembered(run_id: str, *rest: object) -> dict[str, str]:
        RUN_IDS.append(run_id)
        return environment(run_id, *rest)

    monkeypatch.setattr(run, "service_environment", remembered)


def left(paths: ServicePaths) -> set[int]:
    """What runs of any service that this test started."""
    return {process.pid for run_id in RUN_IDS for process in marked(Mark(run_id, paths.ray))}


def fate(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    monkeypatch.setenv("FAKE_KEEPER", what)


def until(condition: object, within_s: float = 10.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_service_that_is_ready_is_let_go_and_outlives_the_command(document, paths, monkeypatch) -> None:
    fate(monkeypatch, "is ready")
    view = Seen()
    (service,) = bring_up(document, None, view)
    assert not service.already
    assert service.state.ready_at is not None
    until((paths.directory / "leash").exists)
    until(lambda: (paths.directory / "leash").read_text() == "detach")
    assert len(left(paths)) == 2
    assert [event.kind for event in view.events][-1] == "ready"
    assert not view.ended


def test_up_again_leaves_it_alone_and_starts_nothing(document, paths, monkeypatch) -> None:
    fate(monkeypatch, "is ready")
    (first,) = bring_up(document, None, Seen())
    before = left(paths)
    (second,) = bring_up(document, None, Seen())
    assert second.already
    assert second.state == first.state
    assert left(paths) == before
    assert len(RUN_IDS) == 1


def test_down_ends_what_up_started_and_forgets_it(document, paths, monkeypatch) -> None:
    fate(monkeypatch, "is ready")
    (_,) = bring_up(document, None, Seen())
    expected = left(paths)
    ended = take_down("one")
    assert {process.pid for process in ended.processes} == expected
    assert left(paths) == set()
    assert load(paths) is None
    assert not paths.ray.exists()
    assert not paths.api_key.exists()


def test_a_failure_that_the_keeper_tells_is_passed_on_in_its_words(document, paths, monkeypatch) -> None:
    fate(monkeypatch, "fails")
    view = Seen()
    with pytest.raises(StartError, match="Its own last words: MemoryError") as caught:
        next(bring_up(document, None, view))
    assert caught.value.hint == "See."
    assert view.ended
    assert left(paths) == set()
    assert load(paths) is None


def test_a_keeper_that_ends_silently_is_told_with_its_code_and_last_line(
    document, paths, monkeypatch
) -> None:
    fate(monkeypatch, "ends silently")
    with pytest.raises(StartError, match=r"ended with code 3: ImportError: libfoo\.so"):
        next(bring_up(document, None, Seen()))
    assert left(paths) == set()


def test_a_keeper_that_is_killed_is_told_apart_from_one_that_failed(document, paths, monkeypatch) -> None:
    fate(monkeypatch, "is killed")
    with pytest.raises(StartError, match="killed by signal 9"):
        next(bring_up(document, None, Seen()))
    assert left(paths) == set()


def test_ctrl_c_while_it_comes_up_leaves_nothing(document, paths, monkeypatch) -> None:
    fate(monkeypatch, "hangs")
    monkeypatch.setattr(run, "_CLEAN_UP_S", 1.0)

    class Impatient(Seen):
        def tick(self) -> None:
            if any(event.stage == "Ray" for event in self.events):
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        next(bring_up(document, None, Impatient()))
    assert left(paths) == set()
    assert load(paths) is None


def test_a_service_held_in_the_foreground_ends_with_its_command(document, paths, monkeypatch) -> None:
    fate(monkeypatch, "is ready")
    services = bring_up(document, None, Seen(), hold=True)
    next(services)
    assert len(left(paths)) == 2
    services.close()
    assert left(paths) == set()
    assert load(paths) is None


def test_while_one_command_works_on_a_service_another_is_refused(document, paths, monkeypatch) -> None:
    fate(monkeypatch, "is ready")
    paths.create()
    with exclusive(paths), pytest.raises(StartError, match="Another diptych command"):
        next(bring_up(document, None, Seen()))
    assert RUN_IDS == []


def test_what_a_killed_keeper_left_is_ended_before_a_new_start(document, paths, monkeypatch) -> None:
    fate(monkeypatch, "is ready")
    (service,) = bring_up(document, None, Seen())
    os.kill(service.state.keeper_pid, signal.SIGKILL)
    orphans = left(paths) - {service.state.keeper_pid}
    assert len(orphans) == 1
    (again,) = bring_up(document, None, Seen())
    assert not again.already
    assert orphans & left(paths) == set()
    assert len(left(paths)) == 2


def test_a_model_that_is_not_there_starts_nothing(paths, monkeypatch, tmp_path) -> None:
    document = Document.model_validate({"name": "one", "model": str(tmp_path / "nowhere")})
    with pytest.raises(ModelError):
        next(bring_up(document, None, Seen()))
    assert RUN_IDS == []
    with exclusive(paths):
        pass


def test_a_full_disk_is_told_with_how_much_is_missing(document, monkeypatch) -> None:
    usage = shutil.disk_usage("/")._replace(free=5 * 2**20)
    monkeypatch.setattr(up.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(StartError, match="is full: 5 MiB free, 256 needed"):
        next(bring_up(document, None, Seen()))
    assert RUN_IDS == []


def test_a_read_only_home_is_told_before_anything_is_looked_for(document, state_root) -> None:
    state_root.write_text("a file in the way")
    with pytest.raises(SetupError, match="cannot write its state"):
        next(bring_up(document, None, Seen()))
