"""The documents in examples/ load, are complete on their own, and are what they say."""

from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from diptych.spec import Document, json_schema, load
from diptych.spec.source import parse

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_an_example_loads_fits_the_schema_and_explains_itself(file: Path) -> None:
    document = load(file, environ={})
    assert document != Document()
    Draft202012Validator(json_schema()).validate(parse(file.read_text()).value)
    lines = file.read_text().splitlines()
    assert lines[0].startswith("# ")
    assert sum("  # " in line for line in lines) >= 2
    assert len(lines) <= 35
    assert max(map(len, lines)) <= 120


def test_the_readme_or_the_reference_names_every_example() -> None:
    text = (ROOT / "docs" / "document.md").read_text() + (ROOT / "README.md").read_text()
    assert [file.name for file in EXAMPLES if f"examples/{file.name}" not in text] == []


def test_the_walk_through_has_exactly_its_settings() -> None:
    document = load(ROOT / "examples" / "qwen3.5-9b-g6.yaml", environ={})
    assert (document.name, document.kubernetes.namespace) == ("ray-llm", "inference")
    assert (document.model.source, document.model.name) == ("Qwen/Qwen3.5-9B", "qwen3.5-9b")
    assert document.topology == "split"
    for phase in ("prefill", "decode"):
        assert document.engine_kwargs_for(phase) == {
            "max_model_len": 4096,
            "dtype": "bfloat16",
            "gpu_memory_utilization": 0.9,
            "enforce_eager": True,
        }
        assert document.nodes_for(phase).instance_type == "g6.8xlarge"
        assert document.phases[phase].num_replicas == 1
    assert document.kv_transfer.backend == "LIBFABRIC"
    assert (document.eks.system_nodes.instance_type, document.eks.system_nodes.count) == ("m7i.xlarge", 1)
    assert document.eks.zone == "auto"


def test_the_walk_through_is_shorter_than_the_manifest_it_stands_for() -> None:
    example = (ROOT / "examples" / "qwen3.5-9b-g6.yaml").read_text().splitlines()
    manifest = (ROOT / "tests" / "spec" / "manifests" / "rayservice-qwen3.5-9b.yaml").read_text().splitlines()
    assert len(example) * 4 < len(manifest)


def test_each_phase_may_have_its_own_gpu() -> None:
    document = load(ROOT / "examples" / "g6e-prefill-g6-decode.yaml", environ={})
    assert document.nodes_for("prefill").instance_type == "g6e.8xlarge"
    assert document.nodes_for("decode").instance_type == "g6.8xlarge"


def test_two_prefill_and_three_decode_replicas_come_out_of_a_reservation() -> None:
    document = load(ROOT / "examples" / "2p3d-p5en.yaml", environ={})
    assert [phase.num_replicas for phase in document.phases.values()] == [2, 3]
    assert all(document.nodes_for(phase).capacity_reservation for phase in document.phases)
