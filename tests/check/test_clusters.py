"""Transport, ports, replicas, KubeRay, access and places: what each rule lets pass, and what not."""

from collections.abc import Callable
from datetime import date

import pytest

from diptych.catalog.engines import KUBERNETES_VERSIONS
from diptych.check import Finding

Codes = Callable[..., set[str]]
Check = Callable[..., list[Finding]]

EKS = "on: eks\nmodel: Qwen/Qwen3-0.6B\n"
KUBERNETES = "on: kubernetes\nmodel: Qwen/Qwen3-0.6B\n"


@pytest.mark.parametrize("type_name", ["g6.8xlarge", "g6e.8xlarge", "p5en.48xlarge"])
def test_a_plain_document_on_nodes_with_efa_raises_nothing_about_transport(
    codes: Codes, type_name: str
) -> None:
    assert not {code for code in codes(f"{EKS}nodes: {{instance_type: {type_name}}}\n") if code[0] in "TPAC"}


def test_the_nearest_type_with_efa_is_named(check: Check) -> None:
    text = f"{EKS}nodes: {{instance_type: g6.xlarge}}\nkv_transfer: {{backend: LIBFABRIC}}\n"
    found = [each for each in check(text) if each.code == "T401"]
    assert len(found) == 2
    assert all("g6.8xlarge" in each.do for each in found)


def test_a_type_that_nobody_knows_is_not_said_to_lack_efa(codes: Codes) -> None:
    text = f"{EKS}nodes: {{instance_type: g9.8xlarge}}\nkv_transfer: {{backend: LIBFABRIC}}\n"
    assert {"C802"} == codes(text) & {"C802", "T401", "T403"}


def test_pods_on_other_clusters_must_ask_for_efa(check: Check) -> None:
    libfabric = "kv_transfer: {backend: LIBFABRIC}\n"
    found = [each for each in check(KUBERNETES + libfabric) if each.code == "T401"]
    assert {each.do for each in found} == {
        "set prefill.resources.efa to the EFA interfaces of a node",
        "set decode.resources.efa to the EFA interfaces of a node",
    }
    asked = "prefill: {resources: {efa: 1}}\ndecode: {resources: {efa: 1}}\n"
    assert "T401" not in {each.code for each in check(KUBERNETES + libfabric + asked)}


def test_efa_that_is_turned_down_is_not_there(check: Check) -> None:
    text = f"{EKS}prefill: {{resources: {{efa: 0}}}}\nkv_transfer: {{backend: LIBFABRIC}}\n"
    found = next(each for each in check(text) if each.code == "T401")
    assert "remove prefill.resources.efa" in found.do
    assert "T403" in {each.code for each in check(f"{EKS}prefill: {{resources: {{efa: 0}}}}\n")}


def test_libfabric_is_not_for_this_machine(codes: Codes) -> None:
    assert "T401" in codes("kv_transfer: {backend: LIBFABRIC}\n")
    assert "T401" not in codes("kv_transfer: {backend: UCX}\n")


@pytest.mark.parametrize(
    ("ports", "replicas", "code"),
    [
        ("{prefill: 20000, decode: 20004}", 4, None),
        ("{prefill: 20000, decode: 20003}", 4, "T406"),
        ("{prefill: 22003, decode: 22000}", 4, "T406"),
        ("{prefill: 20000, decode: 20000}", 1, "T406"),
        ("{prefill: 6376}", 4, "T407"),
        ("{decode: 52364}", 4, "T407"),
        ("{prefill: 10002}", 1, "T407"),
        ("{prefill: 19999}", 1, "T407"),
        ("{prefill: 32766}", 4, "T408"),
        ("{decode: 65533}", 4, "T415"),
        ("{decode: 61000}", 4, None),
    ],
)
def test_ports(codes: Codes, ports: str, replicas: int, code: str | None) -> None:
    text = f"{EKS}prefill: {{num_replicas: {replicas}}}\ndecode: {{num_replicas: {replicas}}}\n"
    found = codes(f"{text}kv_transfer: {{ports: {ports}}}\n") & {"T406", "T407", "T408", "T415"}
    assert found - {"T408"} == ({code} if code and code != "T408" else set())
    assert code != "T408" or "T408" in found


