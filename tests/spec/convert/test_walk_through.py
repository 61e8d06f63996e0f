"""The walk-through's manifest becomes the walk-through's document."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from diptych.spec import Document, Place, load
from diptych.spec.convert import ConversionError, Remark, document_from, read, to_text
from spec.convert.manifest_values import MANIFEST

EXAMPLE = Path(__file__).parents[3] / "examples" / "qwen3.5-9b-g6.yaml"


def converted(**options: Any) -> tuple[Document, list[Remark]]:
    values, remarks = document_from(read(MANIFEST.read_text(), MANIFEST.name), **options)
    return Document.model_validate(values), remarks


def differences(one: Any, other: Any, path: str = "") -> Iterator[str]:
    if isinstance(one, dict) and isinstance(other, dict):
        for name in one:
            yield from differences(one[name], other[name], f"{path}.{name}".removeprefix("."))
    elif one != other:
        yield path


def test_it_is_the_example_as_far_as_the_manifest_says() -> None:
    document, _ = converted(on="eks", instance_type="g6.8xlarge")
    example = load(EXAMPLE, environ={})
    assert set(differences(document.model_dump(), example.model_dump())) == {
        "image.name",  # the same image that Diptych takes by default
        "kubernetes.head_cpus",
        "kubernetes.head_memory",
        "kubernetes.privileged",
        "prefill.resources.shared_memory",  # 8 GiB, the default
        "decode.resources.shared_memory",
    }


def test_on_a_cluster_that_exists_it_keeps_labels_and_shares_of_the_nodes() -> None:
    document, _ = converted()
    assert (document.name, document.on, document.kubernetes.namespace) == (
        "ray-llm",
        "kubernetes",
        "inference",
    )
    assert document.nodes_for("decode").selector == {"role": "gpu-worker"}
    assert document.kubernetes.head_selector == {"role": "system"}
    assert (document.kubernetes.head_cpus, document.kubernetes.head_memory) == (3, 12 * 2**30)
    assert document.kubernetes.privileged == "always"
    assert document.image.name == "public.ecr.aws/deep-learning-containers/ray:serve-llm-cuda-v1.0"
    for phase in document.phases.values():
        resources = phase.resources
        assert (resources.gpus, resources.efa, resources.cpus) == (1, 1, 28)
        assert (resources.memory, resources.shared_memory) == (100 * 2**30, 8 * 2**30)


def test_what_is_lost_is_the_model_cache_alone() -> None:
    _, remarks = converted()
    [lost] = [each for each in remarks if each.do]
    assert lost == Remark(
        "worker group gpu-workers: volume model-cache",
        "it mounts /mnt/model-cache of the node at /root/.cache/huggingface, "
        "and Diptych stages the model on each node itself",
        "set staging.path to /mnt/model-cache if the model is to be kept there",
    )


def test_what_it_says_in_vain_is_named_with_the_reason() -> None:
    _, remarks = converted()
    reasons = {each.where: each.why for each in remarks}
    assert reasons["spec.serviceUnhealthySecondThreshold"] == "deprecated, and KubeRay ignores it"
    assert "prefill_config.engine_kwargs.kv_transfer_config.engine_id" in reasons
    assert "decode_config.engine_kwargs.kv_transfer_config.kv_role" in reasons
    assert "worker group gpu-workers: env.FI_PROVIDER" in reasons
    assert reasons["Namespace inference"] == "a document describes the RayService alone"


def test_the_text_is_short_loads_and_says_the_same(tmp_path: Path) -> None:
    values, _ = document_from(read(MANIFEST.read_text(), MANIFEST.name))
    text = to_text(values, ["A heading."])
    file = tmp_path / "diptych.yaml"
    file.write_text(text)
    assert load(file, environ={}) == Document.model_validate(values)
    assert text.startswith("# A heading.\nversion: 1\nname: ray-llm\non: kubernetes\n")
    assert len(text.splitlines()) < 35
    assert yaml.safe_load(text)["kv_transfer"] == {"backend": "LIBFABRIC"}


def mappings(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict):
        yield path
    for step, child in (
        value.items() if isinstance(value, dict) else enumerate(value if isinstance(value, list) else [])
    ):
        yield from mappings(child, (*path, step))


SERVICE: dict[str, Any] = next(
    each for each in yaml.safe_load_all(MANIFEST.read_text()) if each["kind"] == "RayService"
)
SERVE: dict[str, Any] = yaml.safe_load(SERVICE["spec"]["serveConfigV2"])
# What is left out as a whole, and what Kubernetes itself fills in.
WHOLE = {
    "ports",
    "lifecycle",
    "metadata",
    "valueFrom",
    "volumeMounts",
    "volumes",
    "kv_connector_extra_config",
}


def with_serve(serve: dict[str, Any]) -> dict[str, Any]:
    return SERVICE | {"spec": SERVICE["spec"] | {"serveConfigV2": yaml.safe_dump(serve)}}


@pytest.mark.parametrize(
    ("inner", "path"),
    [(False, path) for path in mappings(SERVICE) if not WHOLE & set(path)]
    + [(True, path) for path in mappings(SERVE)],
    ids=str,
)
def test_nothing_in_a_manifest_is_passed_over_in_silence(inner: bool, path: tuple[Any, ...]) -> None:
    tree = copy.deepcopy(SERVE if inner else SERVICE)
    holder: Any = tree
    for step in path:
        holder = holder[step]
    holder["x_unknown"] = "y"
    before = document_from([SERVICE])
    values, remarks = document_from([with_serve(tree) if inner else tree])
    assert values != before[0] or any("x_unknown" in each.where for each in remarks)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    for step, child in (
        value.items() if isinstance(value, dict) else enumerate(value if isinstance(value, list) else [])
    ):
        yield from places(child, (*path, step))


@settings(max_examples=200, deadline=None)
@given(
    where=st.sampled_from(
        [(False, path) for path in places(SERVICE)] + [(True, path) for path in places(SERVE)]
    ),
    junk=st.sampled_from(
        [None, 5, -1, 1.5, True, "x", "{0}", [], {}, [1], [None], {"a": 1}, [{"a": 1}], [[]], {"name": 5}]
    ),
    on=st.sampled_from(["kubernetes", "eks", "local"]),
)
def test_whatever_stands_in_a_manifest_gives_a_document_that_loads_or_one_clear_error(
    where: tuple[bool, tuple[Any, ...]], junk: Any, on: Place
) -> None:
    inner, path = where
    tree = copy.deepcopy(SERVE if inner else SERVICE)
    holder: Any = tree
    for step in path[:-1]:
        holder = holder[step]
    holder[path[-1]] = junk
    try:
        values, _ = document_from([with_serve(tree) if inner else tree], on=on)
    except ConversionError as error:
        assert error.hint or "serveConfigV2" in error.message
    else:
        Document.model_validate(values)
