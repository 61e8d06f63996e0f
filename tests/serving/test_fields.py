"""Every field of every request model of the installed vLLM is asked for in `tests/engines`, or it is said why not."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engines.fields_of_others import MODELS
from engines.rows import PAIRS, Field, Model, paths_in

SCRIPT = Path(__file__).parents[1] / "engines" / "request_models.py"
EVERY_ROW = pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
KNOWN = {model.name for model in MODELS}


@pytest.fixture(scope="module")
def installed() -> dict[str, Any]:
    """vLLM's version and its request models, read in a process of its own."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-4000:]
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def asked(model: Model) -> set[str]:
    return set().union(*(paths_in(shape.body) for shape in model.shapes()))


def test_every_request_model_has_a_table_and_every_table_a_model(installed: dict[str, Any]) -> None:
    assert installed["models"].keys() == KNOWN


@EVERY_ROW
def test_a_model_is_asked_for_at_its_own_route(installed: dict[str, Any], model: Model) -> None:
    assert model.route in installed["models"][model.name]["paths"]


@EVERY_ROW
def test_every_field_has_a_row_or_a_reason(installed: dict[str, Any], model: Model) -> None:
    reasons = {name for name, field in model.fields.items() if field.reason}
    fields = set(installed["models"][model.name]["fields"])
    assert fields - asked(model) - reasons == set()
    assert {field for field in fields if "." not in field} - model.fields.keys() == set()


@EVERY_ROW
def test_every_row_is_of_a_field_that_this_vllm_has_if_the_row_says_so(
    installed: dict[str, Any], model: Model
) -> None:
    fields = installed["models"][model.name]["fields"]
    claimed = {name for name, field in model.fields.items() if field.is_in(installed["version"])}
    assert claimed - set(fields) == set()
    assert (model.fields.keys() - claimed) & set(fields) == set()


@EVERY_ROW
def test_every_field_is_one_of_a_known_pair_and_has_either_rows_or_a_reason(model: Model) -> None:
    unknown = [name for name, field in model.fields.items() if not any(map(field.is_in, PAIRS))]
    undecided = [name for name, field in model.fields.items() if bool(field.values) == bool(field.reason)]
    assert (unknown, undecided) == ([], [])


@EVERY_ROW
def test_every_row_has_a_name_of_its_own(model: Model) -> None:
    names = [shape.name for shape in model.shapes()]
    assert sorted(set(names)) == sorted(names)


def test_a_field_is_in_the_versions_from_its_first_to_its_last() -> None:
    since, until = Field(since="0.29"), Field(until="0.26")
    assert [since.is_in(version) for version in ("0.26.0", "0.29.0", "0.29")] == [False, True, True]
    assert [until.is_in(version) for version in ("0.26.0", "0.27.1", "0.29.0")] == [True, False, False]


def test_what_is_said_in_a_body_is_found_through_lists() -> None:
    body = {"tools": [{"function": {"name": "a"}}, {"type": "b"}], "n": 1}
    assert paths_in(body) == {"tools", "tools.function", "tools.function.name", "tools.type", "n"}