def test_every_gpu_of_a_replica_takes_a_port(codes: Codes) -> None:
    text = (
        "on: eks\nmodel: Qwen/Qwen3-8B\nnodes: {instance_type: g6.12xlarge}\nengine_kwargs: {tensor_parallel_size: 4}\n"
        "kv_transfer: {ports: {prefill: 20000, decode: %d}}\n"
    )
    assert "T406" in codes(text % 20003)
    assert "T406" not in codes(text % 20004)


def test_ranks_take_two_ports_each_whichever_replica_they_are_of(codes: Codes) -> None:
    text = (
        "on: eks\nmodel: Qwen/Qwen3-8B\nnodes: {instance_type: g6.12xlarge}\nengine_kwargs: {data_parallel_size: 4}\n"
        "prefill: {num_replicas: 3}\nkv_transfer: {ports: {prefill: 20000, decode: %d}}\n"
    )
    assert "T406" in codes(text % 20006)
    assert "T406" not in codes(text % 20007)


@pytest.mark.parametrize(
    ("ranks", "replicas", "topology", "told"),
    [(2, 2, "split", True), (2, 1, "split", False), (4, 2, "split", False), (2, 2, "aggregated", False)],
)
def test_data_parallel_replicas_in_one_pod_would_meet_on_the_same_ports(
    codes: Codes, ranks: int, replicas: int, topology: str, told: bool
) -> None:
    text = f"{EKS}topology: {topology}\nnodes: {{instance_type: g6.12xlarge}}\n"
    decode = f"decode: {{num_replicas: {replicas}, engine_kwargs: {{data_parallel_size: {ranks}}}}}\n"
    assert ("T432" in codes(text + decode)) is told


@pytest.mark.parametrize("topology", ["split", "aggregated"])
def test_data_parallelism_is_not_for_this_machine(check: Check, topology: str) -> None:
    text = f"topology: {topology}\ndecode: {{num_replicas: 2, engine_kwargs: {{data_parallel_size: 2}}}}\n"
    [found] = [each for each in check(text) if each.code == "C831"]
    assert found.field == "decode.engine_kwargs.data_parallel_size"
    assert "set decode.num_replicas to 4" in found.do
    assert "C831" not in {
        each.code for each in check(text.replace("data_parallel_size: 2", "data_parallel_size: 1"))
    }


def test_kv_cache_over_tcp_is_told_with_the_nearest_type_that_has_efa(check: Check, codes: Codes) -> None:
    slow = f"{EKS}nodes: {{instance_type: g6.4xlarge}}\n"
    [found] = [each for each in check(slow) if each.code == "T431"]
    assert (found.severity, found.field) == ("warning", "nodes.instance_type")
    assert "0.3 GB/s" in found.what
    assert found.do == "use nodes.instance_type: g6.8xlarge"
    for meant in (
        "topology: aggregated",
        "kv_transfer: {backend: UCX}",
        "nodes: {instance_type: g6.8xlarge}",
    ):
        text = f"{EKS}{meant}\n" if meant.startswith("nodes") else f"{slow}{meant}\n"
        assert "T431" not in codes(text)
    assert "T431" not in codes(KUBERNETES)


@pytest.mark.parametrize(
    ("kwargs", "told"),
    [
        ("tokenizer: Qwen/Qwen3-8B", True),
        ("tokenizer: Qwen/Qwen3-0.6B", False),
        ("tokenizer: /opt/tokenizer", False),
        ("hf_config_path: Qwen/Qwen3-8B", True),
        ("speculative_config: {method: eagle3, model: a/b, num_speculative_tokens: 2}", True),
        ("speculative_config: {method: eagle3, model: /opt/b, num_speculative_tokens: 2}", False),
        ("speculative_config: {method: ngram, model: ngram, num_speculative_tokens: 2}", False),
    ],
)
def test_engines_do_not_ask_the_hub_for_what_is_not_staged(codes: Codes, kwargs: str, told: bool) -> None:
    text = f"{EKS}engine_kwargs: {{{kwargs}}}\n"
    assert ("E631" in codes(text)) is told
    assert "E631" not in codes(f"{text}staging: {{enabled: false}}\n")
    assert "E631" not in codes(text.replace("on: eks", "on: local"))


