import pytest
from pydantic import ValidationError

from diptych.spec import Document, ModelSection


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
    ],
)
def test_the_name_for_clients_is_the_last_part_of_the_source(source: str, name: str) -> None:
    assert ModelSection(source=source).name == name


def test_a_name_for_clients_that_is_given_stays_as_written() -> None:
    assert ModelSection(source="Qwen/Qwen3-0.6B", name="My/Model:1").name == "My/Model:1"


@pytest.mark.parametrize(
    "source", ["", "s3://bucket/m", "https://hf.co/a/b", "a/b/c", "a b", "../", "-x", "a/", "x" * 300]
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


@pytest.mark.parametrize("written", ["1", 1.0, True, [1]])
def test_a_number_is_not_made_of_something_else(written: object) -> None:
    with pytest.raises(ValidationError):
        Document.model_validate({"prefill": {"num_replicas": written}})
