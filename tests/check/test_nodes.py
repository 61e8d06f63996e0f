"""Nodes against the rest of the document: what is right passes, what isn't is told once and with what to do."""

from collections.abc import Callable

import pytest

from diptych.check import Finding

Check = Callable[..., list[Finding]]
Codes = Callable[..., set[str]]

EKS = "on: eks\nmodel: Qwen/Qwen3-0.6B\n"
KUBERNETES = "on: kubernetes\nmodel: Qwen/Qwen3-0.6B\n"
RESERVED = "capacity_reservation: cr-0123456789abcdef0"
ARN = "arn:aws:acm:us-east-2:123456789012:certificate/0123456789ab"


def test_idle_nodes_of_both_phases_are_counted_together(check: Check) -> None:
    [found] = [each for each in check(f"{EKS}nodes: {{count: 10}}\n") if each.code == "K541"]
    assert found.field == "nodes.count"
    assert "18 nodes with GPUs stand idle" in found.what


@pytest.mark.parametrize(
    "text",
    [
        f"{EKS}nodes: {{count: 1}}\n",
        f"{EKS}nodes: {{count: 2}}\nkubernetes: {{upgrade: new-cluster}}\n",
        f"{EKS}nodes: {{count: 2}}\nprefill: {{num_replicas: 2}}\n"
        "decode: {autoscaling_config: {max_replicas: 2}}\n",
        f"{KUBERNETES}nodes: {{count: 10}}\n",  # how many there are, not how many are made
    ],
)
def test_nodes_that_are_used_or_may_be_are_not_idle(codes: Codes, text: str) -> None:
    assert "K541" not in codes(text)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (f"{EKS}nodes: {{selector: {{node.kubernetes.io/instance-type: g6e.8xlarge}}}}\n", False),
        (f"{EKS}nodes: {{selector: {{node.kubernetes.io/instance-type: g9.huge}}}}\n", True),
        (
            f"{EKS}nodes: {{instance_type: g6.8xlarge, selector: "
            "{node.kubernetes.io/instance-type: g6.8xlarge, role: x}}\n",
            False,
        ),
        (
            f"{EKS}nodes: {{instance_type: g6.8xlarge, selector: {{node.kubernetes.io/instance-type: g5.xlarge}}}}\n",
            True,
        ),
        (
            f"{KUBERNETES}nodes: {{instance_type: g6.8xlarge, selector: "
            "{node.kubernetes.io/instance-type: g5.xlarge}}\n",
            True,
        ),
        (f"{KUBERNETES}nodes: {{selector: {{node.kubernetes.io/instance-type: mine}}}}\n", False),
        (f"{EKS}nodes: {{zone: us-east-2a, selector: {{topology.kubernetes.io/zone: us-east-2b}}}}\n", True),
        (f"{EKS}nodes: {{zone: us-east-2a, selector: {{topology.kubernetes.io/zone: us-east-2a}}}}\n", False),
        (
            f"{EKS}nodes: {{selector: {{topology.kubernetes.io/zone: us-east-2b}}}}\neks: {{zone: us-east-2a}}\n",
            False,
        ),
    ],
)
def test_a_selector_and_the_fields_say_the_same(codes: Codes, text: str, wrong: bool) -> None:
    assert ("K542" in codes(text)) is wrong


@pytest.mark.parametrize(
    ("nodes", "wrong"),
    [
        ("instance_type: g6.8xlarge, volume_size: 19GiB", True),
        ("instance_type: g6.8xlarge, volume_size: 20GiB", False),  # the image lies on its NVMe
        ("instance_type: g9.8xlarge, volume_size: 30GiB", False),  # may have NVMe too
        ("instance_type: g6.8xlarge", False),
    ],
)
def test_a_root_volume_holds_system_and_image(codes: Codes, nodes: str, wrong: bool) -> None:
    assert ("M322" in codes(f"on: eks\nmodel: s3://bucket/mine\nnodes: {{{nodes}}}\n")) is wrong


def test_only_nodes_that_start_bare_must_pull(codes: Codes) -> None:
    never = "image: {pull_policy: Never}\n"
    assert "K543" in codes(EKS + never)
    assert "K543" not in codes(KUBERNETES + never)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (f"nodes: {{{RESERVED}}}\n", True),
        (f"nodes: {{{RESERVED}}}\neks: {{zone: us-east-2a}}\n", False),
        (f"nodes: {{{RESERVED}, zone: us-east-2a}}\n", False),
        (f"nodes: {{{RESERVED}}}\ndecode: {{nodes: {{zone: us-east-2a}}}}\n", False),  # auto follows
    ],
)
def test_a_reservation_has_a_zone(codes: Codes, text: str, wrong: bool) -> None:
    assert ("C821" in codes(EKS + text)) is wrong


def test_a_reservation_holds_one_instance_type(codes: Codes) -> None:
    larger = "decode: {nodes: {instance_type: g6e.8xlarge%s}}\n"
    assert "C822" in codes(f"{EKS}nodes: {{{RESERVED}}}\n" + larger % "")
    assert "C822" not in codes(f"{EKS}nodes: {{{RESERVED}}}\n")
    own = larger % ", capacity_reservation: cr-0123456789abcdef1"
    assert "C822" not in codes(f"{EKS}nodes: {{{RESERVED}}}\n{own}")
    aggregated = f"topology: aggregated\n{EKS}nodes: {{{RESERVED}}}\n" + larger % ""
    assert "C822" not in codes(aggregated)


@pytest.mark.parametrize(
    ("namespace", "found"),
    [("kube-system", {"C823"}), ("kube-mine", {"C823"}), ("default", {"C824"}), ("kubeflow", set())],
)
def test_namespaces_of_others(codes: Codes, namespace: str, found: set[str]) -> None:
    for place in (EKS, KUBERNETES):
        assert codes(f"{place}kubernetes: {{namespace: {namespace}}}\n") & {"C823", "C824"} == found


def test_a_certificate_is_in_the_region_of_the_cluster(codes: Codes) -> None:
    access = f"access: {{expose: internal-lb, tls_certificate_arn: '{ARN}'}}\n"
    assert "A722" not in codes(EKS + access)
    assert "A722" in codes(f"{EKS}{access}eks: {{region: us-west-2}}\n")


def test_a_base_without_packages_is_told_and_what_runs_is_known(codes: Codes) -> None:
    base = "base: registry.example.com/llm:1.0"
    assert codes(f"{EKS}image: {{{base}}}\n") & {"K545", "K521", "K532"} == {"K545"}
    built = f"image: {{{base}, packages: [my-parser==1.0], name: registry.example.com/built:1.0}}\n"
    assert codes(EKS + built) & {"K545"} == set()


def test_gpus_that_a_pod_has_too_many_of_are_told_where_they_are_asked_for(check: Check) -> None:
    text = (
        "on: eks\nmodel: Qwen/Qwen3-0.6B\nnodes: {instance_type: g6.12xlarge}\n"
        "engine_kwargs: {tensor_parallel_size: 2}\nprefill: {resources: {gpus: 3}}\ndecode: {num_replicas: 2}\n"
    )
    [found] = [each for each in check(text) if each.code == "K508"]
    assert found.field == "prefill.resources.gpus"
    assert found.what.endswith("1 stays idle")