@pytest.mark.parametrize(
    ("on", "more", "told"),
    [
        ("kubernetes", "", True),
        ("kubernetes", "kubernetes: {service_account_annotations: {eks.amazonaws.com/role-arn: x}}\n", False),
        ("eks", "", False),
    ],
)
def test_pods_on_other_clusters_need_a_right_to_a_bucket(
    codes: Codes, on: str, more: str, told: bool
) -> None:
    assert ("A731" in codes(f"on: {on}\nmodel: s3://bucket/qwen\n{more}")) is told


def test_ports_do_not_matter_where_one_engine_does_both_phases(codes: Codes) -> None:
    assert "T406" not in codes(f"topology: aggregated\n{EKS}kv_transfer: {{ports: {{decode: 20000}}}}\n")


def test_zones(codes: Codes) -> None:
    assert "T409" not in codes(f"{EKS}nodes: {{zone: us-east-2a}}\n")
    assert "T409" not in codes(f"{EKS}prefill: {{nodes: {{zone: us-east-2a}}}}\neks: {{zone: us-east-2a}}\n")
    assert "T409" in codes(f"{EKS}prefill: {{nodes: {{zone: us-east-2a}}}}\neks: {{zone: us-east-2b}}\n")
    assert "T409" not in codes(f"{EKS}prefill: {{nodes: {{zone: us-east-2a}}}}\n")  # auto follows
    assert "T409" in codes(
        f"{KUBERNETES}prefill: {{nodes: {{zone: us-east-2a}}}}\ndecode: {{nodes: {{zone: us-east-2b}}}}\n"
    )


def test_zones_by_the_label_of_the_nodes(codes: Codes) -> None:
    label = "selector: {topology.kubernetes.io/zone: us-east-2%s}"
    text = "%sprefill: {nodes: {%s}}\ndecode: {nodes: {%s}}\n"
    assert "T409" in codes(text % (KUBERNETES, label % "a", label % "b"))
    assert "T409" not in codes(text % (KUBERNETES, label % "a", label % "a"))
    assert "T409" not in codes(f"{KUBERNETES}prefill: {{nodes: {{{label % 'a'}}}}}\n")


def test_a_zone_is_complained_of_where_it_was_written(check: Check) -> None:
    text = f"{EKS}prefill: {{nodes: {{zone: us-east-2b}}}}\neks: {{zone: us-east-2a}}\n"
    found = next(each for each in check(text) if each.code == "T409")
    assert (found.field, found.line) == ("eks.zone", 4)


def test_efa_that_is_turned_off_on_both_sides_is_told(codes: Codes) -> None:
    off = "prefill: {resources: {efa: 0}}\ndecode: {resources: {efa: 0}}\n"
    assert codes(EKS + off) & {"T403", "T418"} == {"T418"}
    assert "T418" not in codes(f"{EKS}nodes: {{instance_type: g6.xlarge}}\n{off}")
    assert codes(f"{EKS}prefill: {{resources: {{efa: 0}}}}\n") & {"T403", "T418"} == {"T403"}


def test_efa_that_is_refused_is_not_blamed_on_the_type(check: Check) -> None:
    refused = "prefill: {resources: {efa: 0}}\n"
    for code, more in (("T403", ""), ("T401", "kv_transfer: {backend: LIBFABRIC}\n")):
        found = [each for each in check(EKS + refused + more) if each.code == code]
        assert [(each.field, "g6.8xlarge" in each.what) for each in found] == [
            ("prefill.resources.efa", False)
        ]


def test_a_type_by_the_label_of_the_nodes_is_a_type(codes: Codes) -> None:
    label = "nodes: {selector: {node.kubernetes.io/instance-type: %s}}\n"
    assert not codes(KUBERNETES + label % "g6.8xlarge") & {"M304", "T401", "T403", "C802"}
    assert "T402" in codes(KUBERNETES + label % "g6.8xlarge" + "kv_transfer: {backend: UCX}\n")
    assert codes(KUBERNETES + label % "Standard_NC24ads") & {"M304", "C802"} == {"M304"}


