"""The documents that `diptych init` writes: they load, and so does everything that they show in comments."""

import re
from pathlib import Path
from typing import get_args

import pytest
from jsonschema import Draft202012Validator

from diptych.catalog.instances import instance_types
from diptych.render.layout import DEFAULT_INSTANCE_TYPE as RENDERED_INSTANCE_TYPE
from diptych.spec import Document, Place, json_schema, load
from diptych.spec.source import parse
from diptych.spec.starter import DEFAULT_INSTANCE_TYPE, DEFAULT_MODELS, starter

PLACES: tuple[Place, ...] = get_args(Place)
OPTION = re.compile(r"^(\s*)# ([a-z_]+: )", re.MULTILINE)


def read(tmp_path: Path, text: str) -> Document:
    file = tmp_path / "diptych.yaml"
    file.write_text(text)
    return load(file, environ={})


@pytest.mark.parametrize("on", PLACES)
def test_a_starter_loads_fits_the_schema_and_is_short(tmp_path: Path, on: Place) -> None:
    text = starter(on)
    document = read(tmp_path, text)
    assert (document.on, document.name, document.model.source) == (on, "diptych", DEFAULT_MODELS[on])
    filled = {name: value for name, value in parse(text).value.items() if value is not None}
    Draft202012Validator(json_schema()).validate(filled)
    assert len(text.splitlines()) < 25
    assert max(map(len, text.splitlines())) <= 120
    assert text.startswith("# What to serve, and where. `diptych check diptych.yaml` finds")


def test_the_starter_for_this_machine_says_what_the_defaults_say(tmp_path: Path) -> None:
    assert read(tmp_path, starter("local")) == Document()


@pytest.mark.parametrize("on", PLACES)
@pytest.mark.parametrize("instance", [None, "g6e.12xlarge"])
def test_what_a_starter_shows_in_comments_loads_too(tmp_path: Path, on: Place, instance: str | None) -> None:
    text = starter(on, instance=instance)
    uncommented = OPTION.sub(r"\1\2", text)
    assert uncommented != text
    document = read(tmp_path, uncommented)
    assert document.engine_kwargs == {"max_model_len": 4096}
    assert document != read(tmp_path, text)


@pytest.mark.parametrize("on", ["kubernetes", "eks"])
@pytest.mark.parametrize("instance", [name for name, each in instance_types().items() if each.gpus])
def test_a_starter_takes_every_instance_type(tmp_path: Path, on: Place, instance: str) -> None:
    text = starter(on, instance=instance)
    assert read(tmp_path, text).nodes.instance_type == instance
    assert max(map(len, text.splitlines())) <= 120


def test_a_starter_takes_model_and_name_whatever_they_look_like(tmp_path: Path) -> None:
    for on in PLACES:
        document = read(tmp_path, starter(on, model="./1.5", name="on"))
        assert (document.model.source, document.name) == (str(tmp_path / "1.5"), "on")


def test_a_starter_says_what_a_node_has_and_costs() -> None:
    assert (
        "instance_type: g6.8xlarge    # 1 × L4 with 22 GiB, EFA; $2.01/h on demand in us-east-1"
        in starter("eks")
    )
    assert "no EFA: TCP" in starter("eks", instance="g6.xlarge")


def test_the_default_instance_type_is_the_one_that_is_rendered() -> None:
    assert DEFAULT_INSTANCE_TYPE == RENDERED_INSTANCE_TYPE
