"""The files that a document stands for: which there are, and that any valid document makes valid ones."""

import re
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from diptych import __version__
from diptych.catalog.instances import instance_types
from diptych.errors import DocumentError
from diptych.models import ModelShape, shipped_config
from diptych.render.bundle import KINDS, render, render_one
from diptych.render.inputs import Facts
from diptych.render.serve import cluster_serve_config
from diptych.spec import Document
from render.golden_documents import ARCHIVE, DOCUMENTS, example
from render.manifests import check, objects_in

FACTS = Facts(serving_archive=ARCHIVE)
CERTIFICATE = "arn:aws:acm:us-east-2:123456789012:certificate/0b1c2d3e-0000-4000-8000-123456789abc"
EFA_TYPES = sorted(name for name, each in instance_types().items() if each.gpus)


def document(**fields: Any) -> Document:
    return Document.model_validate({"model": "Qwen/Qwen3-8B"} | fields)


def test_each_place_gets_the_files_that_it_needs_in_the_order_in_which_it_needs_them() -> None:
    always = [
        "namespace.yaml",
        "kuberay-values.yaml",
        "policies.yaml",
        "rayservice.yaml",
        "serve-config.yaml",
    ]
    assert [*render(document(), FACTS)] == ["serve-config.yaml"]
    assert [*render(document(on="kubernetes"), FACTS)] == [*always, "monitoring.yaml"]
    assert [*render(document(on="eks", monitoring=False), FACTS)] == [
        *("cluster.yaml", "efa-security-group.yaml"),
        *always,
    ]


def test_files_that_few_documents_need_are_there_when_they_do() -> None:
    files = render(
        document(
            on="eks",
            nodes={"instance_type": "g7e.8xlarge"},  # eksctl's EFA plugin does not run on it
            image={"name": "mine:1", "packages": ["accelerate"]},
            access={"expose": "internal-lb", "tls_certificate_arn": CERTIFICATE},
        ),
        FACTS,
    )
    assert {"efa-plugin-values.yaml", "Dockerfile", "exposure.yaml"} <= {*files}


def test_every_file_says_what_it_is_and_what_made_it_from_what() -> None:
    for name in DOCUMENTS:
        for text in render(*example(name)).values():
            assert re.match(rf"(# .+\n)+# Made by diptych {__version__} from {name}.yaml;", text)


def test_one_file_is_had_by_its_kind() -> None:
    assert len({kind.name for kind in KINDS}) == len({kind.file for kind in KINDS}) == len(KINDS)
    assert (
        render_one(document(on="eks"), FACTS, "rayservice")
        == render(document(on="eks"), FACTS)["rayservice.yaml"]
    )


def test_a_kind_that_is_unknown_or_not_needed_is_refused_in_words() -> None:
    with pytest.raises(DocumentError, match="'rayservices'") as unknown:
        render_one(document(), FACTS, "rayservices")
    assert "rayservice," in unknown.value.hint
    with pytest.raises(DocumentError, match=r"needs no cluster\.yaml"):
        render_one(document(), FACTS, "eksctl")


def test_the_service_file_names_the_secrets_that_it_refers_to() -> None:
    text = render_one(document(on="eks", model={"source": "a/b", "token_env": "HF"}), FACTS, "rayservice")
    head = text.partition("apiVersion")[0]
    assert "diptych-api-keys" in head
    assert "diptych-hf-token" in head


def test_the_service_file_says_that_a_branch_may_move() -> None:
    def head(facts: Facts = FACTS, **fields: Any) -> str:
        return render_one(document(on="eks", **fields), facts, "rayservice").partition("apiVersion")[0]

    commit = "0123456789abcdef0123456789abcdef01234567"
    may_move = "which may move"
    assert may_move in head()
    assert f"what dev is when it joins, {may_move}" in head(model={"source": "a/b", "revision": "dev"})
    assert may_move not in head(model={"source": "a/b", "revision": commit})
    assert may_move not in head(replace(FACTS, model_revision=commit))
    assert may_move not in head(model="s3://bucket/folder")
    assert may_move not in head(staging={"enabled": False})


def test_the_serve_configuration_of_its_own_is_the_one_in_the_service() -> None:
    files = render(document(on="eks"), FACTS)
    service = objects_in({"r.yaml": files["rayservice.yaml"]})[-1]
    assert yaml.safe_load(service["spec"]["serveConfigV2"]) == yaml.safe_load(files["serve-config.yaml"])


def test_the_configuration_for_this_machine_has_what_the_document_says_and_no_more() -> None:
    text = render(document(decode={"kv_cache_memory": "1GiB"}, access={"api_key_file": "/k"}), FACTS)
    args = yaml.safe_load(text["serve-config.yaml"])["applications"][0]["args"]
    assert args["decode_config"]["engine_kwargs"]["kv_cache_memory_bytes"] == 2**30
    assert "kv_cache_memory_bytes" not in args["prefill_config"]["engine_kwargs"]
    assert args["access"] == {"api_key_file": "/k"}


# Any valid document ---------------------------------------------------------------------------------------------

SIZES = st.sampled_from(["64MiB", "8GiB", "100GiB", "1500MiB"])
REPLICAS = st.integers(1, 9)


def some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """A mapping with any of these fields."""
    return st.fixed_dictionaries({}, optional=fields)