@pytest.mark.parametrize(
    ("port", "found"),
    [
        (8000, False),
        (9000, False),
        (6379, True),
        (8080, True),
        (8265, True),
        (20000, True),
        (20001, False),
        (22000, True),
    ],
)
def test_the_endpoints_port(codes: Codes, port: int, found: bool) -> None:
    assert ("T417" in codes(f"{EKS}access: {{port: {port}}}\n")) is found
    assert "T417" not in codes(f"access: {{port: {port}}}\n")


EVENTS = "kv_events_config: {enable_kv_cache_events: true, endpoint: '%s'}"


@pytest.mark.parametrize(
    ("endpoint", "taken"),
    [
        ("tcp://*:5557", False),  # one engine in each pod
        ("tcp://*:8080", True),
        ("tcp://*:8000", True),
        ("tcp://*:20000", True),
        ("tcp://10.0.0.1:8080", False),  # an engine connects there, and does not listen
        ("ipc:///tmp/events", False),
    ],
)
def test_kv_events_of_engines_with_pods_of_their_own(codes: Codes, endpoint: str, taken: bool) -> None:
    assert ("T416" in codes(f"{EKS}engine_kwargs: {{{EVENTS % endpoint}}}\n")) is taken


def test_kv_events_of_engines_that_share_a_host(codes: Codes) -> None:
    shared = f"engine_kwargs: {{{EVENTS % 'tcp://*:5557'}}}\n"
    apart = "".join(
        f"{phase}: {{engine_kwargs: {{{EVENTS % f'tcp://*:{port}'}}}}}\n"
        for phase, port in (("prefill", 5557), ("decode", 5558))
    )
    pod = f"{EKS}nodes: {{instance_type: g6.12xlarge}}\ndecode: {{num_replicas: %d}}\n{shared}"
    assert "T416" in codes(shared)
    assert "T416" not in codes(apart)
    assert "T416" not in codes(f"topology: aggregated\n{shared}")
    assert "T416" in codes(pod % 2)
    assert "T416" not in codes(pod % 1)
    assert "T416" not in codes(
        shared.replace("enable_kv_cache_events: true", "enable_kv_cache_events: false")
    )


@pytest.mark.parametrize(
    ("size", "found"), [("10GiB", False), ("16GiB", True), ("3MiB", True), ("4MiB", False)]
)
def test_huge_pages_of_one_engine_for_both_phases(codes: Codes, size: str, found: bool) -> None:
    text = f"topology: aggregated\n{EKS}decode: {{resources: {{hugepages_2mi: {size}}}}}\n"
    assert ("T411" in codes(text)) is found


def test_interfaces_of_one_engine_for_both_phases(codes: Codes) -> None:
    text = f"topology: aggregated\n{EKS}decode: {{resources: {{efa: %d}}}}\n"
    assert "T410" in codes(text % 4)
    assert "T410" not in codes(text % 1)


@pytest.mark.parametrize(
    ("size", "gpus", "found"),
    [
        ("64MiB", 1, "K530"),
        ("75MiB", 1, None),
        ("75MiB", 4, "K531"),
        ("512MiB", 1, None),
        ("512MiB", 4, "K531"),
        ("1GiB", 4, None),
        ("16GiB", 4, None),
        ("200GiB", 4, "K530"),
    ],
)
def test_shared_memory(codes: Codes, size: str, gpus: int, found: str | None) -> None:
    text = (
        f"{EKS}nodes: {{instance_type: g6.12xlarge}}\nengine_kwargs: {{tensor_parallel_size: {gpus}}}\n"
        f"prefill: {{resources: {{shared_memory: {size}}}}}\n"
    )
    assert codes(text) & {"K530", "K531"} == ({found} if found else set())


