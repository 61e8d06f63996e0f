"""Five documents render to what is written down, to the byte. `GOLDEN_WRITE=1` writes it down anew.

GOLDEN_WRITE=1 .venv/bin/pytest tests/render/test_golden.py && git diff tests/render/golden
"""

import os
import shutil

import jsonschema
import pytest

from diptych import __version__
from diptych.render.bundle import render
from render.golden_documents import DOCUMENTS, HERE, example
from render.manifests import check, objects_in

GOLDEN = HERE / "golden"
_VERSION = "{version}"


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_renders_to_its_golden_files(name: str) -> None:
    # The version stands in every header; a new one changes nothing else.
    made_by = f"Made by diptych {__version__} "
    rendered = {
        file: text.replace(made_by, f"Made by diptych {_VERSION} ")
        for file, text in render(*example(name)).items()
    }
    folder = GOLDEN / name
    if os.environ.get("GOLDEN_WRITE"):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for file, text in rendered.items():
            (folder / file).write_text(text)
    assert rendered == {file.name: file.read_text() for file in folder.iterdir()}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_object_passes_its_schema(name: str) -> None:
    for manifest in objects_in(render(*example(name))):
        check(manifest)


@pytest.mark.parametrize(
    "path",
    [
        ("spec", "serviceUnhealthySeconds"),
        ("spec", "rayClusterConfig", "headGroupSpec", "rayStartParameters"),
        ("spec", "rayClusterConfig", "headGroupSpec", "template", "spec", "restart"),
        ("spec", "rayClusterConfig", "headGroupSpec", "template", "metadata", "label"),
    ],
)
def test_the_schemas_refuse_a_field_that_the_api_server_would_drop_without_a_word(
    path: tuple[str, ...],
) -> None:
    service = next(
        each for each in objects_in(render(*example("walkthrough"))) if each["kind"] == "RayService"
    )
    holder = service
    for step in path[:-1]:
        holder = holder[step]
    holder[path[-1]] = 1
    with pytest.raises(jsonschema.ValidationError, match=path[-1]):
        check(service)
