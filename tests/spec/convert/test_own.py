"""What Diptych renders becomes the document that it was rendered from, as far as a RayService can tell."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from diptych.render.bundle import render_one
from diptych.render.inputs import Facts
from diptych.spec import Document, load
from diptych.spec.convert import document_from, read

EXAMPLES = [
    file
    for file in sorted((Path(__file__).parents[3] / "examples").glob("*.yaml"))
    if not file.name.startswith("local-")
]

# What a RayService does not tell, and defaults that it holds written out.
NOT_TOLD = ("nodes.instance_type", "nodes.capacity_reservation", "access.api_key_env", "eks.tags.team")
WRITTEN_OUT = (
    "image.name",
    "kv_transfer.backend",
    "kv_transfer.kv_buffer_device",
    "nodes.tolerations",
    "resources.cpus",
    "resources.efa",
    "resources.shared_memory",
)


def differences(one: Any, other: Any, path: str = "") -> Iterator[str]:
    if isinstance(one, dict) and isinstance(other, dict):
        for name in {**one, **other}:
            yield from differences(one.get(name), other.get(name), f"{path}.{name}".removeprefix("."))
    elif one != other:
        yield path


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_a_rendered_document_comes_back(file: Path) -> None:
    document = load(file, environ={})
    text = render_one(document, Facts(serving_archive=b"x"), "rayservice")
    values, remarks = document_from(read(text, "rayservice.yaml"), on=document.on)
    again = Document.model_validate(values)
    for path in differences(document.model_dump(), again.model_dump()):
        added = (
            path.startswith("engine_kwargs.")
            and path.removeprefix("engine_kwargs.") not in document.engine_kwargs
        )
        assert path.endswith((*NOT_TOLD, *WRITTEN_OUT)) or added, path
    assert {each.do for each in remarks} <= {
        "",
        "set nodes.instance_type",
        "set eks.region; default: us-east-2",
    }