def test_many_engines_should_not_fetch_without_a_token(codes: Codes) -> None:
    unstaged = (
        "on: eks\nmodel: {source: Qwen/Qwen3-0.6B%s}\nstaging: {enabled: false}\ndecode: {num_replicas: %d}\n"
    )
    assert "A715" in codes(unstaged % ("", 7))
    assert "A715" not in codes(unstaged % ("", 6))
    assert "A715" not in codes(unstaged % (", token_secret: hub/token", 7))
    assert "A715" not in codes(f"{EKS}decode: {{num_replicas: 16}}\n")


def test_types_that_are_not_known(check: Check) -> None:
    def told(name: str) -> str:
        found = [each for each in check(f"{EKS}nodes: {{instance_type: {name}}}\n") if each.code == "C802"]
        return f"{found[0].what}; {found[0].do}"

    assert "did you mean g6.8xlarge?" in told("g6.8xlrage")
    assert "did you mean" not in told("g9.8xlarge")
    for arm in ("g5g.8xlarge", "p6e-gb200.36xlarge"):
        assert "ARM" in told(arm)
        assert "did you mean" not in told(arm)


@pytest.mark.parametrize(
    ("eks", "do"),
    [
        ("region: us-esat-2", "did you mean us-east-2?"),
        ("region: us-east-2, zone: us-east-2f", "write us-east-2a to us-east-2c"),
        ("region: us-east-1, zone: us-east-1f", None),
        ("region: us-west-1, zone: us-west-1b", None),
        ("region: us-gov-west-1", None),
        ("region: xx-nowhere-7", "look it up in AWS's list of regions"),
    ],
)
def test_regions_and_zones_that_are_not_known(check: Check, eks: str, do: str | None) -> None:
    found = [each for each in check(f"{EKS}eks: {{{eks}}}\n") if each.code in ("C803", "C814")]
    assert [each.do for each in found] == ([do] if do else [])


def test_huge_pages_need_efa(codes: Codes) -> None:
    asked = "prefill: {resources: {hugepages_2mi: 1GiB}}\n"
    assert "T411" in codes(f"{EKS}nodes: {{instance_type: g6.xlarge}}\n{asked}")
    assert "T411" not in codes(EKS + asked)


@pytest.mark.parametrize(
    ("scaling", "codes_found"),
    [
        ("{min_replicas: 1, max_replicas: 4}", set()),
        ("{min_replicas: 2, initial_replicas: 2, max_replicas: 4}", set()),
        ("{min_replicas: 2, initial_replicas: 1, max_replicas: 4}", {"K506"}),
        ("{min_replicas: 1, initial_replicas: 5, max_replicas: 4}", {"K506"}),
        ("{min_replicas: 5, max_replicas: 4}", {"K506"}),
        ("{min_replicas: 0, max_replicas: 4}", {"K514"}),
        ("{max_replicas: 9}", {"K507"}),
    ],
)
def test_autoscaling(codes: Codes, scaling: str, codes_found: set[str]) -> None:
    text = f"{EKS}decode: {{nodes: {{count: 8}}, autoscaling_config: {scaling}}}\n"
    assert codes(text) & {"K505", "K506", "K507", "K513", "K514"} == codes_found


def test_serves_own_target_counts_where_none_is_given(codes: Codes) -> None:
    text = f"{EKS}decode: {{max_ongoing_requests: %d, autoscaling_config: {{max_replicas: 2}}}}\n"
    assert "K505" in codes(text % 1)
    assert "K505" not in codes(text % 2)


def test_an_upgrade_with_a_second_cluster_needs_twice_the_nodes(codes: Codes) -> None:
    text = f"{EKS}nodes: {{count: %d}}\nkubernetes: {{upgrade: new-cluster}}\n"
    assert "K512" in codes(text % 1)
    assert "K512" not in codes(text % 2)
    assert "K512" in codes(f"{EKS}kubernetes: {{upgrade: new-cluster}}\n")  # as many nodes as pods
    scaled = "prefill: {nodes: {count: 2}}\ndecode: {autoscaling_config: {max_replicas: 4}}\n"
    assert "K512" not in codes(f"{EKS}{scaled}kubernetes: {{upgrade: new-cluster}}\n")


