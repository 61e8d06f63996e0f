"""What nodes offer, what is in use, and which device plugin is missing where they offer less than they should."""

import pytest

from diptych.kube.nodes import device_blockers, look
from kube.shapes import NODES, Object, condition, head, node, state, waiting, worker


def plugin(name: str, where: str, *, crashing: bool = False) -> Object:
    states = [state("plugin", waiting("CrashLoopBackOff", "back-off"), restarts=7)] if crashing else []
    return {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "kube-system"},
        "spec": {"nodeName": NODES[where], "containers": []},
        "status": {
            "phase": "Running",
            "conditions": [condition("Ready", is_true=not crashing)],
            "containerStatuses": states,
        },
    }


def test_what_pods_have_is_counted_by_node() -> None:
    over = worker("prefill")
    over["status"]["phase"] = "Succeeded"
    found = {
        each.name: each
        for each in look(map(node, NODES), (head(), worker("prefill"), over, worker("decode")))
    }

    assert (found[NODES["prefill"]].gpus, found[NODES["prefill"]].gpus_used) == (1, 1)
    assert (found[NODES["decode"]].efa, found[NODES["decode"]].efa_used) == (1, 1)
    assert found[NODES["system"]].gpus == 0
    assert found[NODES["prefill"]].to_json()["zone"] == "us-east-2a"


def test_nodes_that_offer_what_they_were_made_with_are_well() -> None:
    assert device_blockers(map(node, NODES), (), efa=True) == ()


@pytest.mark.parametrize(
    ("seen", "pods", "words", "do"),
    [
        pytest.param(
            node(
                "prefill",
                efa="0",
                taints=[{"key": "nvidia.com/gpu", "value": "true", "effect": "NoSchedule"}],
            ),
            (plugin("aws-efa-k8s-device-plugin-x", "decode"),),
            "does not tolerate the node's taint nvidia.com/gpu",
            "Remove the taint",
            id="T1 the taint",
            marks=pytest.mark.report("T1"),
        ),
        pytest.param(
            node("prefill", efa="0"),
            (),
            "EFA device plugin is not in the cluster",
            "aws-efa-k8s-device-plugin",
            id="B21 not installed",
            marks=pytest.mark.report("B21"),
        ),
        pytest.param(
            node("prefill", efa="0"),
            (plugin("aws-efa-k8s-device-plugin-x", "decode"),),
            "may lack this one",
            "newest version",
            id="T1 a type that its list lacks",
            marks=pytest.mark.report("T1"),
        ),
        pytest.param(
            node("prefill", efa="0"),
            (plugin("aws-efa-k8s-device-plugin-x", "prefill", crashing=True),),
            "fails on it again and again (pod aws-efa-k8s-device-plugin-x)",
            "kubectl logs -n kube-system",
            id="B12 it crashes",
            marks=pytest.mark.report("B12"),
        ),
        pytest.param(
            node("prefill", efa="2"),
            (),
            "counts other devices along",
            "v0.5.10",
            id="B12 it counts too many",
            marks=pytest.mark.report("B12"),
        ),
        pytest.param(
            node("prefill", gpu="0"),
            (plugin("nvidia-device-plugin-daemonset-x", "prefill"),),
            "finds no more",
            "driver",
            id="a driver that is not loaded",
        ),
        pytest.param(
            node("prefill", gpu="0"),
            (),
            "NVIDIA device plugin is not in the cluster",
            "k8s-device-plugin",
            id="no GPU plugin",
        ),
    ],
)
def test_the_plugin_that_is_missing_is_named(
    seen: Object, pods: tuple[Object, ...], words: str, do: str
) -> None:
    (found,) = device_blockers([node("system"), node("decode"), seen], pods, efa=True)

    assert f"node {NODES['prefill']}".lower() in found.text.lower()
    assert words in found.text and do in found.do


def test_without_efa_asked_for_its_plugin_is_not_missed() -> None:
    assert device_blockers([node("prefill", efa="0")], (), efa=False) == ()