AUTOSCALING = st.tuples(st.integers(0, 3), st.integers(0, 5)).map(
    lambda bounds: {"min_replicas": bounds[0], "max_replicas": max(1, sum(bounds)), "upscale_delay_s": 1.5}
)
NODES = some(
    instance_type=st.sampled_from(EFA_TYPES),
    count=st.integers(1, 20),
    zone=st.just("us-east-2b"),
    volume_size=st.just("300GiB"),
    selector=st.just({"example.com/pool": "gpu"}),
    tolerations=st.sampled_from(
        [[], [{"key": "team", "operator": "Equal", "value": "a", "effect": "NoExecute"}]]
    ),
)
RESOURCES = some(
    cpus=st.integers(1, 190),
    memory=SIZES,
    gpus=st.integers(1, 16),
    efa=st.integers(0, 32),
    shared_memory=SIZES,
    hugepages_2mi=SIZES,
)
ENGINE = some(
    tensor_parallel_size=st.sampled_from([1, 2, 4, 8, 16]),
    data_parallel_size=st.sampled_from([1, 2]),
    max_model_len=st.integers(128, 65536),
    dtype=st.sampled_from(["bfloat16", "float16"]),
)
PHASE = some(
    num_replicas=REPLICAS,
    autoscaling_config=AUTOSCALING,
    max_ongoing_requests=st.integers(1, 512),
    engine_kwargs=ENGINE,
    nodes=NODES,
    resources=RESOURCES,
    kv_cache_memory=SIZES,
)
MODEL = st.sampled_from(
    [
        {"source": "Qwen/Qwen3.5-9B", "revision": "refs/pr/1"},
        {"source": "gpt2", "token_secret": "hub/read"},
        {"source": "s3://my-bucket/some/folder/", "name": "mine"},
        {"source": "/opt/model", "name": "mine"},
    ]
)
ACCESS = st.sampled_from(
    [
        {},
        {"port": 9000, "api_key_secret": "keys"},
        {"expose": "gateway", "hostname": "a.example.com", "tls_secret": "tls", "gateway_class": "envoy"},
    ]
)
IMAGE = st.sampled_from(
    [
        {},
        {
            "packages": ["accelerate==1.10.0"],
            "name": "registry.example.com/a/b:1.0",
            "pull_secret": "registry",
        },
        {"name": "mine@sha256:0123", "ray_version": "2.60.0", "pull_policy": "Always"},
    ]
)
KUBERNETES = some(
    namespace=st.sampled_from(["inference", "a" * 63]),
    privileged=st.sampled_from(["auto", "always", "never"]),
    upgrade=st.sampled_from(["in-place", "new-cluster"]),
    head_memory=SIZES,
    head_selector=st.just({"role": "system"}),
)
EKS = some(
    zone=st.sampled_from(["auto", "us-east-2a"]),
    kubernetes_version=st.sampled_from(["1.33", "1.35"]),
    public_access_cidrs=st.just(["203.0.113.7/32"]),
    private_access_only=st.booleans(),
    tags=st.just({"team": "a b"}),
)
DOCUMENTS_OF_CLUSTERS = st.fixed_dictionaries(
    {
        "on": st.sampled_from(["kubernetes", "eks"]),
        "name": st.sampled_from(["a", "a-1", "n" * 40]),
        "model": MODEL,
        "access": ACCESS,
        "image": IMAGE,
    },
    optional={
        "topology": st.sampled_from(["split", "aggregated"]),
        "engine_kwargs": ENGINE,
        "nodes": NODES,
        "prefill": PHASE,
        "decode": PHASE,
        "kv_transfer": some(backend=st.sampled_from(["auto", "UCX", "LIBFABRIC"]), lease_s=st.just(60)),
        "staging": some(enabled=st.booleans(), path=st.just("/data/models")),
        "kubernetes": KUBERNETES,
        "eks": EKS,
        "monitoring": st.just(False),
    },
).map(Document.model_validate)
SHAPE = ModelShape.from_config(shipped_config("Qwen/Qwen3.5-9B") or {})
ALL_FACTS = st.builds(
    Facts,
    shape=st.sampled_from([None, SHAPE]),
    checkpoint_bytes=st.sampled_from([None, 20 * 10**9]),
    model_revision=st.sampled_from([None, "0123456789abcdef0123456789abcdef01234567"]),
    zone=st.sampled_from([None, "us-east-2c"]),
    public_access_cidrs=st.sampled_from([(), ("203.0.113.7/32",)]),
    serving_archive=st.just(ARCHIVE),
)
SOME_DOCUMENTS = settings(
    max_examples=30, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)


@SOME_DOCUMENTS
@given(any_document=DOCUMENTS_OF_CLUSTERS, facts=ALL_FACTS)
def test_any_document_makes_objects_that_pass_their_schemas_and_the_same_ones_each_time(
    any_document: Document, facts: Facts
) -> None:
    files = render(any_document, facts)
    assert files == render(any_document, facts)
    objects = objects_in(files)
    names = Counter((each["kind"], each["metadata"].get("name")) for each in objects)
    assert max(names.values()) == 1
    for each in objects:
        check(each)


@SOME_DOCUMENTS
@given(any_document=DOCUMENTS_OF_CLUSTERS, facts=ALL_FACTS)
def test_any_document_makes_a_serve_configuration_that_ray_takes(
    any_document: Document, facts: Facts
) -> None:
    schema, llm = pytest.importorskip("ray.serve.schema"), pytest.importorskip("ray.serve.llm")
    parsed = schema.ServeDeploySchema.model_validate(cluster_serve_config(any_document, facts))
    for name, config in parsed.applications[0].args.items():
        if name.endswith("config"):
            llm.LLMConfig.model_validate(config)