def test_how_many_nodes_a_cluster_that_exists_has_is_not_known(codes: Codes) -> None:
    text = f"{KUBERNETES}kubernetes: {{upgrade: %s}}\n"
    upgrade = {"K512", "K527"}
    assert codes(text % "new-cluster") & upgrade == {"K527"}
    assert codes(text % "in-place") & upgrade == set()
    assert codes(text % "new-cluster" + "nodes: {count: 2}\n") & upgrade == set()
    assert codes(text % "new-cluster" + "nodes: {count: 1}\n") & upgrade == {"K512"}


def test_ranks_over_several_nodes(codes: Codes) -> None:
    text = "on: eks\nmodel: Qwen/Qwen3-8B\nnodes: {instance_type: %s}\nengine_kwargs: {tensor_parallel_size: 4}\n"
    assert codes(text % "g6.12xlarge") & {"K510", "K511"} == set()
    assert codes(text % "g6.8xlarge") & {"K510", "K511"} == {"K511"}
    assert codes(text % "g6.4xlarge") & {"K510", "K511"} == {"K510"}
    pipeline = (
        "topology: aggregated\non: eks\nmodel: Qwen/Qwen3-8B\nengine_kwargs: {pipeline_parallel_size: 2}\n"
    )
    assert codes(pipeline) & {"K510", "K511", "P208"} == set()


def test_a_head_with_many_cores_fits_no_small_node(check: Check) -> None:
    found = [each.field for each in check(f"{EKS}kubernetes: {{head_cpus: 8}}\n") if each.code == "K504"]
    assert found == ["kubernetes.head_cpus"]


def test_a_head_leaves_room_for_the_pods_of_every_node(codes: Codes) -> None:
    assert "K504" not in codes(f"{EKS}kubernetes: {{head_memory: 11GiB, head_cpus: 3}}\n")
    assert "K504" in codes(f"{EKS}kubernetes: {{head_memory: 12GiB}}\n")


def test_resources_up_to_what_a_node_has_are_fine(codes: Codes) -> None:
    assert "K509" not in codes(f"{EKS}prefill: {{resources: {{cpus: 31, memory: 110GiB, gpus: 1}}}}\n")
    for asked in ("gpus: 2", "memory: 114GiB", "cpus: 32"):
        assert "K509" in codes(f"{EKS}prefill: {{resources: {{{asked}}}}}\n")


@pytest.mark.parametrize(
    ("image", "found"),
    [
        ("", set()),
        ("name: public.ecr.aws/deep-learning-containers/ray:serve-llm-cuda-v1.0.0", set()),
        ("name: registry.example.com/llm:1.0", {"K532"}),
        ("name: registry.example.com/llm:1.0, vllm_version: 0.26.0", {"K532"}),
        ("name: registry.example.com/llm:1.0, ray_version: 2.61.0", {"K520", "K521"}),
        ("name: registry.example.com/llm:1.0, ray_version: 2.58.0", set()),  # vLLM follows
        (
            "name: registry.example.com/llm:1.0, packages: [my-parser==1.0]",
            set(),
        ),  # what it is built on is known
        ("name: registry.example.com/llm, ray_version: 2.58.0", {"K524"}),
        ("name: 'registry.example.com:5000/llm@sha256:0123', ray_version: 2.58.0", set()),
        ("name: registry.example.com/llm:1.0, packages: [Torch==2.0]", {"K523"}),
        ("name: registry.example.com/llm:1.0, packages: [libucx-cu12==1.18.0]", {"K523"}),
        ("name: registry.example.com/llm:1.0, packages: [rayleigh==1.0, ucx==1.0]", set()),
        ("name: 'public.ecr.aws/deep-learning-containers/ray:serve-llm-cuda-v1'", {"K524"}),
        (
            "name: 'public.ecr.aws/deep-learning-containers/ray:serve-llm-cuda-v1.0.0', ray_version: 2.60.0",
            {"K518", "K528"},
        ),
        (
            "name: 'public.ecr.aws/deep-learning-containers/ray:serve-llm-cuda-v1.0.0', ray_version: 2.58.1",
            set(),
        ),
        ("name: 'rayproject/ray-llm:2.58.0-py311-cu128', ray_version: 2.58.0", set()),
        ("name: 'rayproject/ray-llm:2.55.1-py311-cu128', ray_version: 2.58.0", {"K528"}),
        ("name: 'rayproject/ray-llm:2.58.0-py311-cpu', ray_version: 2.58.0", {"K529"}),
        ("name: 'vllm/vllm-openai:v0.26.0', ray_version: 2.58.0", {"K529"}),
        ("name: 'mirror.example.com/rayproject/ray:2.58.0', ray_version: 2.58.0", {"K529"}),
        ("name: 'registry.example.com/python:3.12', ray_version: 2.58.0", set()),
        ("name: registry.example.com/llm:1.0, ray_version: 2.61.0, vllm_version: 0.30.0", {"K520"}),
        ("name: registry.example.com/llm:1.0, ray_version: 2.58.0, vllm_version: 0.25.0", {"K518", "K519"}),
    ],
)
def test_images(codes: Codes, image: str, found: set[str]) -> None:
    text = f"{EKS}image: {{{image}}}\n" if image else EKS
    assert {
        code
        for code in codes(text)
        if code in ("K517", "K518", "K519", "K520", "K521", "K522", "K523", "K524", "K528", "K529", "K532")
    } == found


