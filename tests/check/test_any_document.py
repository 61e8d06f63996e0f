"""Whatever a document says, as long as it loads: a check ends with findings, never with an exception."""

from datetime import date
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from diptych.catalog.arguments import VERSIONS, engine_arguments
from diptych.check import Facts, Machine, Subject, check_document, memory_of, transfer_of
from diptych.check.facts import Installed
from diptych.check.find_config import find_model
from diptych.spec import Document, LoadedDocument

MODELS = ("embedded", "Qwen/Qwen3-0.6B", "Qwen/Qwen3.5-9B", "some/model", "/a/folder", "s3://bucket/m")
TYPES = ("g6.8xlarge", "g6.xlarge", "g6.12xlarge", "p5en.48xlarge", "g4dn.8xlarge", "m7i.xlarge", "z9.large")
ARGUMENTS = sorted(
    set().union(*(engine_arguments(version) or {} for version in VERSIONS)) - {"model", "revision"}
)
READ = (
    *(
        "max_model_len",
        "block_size",
        "dtype",
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "data_parallel_size",
    ),
    *(
        "kv_cache_dtype",
        "speculative_config",
        "gpu_memory_utilization",
        "max_num_batched_tokens",
        "max_num_seqs",
    ),
    *(
        "enable_prefix_caching",
        "limit_mm_per_prompt",
        "decode_context_parallel_size",
        "kv_cache_memory_bytes",
    ),
)
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 10**6),
    st.floats(allow_nan=False, allow_infinity=False, width=16),
    st.sampled_from(["auto", "bfloat16", "fp8", "", "16"]),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(
        st.sampled_from(["method", "model", "image", "x"]), st.integers() | st.text(max_size=3), max_size=2
    ),
)
KWARGS = st.dictionaries(st.sampled_from(READ) | st.sampled_from(ARGUMENTS), VALUES, max_size=5)
NODES = st.fixed_dictionaries(
    {},
    optional={
        "instance_type": st.sampled_from(TYPES),
        "count": st.integers(1, 9),
        "zone": st.sampled_from(["us-east-2a", "us-west-2b"]),
        "market": st.sampled_from(["spot", "on-demand", "capacity-block"]),
    },
)
PHASE = st.fixed_dictionaries(
    {},
    optional={
        "num_replicas": st.integers(1, 20),
        "autoscaling_config": st.fixed_dictionaries(
            {"max_replicas": st.integers(1, 9)}, optional={"min_replicas": st.integers(0, 9)}
        ),
        "max_ongoing_requests": st.integers(1, 99),
        "engine_kwargs": KWARGS,
        "nodes": NODES,
        "resources": st.fixed_dictionaries(
            {},
            optional={
                "gpus": st.integers(1, 16),
                "efa": st.integers(0, 32),
                "memory": st.integers(2**20, 2**41),
            },
        ),
        "kv_cache_memory": st.integers(2**20, 2**36),
    },
)
DOCUMENTS = st.fixed_dictionaries(
    {"on": st.sampled_from(["local", "kubernetes", "eks"]), "model": st.sampled_from(MODELS)},
    optional={
        "topology": st.sampled_from(["split", "aggregated"]),
        "engine_kwargs": KWARGS,
        "prefill": PHASE,
        "decode": PHASE,
        "nodes": NODES,
        "kv_transfer": st.fixed_dictionaries(
            {},
            optional={
                "backend": st.sampled_from(["auto", "UCX", "LIBFABRIC"]),
                "ports": st.fixed_dictionaries({}, optional={"prefill": st.integers(1, 65535)}),
                "kv_connector_extra_config": st.dictionaries(
                    st.text("ab_", min_size=1, max_size=3), VALUES, max_size=2
                ),
            },
        ),
        "image": st.fixed_dictionaries(
            {"name": st.sampled_from(["a/b", "a/b:1", "a:5000/b@sha256:00"])},
            optional={
                "ray_version": st.sampled_from(["2.58.0", "1.0.0"]),
                "vllm_version": st.sampled_from(["0.26.0", "9.9.9"]),
            },
        ),
    },
)


def _is_document(values: dict[str, Any]) -> bool:
    try:
        Document.model_validate(values)
    except ValidationError:
        return False
    return True


@settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
@given(values=DOCUMENTS.filter(_is_document), cuda=st.booleans())
def test_a_check_of_any_document_ends_with_findings(values: dict[str, Any], cuda: bool) -> None:
    document = Document.model_validate(values)
    loaded = LoadedDocument(document, {}, None)
    installed = Installed("2.60.0", "0.29.0", "1.3.2", cuda=cuda)
    machine = Machine(2**35, (2**35,) if cuda else ())
    facts = Facts(date(2026, 11, 29), find_model(document, offline=True, environ={}), installed, machine)
    for finding in check_document(loaded, facts):
        assert finding.what
        assert finding.do
        assert not finding.what.endswith(".")
        assert "None" not in finding.what
    subject = Subject(loaded, facts)
    for view in subject.phases:
        memory_of(view)
    transfer_of(subject)
