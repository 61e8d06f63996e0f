"""Rules about a Kubernetes cluster that exists: what it has, what it lets us do."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from diptych.check import Finding
from diptych.check.cluster import Node, Operator, Right
from diptych.check.cluster_rules import TOLERATED
from diptych.render.bundle import render_one
from diptych.render.inputs import Facts
from diptych.spec import Document
from fakes.account_facts import GPU_NODE, ON_CLUSTER, WRONG, cluster, nodes

Check = Callable[..., list[Finding]]
Codes = Callable[..., set[str]]

TEXT = "on: kubernetes\nmodel: Qwen/Qwen3-0.6B\n"
WITH_EFA = f"{TEXT}nodes: {{instance_type: g6.8xlarge}}\n"


def only(findings: list[Finding], code: str) -> Finding:
    [found] = [each for each in findings if each.code == code]
    return found


def of(findings: list[Finding], code: str) -> list[Finding]:
    return [each for each in findings if each.code == code]


def test_a_cluster_with_nothing_wrong_says_nothing(codes: Codes) -> None:
    assert not {code for code in codes(TEXT, **cluster()) if code.startswith("N")}
    assert not {code for code in codes(WITH_EFA, **cluster()) if code.startswith("N")}


@pytest.mark.parametrize("code", [code for code in WRONG if code.startswith("N2")])
def test_a_cluster_says_nothing_about_another_place(codes: Codes, code: str) -> None:
    assert not {
        each for each in codes("on: eks\nmodel: Qwen/Qwen3-0.6B\n", **WRONG[code]) if each.startswith("N2")
    }


@pytest.mark.report("T1")
def test_nodes_with_gpus_and_a_taint_miss_the_efa_plugin_and_it_is_named(check: Check) -> None:
    found = of(check(WITH_EFA, **nodes(efa=0)), "N205")
    assert [each.field for each in found] == ["prefill.resources.efa", "decode.resources.efa"]
    assert "none offers vpc.amazonaws.com/efa" in found[0].what
    assert "aws-efa-k8s-device-plugin" in found[0].do
    assert "taint" in found[0].do


@pytest.mark.report("B21")
def test_a_node_that_offers_no_gpus_misses_the_nvidia_plugin(check: Check) -> None:
    found = of(check(WITH_EFA, **nodes(gpus=0, efa=0)), "N204")
    assert found
    assert all("NVIDIA device plugin" in each.do for each in found)


@pytest.mark.report("B12")
def test_a_plugin_that_counts_other_devices_is_told_by_the_table_of_types(check: Check) -> None:
    found = of(check(WITH_EFA, **nodes(efa=2)), "N206")
    assert "offers 2 EFA interfaces, and the type has 1" in found[0].what
    assert "0.5.10" in found[0].do


@pytest.mark.report("B13")
def test_huge_pages_that_nobody_set_aside_are_told_before_a_pod_waits(check: Check, codes: Codes) -> None:
    text = f"{WITH_EFA}decode: {{resources: {{hugepages_2mi: 5GiB}}}}\n"
    assert only(check(text, **cluster()), "N207").field == "decode.resources.hugepages_2mi"
    assert "N207" not in codes(text, **nodes(hugepages_2mi=10 * 2**30))


@pytest.mark.report("B14")
def test_nodes_with_efa_in_two_zones_are_told(codes: Codes) -> None:
    assert "N209" in codes(WITH_EFA, **WRONG["N209"])
    assert "N209" not in codes(TEXT, **WRONG["N209"])  # without EFA, zones are a matter of taste


@pytest.mark.report("E1")
def test_gpus_that_others_use_are_counted_out(check: Check) -> None:
    one_used = (replace(GPU_NODE, gpus_used=1), replace(GPU_NODE, name="gpu-2"))
    found = only(check(TEXT, **cluster(nodes=one_used)), "N204")
    assert "1 of 2 nodes have as many GPUs free" in found.what or "0 of 2" in found.what


def test_the_phases_do_not_count_the_same_node_twice(check: Check) -> None:
    found = only(check(TEXT, **cluster(nodes=(GPU_NODE,))), "N204")
    assert found.field == "decode.resources.gpus"


@pytest.mark.parametrize(
    ("change", "selector", "told"),
    [
        (
            {"taints": ({"key": "team", "value": "a", "effect": "NoSchedule"},)},
            "pool: gpu",
            "taints that nothing tolerates",
        ),
        ({}, "pool: other", "none has the labels pool: other"),
        ({"ready": False}, "pool: gpu", "not ready or cordoned"),
    ],
)
def test_why_no_node_is_meant_is_said(check: Check, change: dict[str, Any], selector: str, told: str) -> None:
    text = f"{TEXT}nodes: {{selector: {{{selector}}}}}\n"
    found = of(check(text, **nodes(**change)), "N204")
    assert told in found[0].what


def test_a_taint_that_the_document_tolerates_keeps_nobody_away(codes: Codes) -> None:
    taint = {"key": "team", "value": "a", "effect": "NoSchedule"}
    for toleration in ("{key: team, operator: Exists}", "{key: team, value: a, effect: NoSchedule}"):
        text = f"{TEXT}nodes: {{tolerations: [{toleration}]}}\n"
        assert "N204" not in codes(text, **nodes(taints=(taint,)))
    text = f"{TEXT}nodes: {{tolerations: [{{key: team, value: b}}]}}\n"
    assert "N204" in codes(text, **nodes(taints=(taint,)))


def test_what_pods_tolerate_by_themselves_is_what_is_rendered() -> None:
    document = Document.model_validate({"on": "kubernetes", "model": "Qwen/Qwen3-0.6B"})
    text = render_one(document, Facts(serving_archive=b"code"), "rayservice")
    assert all(f"key: {each['key']}" in text for each in TOLERATED)


@pytest.mark.report("E6")
def test_rights_are_named_as_rbac_names_them_with_the_command_that_asks(check: Check) -> None:
    denied = (Right("create", "rayservices", "ray.io"), Right("list", "nodes", everywhere=True))
    found = only(check(TEXT, **cluster(denied=denied)), "N203")
    assert "in the namespace diptych: create rayservices.ray.io" in found.what
    assert "in the whole cluster: list nodes" in found.what
    assert "kubectl auth can-i create rayservices.ray.io -n diptych" in found.do


def test_pods_larger_than_every_node_are_told_with_what_there_is(check: Check) -> None:
    found = of(check(TEXT, **nodes(cpu_millis=4000)), "N208")
    assert "its nodes give 4 and" in found[0].what


@pytest.mark.parametrize(
    ("operator", "wrong"),
    [
        (Operator("ray", "1.7.0"), False),
        (Operator("ray", "1.9.0"), False),
        (Operator("ray", None), False),
        (Operator("ray", "1.5.1"), True),
        (Operator("ray", "1.5.1", ours=True), False),
        (Operator("ray", "1.7.0", watches=("diptych", "llm")), False),
        (Operator("ray", "1.7.0", watches=("llm",)), True),
        (Operator("ray", "1.7.0", watches=("llm",), ours=True), False),
    ],
)
def test_an_operator_of_others_must_be_new_enough_and_see_the_namespace(
    codes: Codes, operator: Operator, wrong: bool
) -> None:
    assert ("N210" in codes(TEXT, **cluster(operators=(operator,)))) == wrong


def test_what_could_not_be_asked_of_a_cluster_is_not_judged(codes: Codes) -> None:
    assert not codes(WITH_EFA, **cluster(nodes=None, operators=None)) & {"N204", "N205", "N208", "N210"}


def test_a_node_without_gpus_is_nothing_to_workers(codes: Codes) -> None:
    small = Node("plain", cpu_millis=2000, memory_bytes=2**30)
    assert not codes(TEXT, **cluster(nodes=(*(ON_CLUSTER.nodes or ()), small))) & {"N204", "N208"}