def test_only_this_machine_may_do_without_keys(codes: Codes) -> None:
    without = "access: {api_keys: none}\n"
    assert "A733" not in codes(without)
    assert "A733" in codes(EKS + without) & codes(KUBERNETES + without)
    assert "A733" not in codes(f"{EKS}access: {{api_keys: required}}\n")


@pytest.mark.parametrize(
    ("ray", "brings"), [("2.58.0", True), ("2.60.1", True), ("2.57.1", False), ("2.9.0", False)]
)
@pytest.mark.parametrize("ingress", ["auto", "haproxy", "proxy"])
def test_haproxy_is_asked_for_where_ray_brings_it_only(
    codes: Codes, ingress: str, ray: str, brings: bool
) -> None:
    image = f"image: {{name: registry.example.com/llm:1.0, ray_version: {ray}}}\n"
    refused = ingress == "haproxy" and not brings
    assert ("A734" in codes(f"{EKS}{image}access: {{ingress: {ingress}}}\n")) is refused
    assert "A734" not in codes(f"{image}access: {{ingress: {ingress}}}\n")


def test_ports_of_haproxy_and_its_replicas_are_taken_where_it_is_there(codes: Codes) -> None:
    by_proxy = "access: {ingress: proxy}\n"
    for port in (8404, 9101, 29990, 30500, 31000):
        ports = f"kv_transfer: {{ports: {{prefill: {port}}}}}\n"
        told = codes(f"{EKS}prefill: {{num_replicas: 16}}\n{ports}")
        assert ("T407" in told) is (port != 31001)
        assert "T407" not in codes(f"{EKS}prefill: {{num_replicas: 16}}\n{by_proxy}{ports}")
    for port in (8404, 9101, 30500):
        assert "T417" in codes(f"{EKS}access: {{port: {port}}}\n")
        assert "T417" not in codes(f"{EKS}access: {{port: {port}, ingress: proxy}}\n")


def test_a_gateway_needs_both_a_class_and_a_certificate(codes: Codes) -> None:
    access = {"A702", "A703", "A704"}
    assert codes(f"{EKS}access: {{expose: gateway}}\n") & access == {"A702", "A704"}
    whole = "access: {expose: gateway, gateway_class: envoy, tls_secret: tls}\n"
    assert codes(EKS + whole) & access == set()
    assert codes(KUBERNETES + whole) & access == set()


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("engine_kwargs: {hf_token: true}\n", False),
        ("engine_kwargs: {tokenizer: a/b}\n", False),
        ("engine_kwargs: {override_generation_config: {temperature: 0.2}}\n", False),
        ("engine_kwargs: {hf_token: anything}\n", True),
        ("decode: {engine_kwargs: {model_loader_extra_config: {access_key: AKIA}}}\n", True),
        ("engine_kwargs: {additional_config: {note: [x, hf_abcdefghijklmnopqrstuvwxyz]}}\n", True),
        ("kv_transfer: {kv_connector_extra_config: {password: x}}\n", True),
    ],
)
def test_secrets_are_told_from_other_texts(codes: Codes, text: str, secret: bool) -> None:
    assert ("A701" in codes(text)) is secret


