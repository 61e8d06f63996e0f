"""The node groups: EFA where there is some, bought as the document says, with room for image and checkpoint."""

from typing import Any

import pytest
import yaml

from diptych.render import eksctl
from diptych.render.inputs import Facts
from diptych.render.layout import worker_groups
from diptych.render.node_groups import volume_gib
from diptych.spec import Document

RESERVATION = "cr-0123456789abcdef0"
RESERVATION_GROUP = "arn:aws:resource-groups:us-east-2:111122223333:group/gpus"
GIB = 2**30


def document(**fields: Any) -> Document:
    return Document.model_validate({"on": "eks", "name": "qwen", "model": "Qwen/Qwen3-8B", **fields})


def groups(**fields: Any) -> dict[str, dict[str, Any]]:
    made = eksctl.cluster_config(document(**fields), Facts())
    return {group["name"]: group for group in made["managedNodeGroups"]}


def test_each_worker_group_has_its_node_group_with_the_labels_that_pods_ask_for() -> None:
    made = groups(
        prefill={"nodes": {"instance_type": "g6e.8xlarge", "count": 2}},
        decode={"nodes": {"instance_type": "g6.8xlarge", "count": 3}},
    )
    assert list(made) == ["system", "qwen-prefill", "qwen-decode"]
    assert made["system"]["labels"] == {"diptych.dev/phase": "system"}
    for phase, type_name, count in (("prefill", "g6e.8xlarge", 2), ("decode", "g6.8xlarge", 3)):
        group = made[f"qwen-{phase}"]
        assert group["instanceType"] == type_name
        assert group["desiredCapacity"] == group["minSize"] == group["maxSize"] == count
        assert group["labels"] == {
            "diptych.dev/phase": phase,
            "diptych.dev/service": "qwen",
            "role": "gpu-worker",
        }


@pytest.mark.parametrize(
    ("instance_type", "efa"),
    [("g6.8xlarge", True), ("g6.xlarge", False), ("p5en.48xlarge", True), ("p9.48xlarge", False)],
)
def test_efa_is_enabled_where_the_type_has_it(instance_type: str, efa: bool) -> None:
    made = groups(nodes={"instance_type": instance_type})
    assert made["qwen-prefill"].get("efaEnabled", False) == efa
    assert "efaEnabled" not in made["system"]


def test_the_document_decides_about_efa_on_a_type_that_nobody_knows() -> None:
    fields = {"nodes": {"instance_type": "p9.48xlarge"}, "decode": {"resources": {"efa": 16}}}
    made = groups(**fields)
    assert made["qwen-decode"]["efaEnabled"]
    assert "efaEnabled" not in made["qwen-prefill"]


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ({}, {}),
        ({"market": "on-demand"}, {}),
        ({"market": "spot"}, {"spot": True}),
        (
            {"capacity_reservation": RESERVATION},
            {
                "capacityReservation": {
                    "capacityReservationTarget": {"capacityReservationID": RESERVATION},
                }
            },
        ),
        (
            {"capacity_reservation": RESERVATION_GROUP},
            {
                "capacityReservation": {
                    "capacityReservationTarget": {"capacityReservationResourceGroupARN": RESERVATION_GROUP},
                }
            },
        ),
        (
            {"market": "capacity-block", "capacity_reservation": RESERVATION},
            {
                "capacityReservation": {"capacityReservationTarget": {"capacityReservationID": RESERVATION}},
                "instanceMarketOptions": {"marketType": "capacity-block"},
            },
        ),
        # Refused by eksctl: "instanceMarketOptions cannot be set without capacityReservation". Without it eksctl would
        # buy the nodes on demand.
        ({"market": "capacity-block"}, {"instanceMarketOptions": {"marketType": "capacity-block"}}),
    ],
)
def test_how_nodes_are_bought(nodes: dict[str, Any], expected: dict[str, Any]) -> None:
    keys = ("spot", "capacityReservation", "instanceMarketOptions")
    group = groups(nodes={"instance_type": "p5.48xlarge", **nodes})["qwen-prefill"]
    assert {key: group[key] for key in keys if key in group} == expected


def test_local_disks_are_joined_by_nodeadm() -> None:
    for name, group in groups().items():
        if name == "system":
            assert "overrideBootstrapCommand" not in group
            continue
        assert group["amiFamily"] == "AmazonLinux2023"  # eksctl refuses overrideBootstrapCommand elsewhere
        node_config = yaml.safe_load(group["overrideBootstrapCommand"])
        assert (node_config["apiVersion"], node_config["kind"]) == ("node.eks.aws/v1alpha1", "NodeConfig")
        assert node_config["spec"] == {"instance": {"localStorage": {"strategy": "RAID0"}}}


@pytest.mark.parametrize(
    ("fields", "facts", "gib"),
    [
        ({}, Facts(checkpoint_bytes=16 * GIB), 50),  # image and checkpoint lie on local NVMe
        ({"staging": {"path": "/srv/models"}}, Facts(checkpoint_bytes=16 * GIB), 70),
        ({"staging": {"path": "/mnt/k8s-disks/0/x"}}, Facts(checkpoint_bytes=16 * GIB), 50),
        ({"staging": {"enabled": False, "path": "/srv/models"}}, Facts(checkpoint_bytes=16 * GIB), 50),
        ({"nodes": {"instance_type": "p9.48xlarge"}}, Facts(checkpoint_bytes=16 * GIB), 120),
        ({"nodes": {"instance_type": "p9.48xlarge"}}, Facts(), 220),
        ({"staging": {"path": "/srv/models"}}, Facts(), 80),  # at most what one L4 holds
        ({"nodes": {"volume_size": "300GiB"}}, Facts(), 300),
        ({"nodes": {"volume_size": "1500MiB"}}, Facts(), 2),
    ],
)
def test_the_root_volume_has_room_for_what_lies_on_it(fields: dict[str, Any], facts: Facts, gib: int) -> None:
    made = document(**fields)
    assert volume_gib(made, facts, worker_groups(made)[0]) == gib


def test_a_checkpoint_on_the_root_volume_is_read_at_more_than_its_default_speed() -> None:
    assert groups(staging={"path": "/srv/models"})["qwen-prefill"]["volumeThroughput"] == 500
    assert "volumeThroughput" not in groups()["qwen-prefill"]


def zones(**fields: Any) -> set[str]:
    return {zone for group in groups(**fields).values() for zone in group["availabilityZones"]}


def test_auto_follows_the_phase_that_has_a_zone() -> None:
    assert zones(prefill={"nodes": {"zone": "us-east-2b"}}) == {"us-east-2b"}
    assert zones(decode={"nodes": {"zone": "us-east-2c"}}) == {"us-east-2c"}
    assert zones(decode={"nodes": {"selector": {"topology.kubernetes.io/zone": "us-east-2c"}}}) == {
        "us-east-2c"
    }
    assert zones() == {"us-east-2a"}


def test_nodes_have_the_labels_that_the_document_selects_them_by() -> None:
    mine = {"role": "my-gpus", "example.com/pool": "llm", "diptych.dev/phase": "other"}
    of_the_cloud = {"node.kubernetes.io/instance-type": "g6e.8xlarge"}
    group = groups(nodes={"selector": mine | of_the_cloud})["qwen-decode"]
    assert group["instanceType"] == "g6e.8xlarge"
    assert group["labels"] == {
        "role": "my-gpus",
        "example.com/pool": "llm",
        "diptych.dev/phase": "decode",
        "diptych.dev/service": "qwen",
    }
