import pytest
from pydantic import ValidationError

from diptych.spec import AutoscalingSection, Document, EksSection, ModelSection, PhaseSection


def test_a_document_without_anything_serves_the_embedded_model_split_on_this_machine() -> None:
    document = Document()
    assert (document.version, document.name, document.on, document.topology) == (
        1,
        "diptych",
        "local",
        "split",
    )
    assert document.model.source == "embedded"
    assert document.model.name == "smollm2-135m-instruct"
    assert document.prefill.num_replicas == document.decode.num_replicas == 1
    assert document.kv_transfer.backend == "auto"
    assert document.kv_transfer.lease_s == 120
    assert document.access.port is None
    assert document.access.api_key_file is None


def test_a_document_does_not_change() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Document().name = "other"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("Qwen/Qwen3-0.6B", "qwen3-0.6b"),
        ("gpt2", "gpt2"),
        ("someone/Embedded", "embedded"),
        ("/models/My-Model/", "my-model"),
        ("./My-Model", "my-model"),
        ("~/m/LLM", "llm"),
        ("s3://bucket/models/My-LLM/", "my-llm"),
    ],
)
def test_the_name_for_clients_is_the_last_part_of_the_source(source: str, name: str) -> None:
    assert ModelSection(source=source).name == name


def test_a_name_for_clients_that_is_given_stays_as_written() -> None:
    assert ModelSection(source="Qwen/Qwen3-0.6B", name="My/Model:1").name == "My/Model:1"


@pytest.mark.parametrize(
    "source",
    [
        "",
        "s3://",
        "s3://UPPER/m",
        "gs://bucket/m",
        "https://hf.co/a/b",
        "a/b/c",
        "a b",
        "../",
        "-x",
        "a/",
        "x" * 300,
    ],
)
def test_a_source_that_can_not_be_served_is_refused(source: str) -> None:
    with pytest.raises(ValidationError):
        ModelSection(source=source)


def test_a_phase_takes_the_shared_engine_arguments_and_its_own_over_them() -> None:
    document = Document.model_validate(
        {
            "engine_kwargs": {"max_model_len": 4096, "dtype": "float32", "hf_overrides": {"a": 1}},
            "decode": {"engine_kwargs": {"max_num_seqs": 8, "hf_overrides": {"b": 2}}},
        }
    )
    shared = {"max_model_len": 4096, "dtype": "float32", "hf_overrides": {"a": 1}}
    assert document.engine_kwargs_for("prefill") == shared
    assert document.engine_kwargs_for("decode") == {**shared, "hf_overrides": {"b": 2}, "max_num_seqs": 8}


def test_a_phases_own_nodes_win_over_the_shared_ones_field_by_field() -> None:
    document = Document.model_validate(
        {
            "nodes": {"instance_type": "g6.8xlarge", "count": 1, "selector": {"a": "1"}},
            "prefill": {"nodes": {"instance_type": "g6e.8xlarge", "selector": {"b": "2"}}},
        }
    )
    prefill = document.nodes_for("prefill")
    assert (prefill.instance_type, prefill.count, prefill.selector) == ("g6e.8xlarge", 1, {"b": "2"})
    assert document.nodes_for("decode") == document.nodes


def test_the_aggregated_topology_has_the_decode_phase_alone() -> None:
    assert list(Document().phases) == ["prefill", "decode"]
    assert list(Document(topology="aggregated").phases) == ["decode"]


def test_replicas_are_counted_by_autoscaling_where_there_is_one() -> None:
    fixed = PhaseSection(num_replicas=3)
    assert (fixed.least_replicas, fixed.most_replicas) == (3, 3)
    scaled = PhaseSection(autoscaling_config=AutoscalingSection(min_replicas=0, max_replicas=4))
    assert (scaled.least_replicas, scaled.most_replicas) == (0, 4)


def test_the_cluster_is_named_after_the_service_unless_it_has_a_name() -> None:
    assert Document(name="llm").cluster_name == "llm"
    assert Document(name="llm", eks=EksSection(cluster="shared")).cluster_name == "shared"


@pytest.mark.parametrize(
    ("source", "on_hub"), [("a/b", True), ("embedded", False), ("./m", False), ("s3://bucket/m", False)]
)
def test_only_a_hugging_face_id_is_on_the_hub(source: str, on_hub: bool) -> None:
    assert ModelSection(source=source).is_on_hub is on_hub


@pytest.mark.parametrize("written", ["1", 1.0, True, [1]])
def test_a_number_is_not_made_of_something_else(written: object) -> None:
    with pytest.raises(ValidationError):
        Document.model_validate({"prefill": {"num_replicas": written}})