def test_a_secret_is_never_repeated(check: Check) -> None:
    found = check("engine_kwargs: {hf_token: hf_abcdefghijklmnopqrstuvwxyz}\n")
    assert "hf_abc" not in "".join(each.what + each.do for each in found)


@pytest.mark.parametrize(
    ("path", "own"),
    [
        ("/var/lib/kubelet", True),
        ("/dev/infiniband", True),
        ("/etc/../etc/x", True),
        ("/device", False),
        ("/var", True),
        ("/var/lib", True),
        ("/var/lib/diptych", False),
        ("/mnt/nvme/models", False),
    ],
)
def test_folders_of_the_node(codes: Codes, path: str, own: bool) -> None:
    assert ("A714" in codes(f"{EKS}staging: {{path: {path}}}\n")) is own


def test_days_of_support_count_from_the_day_of_the_check(codes: Codes) -> None:
    supported = {"C804", "C805", "C806"}
    version, end = next((name, day) for name, day in KUBERNETES_VERSIONS.items() if day == date(2027, 3, 27))
    text = f'{EKS}eks: {{kubernetes_version: "{version}"}}\n'
    assert end is not None
    assert codes(text, today=date(2027, 1, 1)) & supported == set()
    assert codes(text, today=date(2027, 2, 1)) & supported == {"C806"}
    assert codes(text, today=end) & supported == {"C806"}
    assert codes(text, today=date(2027, 3, 28)) & supported == {"C805"}


def test_a_version_that_is_proposed_is_supported(check: Check, codes: Codes) -> None:
    for today in (date(2026, 8, 1), date(2026, 12, 24), date(2027, 5, 1)):
        found = next(
            f for f in check(f'{EKS}eks: {{kubernetes_version: "1.20"}}\n', today=today) if f.code == "C804"
        )
        proposed = found.do.split()[1]
        assert not codes(f"{EKS}eks: {{kubernetes_version: {proposed}}}\n", today=today) & {"C804", "C805"}


def test_fields_of_another_place_are_told(check: Check) -> None:
    text = (
        "nodes: {count: 2}\nimage: {pull_policy: Always}\nprefill: {resources: {gpus: 1}, cores: 1}\n"
        "monitoring: false\n"
    )
    found = {each.field for each in check(text) if each.code == "C810"}
    assert found == {"nodes", "image", "prefill.resources", "monitoring"}
    found = {
        each.field
        for each in check(f"{KUBERNETES}nodes: {{market: spot}}\nprefill: {{cores: 1}}\n")
        if each.code == "C810"
    }
    assert found == {"nodes.market", "prefill.cores"}


def test_zones_of_the_region(codes: Codes) -> None:
    assert "C803" not in codes(f"{EKS}nodes: {{zone: us-east-2c}}\n")
    assert "C803" in codes(f"{EKS}prefill: {{nodes: {{zone: us-west-2c}}}}\n")


@pytest.mark.parametrize(
    ("nodes", "found"),
    [
        ("market: on-demand, capacity_reservation: cr-0123456789abcdef0", set()),
        (
            "market: capacity-block, capacity_reservation: cr-0123456789abcdef0, instance_type: p5en.48xlarge",
            set(),
        ),
        ("market: capacity-block, instance_type: p5en.48xlarge", {"C807"}),
        (
            "market: capacity-block, capacity_reservation: cr-0123456789abcdef0, instance_type: g6.8xlarge",
            {"C807"},
        ),
        ("market: spot, capacity_reservation: cr-0123456789abcdef0", {"C807", "C813"}),
        ("market: spot", {"C813"}),
    ],
)
def test_markets(codes: Codes, nodes: str, found: set[str]) -> None:
    assert codes(f"{EKS}nodes: {{{nodes}}}\n") & {"C807", "C813"} == found
