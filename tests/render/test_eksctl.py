"""The eksctl configuration: accepted by eksctl's own strict schema, and free of the traps that cost people days."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator

from diptych.render import eksctl
from diptych.render.inputs import Facts
from diptych.spec import Document

SCHEMA = Path(__file__).parents[3] / "shared/schemas/eksctl-clusterconfig.json"
RESERVATION = "cr-0123456789abcdef0"
RESERVATION_GROUP = "arn:aws:resource-groups:us-east-2:111122223333:group/gpus"


def document(**fields: Any) -> Document:
    return Document.model_validate({"on": "eks", "name": "qwen", "model": "Qwen/Qwen3-8B", **fields})


def config(facts: Facts | None = None, **fields: Any) -> dict[str, Any]:
    return eksctl.cluster_config(document(**fields), facts or Facts())


def groups(facts: Facts | None = None, **fields: Any) -> dict[str, dict[str, Any]]:
    return {group["name"]: group for group in config(facts, **fields)["managedNodeGroups"]}


@cache
def validator() -> Draft7Validator:
    if not SCHEMA.exists():
        pytest.skip(f"no {SCHEMA}")
    return Draft7Validator(json.loads(SCHEMA.read_text()))


DOCUMENTS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "aggregated over two nodes": {
        "topology": "aggregated",
        "engine_kwargs": {"tensor_parallel_size": 4},
        "nodes": {"count": 2},
    },
    "spot": {"nodes": {"market": "spot"}},
    "reservation": {"nodes": {"instance_type": "p5en.48xlarge", "capacity_reservation": RESERVATION}},
    "group of reservations": {"nodes": {"capacity_reservation": RESERVATION_GROUP}},
    "capacity block": {
        "nodes": {
            "instance_type": "p5.48xlarge",
            "market": "capacity-block",
            "capacity_reservation": RESERVATION,
        }
    },
    "without EFA": {"nodes": {"instance_type": "g6.xlarge"}},
    "unknown type": {"nodes": {"instance_type": "p9.48xlarge"}},
    "two types": {
        "prefill": {"nodes": {"instance_type": "g6e.8xlarge", "count": 2}},
        "decode": {"nodes": {"instance_type": "g6.8xlarge", "count": 3}},
    },
    "bucket": {"model": {"source": "s3://models/qwen/3-8b"}},
    "private": {"eks": {"private_access_only": True}},
    "much said": {
        "eks": {
            "cluster": "shared",
            "region": "eu-central-1",
            "zone": "eu-central-1c",
            "kubernetes_version": "1.36",
            "public_access_cidrs": ["203.0.113.7/32"],
            "tags": {"team": "search"},
            "system_nodes": {"instance_type": "m7i.2xlarge", "count": 2},
        },
        "nodes": {"volume_size": "200GiB"},
    },
}


@pytest.mark.parametrize("fields", DOCUMENTS.values(), ids=DOCUMENTS.keys())
def test_eksctls_strict_schema_accepts_it(fields: Mapping[str, Any]) -> None:
    validator().validate(config(**fields))


@pytest.mark.parametrize("fields", DOCUMENTS.values(), ids=DOCUMENTS.keys())
def test_it_is_the_same_every_time(fields: Mapping[str, Any]) -> None:
    assert json.dumps(config(**fields)) == json.dumps(config(**fields))


@pytest.mark.parametrize("fields", DOCUMENTS.values(), ids=DOCUMENTS.keys())
def test_no_group_has_a_taint_a_placement_group_or_a_way_around_the_hop_limit(
    fields: Mapping[str, Any],
) -> None:
    for group in groups(**fields).values():
        assert "taints" not in group  # eksctl's EFA device plugin tolerates none of ours
        assert "placement" not in group  # a reservation made outside of one can't be used in one
        assert "launchTemplate" not in group  # eksctl refuses disablePodIMDS beside one
        assert group["disablePodIMDS"] and group["disableIMDSv1"]
        assert group["volumeEncrypted"] and group["privateNetworking"]


@pytest.mark.parametrize("fields", DOCUMENTS.values(), ids=DOCUMENTS.keys())
def test_every_group_is_in_one_zone_and_the_cluster_in_two_of_which_that_is_one(
    fields: Mapping[str, Any],
) -> None:
    made = config(**fields)
    zones = made["availabilityZones"]
    assert len(set(zones)) == len(zones) >= 2
    for group in made["managedNodeGroups"]:
        assert len(group["availabilityZones"]) == 1
        assert group["availabilityZones"][0] in zones
        assert group["availabilityZones"][0].startswith(made["metadata"]["region"])


@pytest.mark.parametrize(
    ("fields", "facts", "zones", "prefill"),
    [
        ({}, Facts(), ["us-east-2a", "us-east-2b"], "us-east-2a"),
        ({}, Facts(zone="us-east-2b"), ["us-east-2b", "us-east-2a"], "us-east-2b"),
        (
            {"eks": {"zone": "us-east-2c"}},
            Facts(zone="us-east-2b"),
            ["us-east-2c", "us-east-2a"],
            "us-east-2c",
        ),
        (
            {"eks": {"zone": "us-east-2c"}, "nodes": {"zone": "us-east-2b"}},
            Facts(),
            ["us-east-2b", "us-east-2a"],
            "us-east-2b",
        ),
        (
            {"prefill": {"nodes": {"zone": "us-east-2b"}}, "decode": {"nodes": {"zone": "us-east-2c"}}},
            Facts(),
            ["us-east-2b", "us-east-2c"],
            "us-east-2b",
        ),
        (
            {"eks": {"region": "ap-northeast-1"}},
            Facts(),
            ["ap-northeast-1a", "ap-northeast-1c"],
            "ap-northeast-1a",
        ),
        (
            {"eks": {"region": "us-west-1"}},
            Facts(zone="us-west-1c"),
            ["us-west-1c", "us-west-1a"],
            "us-west-1c",
        ),
    ],
)
def test_zones(fields: dict[str, Any], facts: Facts, zones: list[str], prefill: str) -> None:
    made = config(facts, **fields)
    assert made["availabilityZones"] == zones
    by_name = {group["name"]: group["availabilityZones"] for group in made["managedNodeGroups"]}
    assert by_name["qwen-prefill"] == by_name["system"] == [prefill]


@pytest.mark.parametrize(
    ("fields", "facts", "public", "cidrs"),
    [
        ({}, Facts(), False, None),
        ({}, Facts(public_access_cidrs=("198.51.100.4/32",)), True, ["198.51.100.4/32"]),
        (
            {"eks": {"public_access_cidrs": ["203.0.113.7/32"]}},
            Facts(public_access_cidrs=("198.51.100.4/32",)),
            True,
            ["203.0.113.7/32"],
        ),
        (
            {"eks": {"private_access_only": True}},
            Facts(public_access_cidrs=("198.51.100.4/32",)),
            False,
            None,
        ),
    ],
)
def test_the_api_is_open_to_named_addresses_and_to_nobody_otherwise(
    fields: dict[str, Any], facts: Facts, public: bool, cidrs: list[str] | None
) -> None:
    vpc = config(facts, **fields)["vpc"]
    assert vpc["clusterEndpoints"] == {"privateAccess": True, "publicAccess": public}
    assert vpc.get("publicAccessCIDRs") == cidrs


def test_the_notes_say_what_is_not_known_yet() -> None:
    unknown = " ".join(eksctl.notes(document(), Facts()))
    assert "eks.public_access_cidrs" in unknown and "us-east-2a" in unknown
    assert eksctl.notes(document(), Facts(zone="us-east-2b", public_access_cidrs=("203.0.113.7/32",))) == ()


def test_the_network_plugin_enforces_network_policies_and_coredns_stays_off_gpu_nodes() -> None:
    made = config()
    addons = {addon["name"]: json.loads(addon.get("configurationValues", "{}")) for addon in made["addons"]}
    assert made["addonsConfig"] == {"disableDefaultAddons": True}
    assert {"vpc-cni", "coredns", "kube-proxy"} <= set(addons)
    assert addons["vpc-cni"] == {"enableNetworkPolicy": "true"}
    assert addons["coredns"] == {"nodeSelector": groups()["system"]["labels"]}


def test_tags_say_whose_it_is_whatever_the_document_says() -> None:
    given = {"team": "search", "diptych.dev/service": "other", "diptych.dev/cluster": "other"}
    own = {
        "diptych.dev/region": "us-east-2",
        "diptych.dev/cluster": "qwen",
        "diptych.dev/document/qwen": "diptych",
    }
    fields = document(eks={"tags": given})
    assert eksctl.cluster_config(fields, Facts())["metadata"]["tags"] == {"team": "search", **own}
    named = eksctl.cluster_config(fields, Facts(), account="123456789012")["metadata"]["tags"]
    assert named == {"team": "search", "diptych.dev/account": "123456789012", **own}


def test_a_shared_cluster_is_tagged_with_its_name_and_each_document_that_uses_it() -> None:
    tags = config(eks={"cluster": "shared"})["metadata"]["tags"]
    assert tags["diptych.dev/cluster"] == "shared" and "diptych.dev/document/qwen" in tags


def test_the_cluster_gets_subnets_in_further_zones_that_its_nodes_may_move_to() -> None:
    made = eksctl.cluster_config(
        document(), Facts(zone="us-east-2b"), zones=["us-east-2a", "us-east-2b", "us-east-2c"]
    )
    validator().validate(made)
    assert made["availabilityZones"] == ["us-east-2b", "us-east-2a", "us-east-2c"]
    assert {zone for group in made["managedNodeGroups"] for zone in group["availabilityZones"]} == {
        "us-east-2b"
    }


@pytest.mark.parametrize(
    ("source", "region", "listing", "reading"),
    [
        ("s3://models/qwen/3-8b", "us-east-2", "arn:aws:s3:::models", "arn:aws:s3:::models/qwen/3-8b/*"),
        ("s3://models/qwen/", "cn-north-1", "arn:aws-cn:s3:::models", "arn:aws-cn:s3:::models/qwen/*"),
        ("s3://models", "us-gov-west-1", "arn:aws-us-gov:s3:::models", "arn:aws-us-gov:s3:::models/*"),
    ],
)
def test_workers_may_read_the_models_folder_in_s3_and_nothing_else(
    source: str, region: str, listing: str, reading: str
) -> None:
    made = config(model={"source": source, "name": "m"}, eks={"region": region})
    assert "eks-pod-identity-agent" in [addon["name"] for addon in made["addons"]]
    (association,) = made["iam"]["podIdentityAssociations"]
    assert (association["namespace"], association["serviceAccountName"]) == ("diptych", "qwen")
    first, second = association["permissionPolicy"]["Statement"]
    assert (first["Action"], first["Resource"]) == (["s3:ListBucket"], listing)
    assert (second["Action"], second["Resource"]) == (["s3:GetObject"], reading)
    assert ("Condition" in first) == (reading != f"{listing}/*")


def test_a_model_from_elsewhere_gives_pods_no_access_to_the_account() -> None:
    made = config()
    assert made["iam"] == {"withOIDC": True}
    assert "eks-pod-identity-agent" not in [addon["name"] for addon in made["addons"]]


def test_the_efa_security_group_admits_itself_in_both_directions_and_nobody_else() -> None:
    template = eksctl.efa_security_group(document())
    assert template is not None
    resources = template["Resources"]
    itself = {"Fn::GetAtt": ["EfaSecurityGroup", "GroupId"]}
    rules = {
        resource["Type"]: resource["Properties"]
        for name, resource in resources.items()
        if name != "EfaSecurityGroup"
    }
    assert rules == {
        "AWS::EC2::SecurityGroupIngress": {
            "GroupId": itself,
            "SourceSecurityGroupId": itself,
            "IpProtocol": "-1",
        },
        "AWS::EC2::SecurityGroupEgress": {
            "GroupId": itself,
            "DestinationSecurityGroupId": itself,
            "IpProtocol": "-1",
        },
    }
    assert template["Outputs"]["SecurityGroupId"]["Value"] == itself
    assert eksctl.efa_security_group(document(nodes={"instance_type": "g6.xlarge"})) is None


@pytest.mark.parametrize(("version", "needed"), [("1.32", True), ("1.33", False), ("1.35", False)])
def test_one_security_group_for_both_phases_is_needed_below_kubernetes_1_33(
    version: str, needed: bool
) -> None:
    assert eksctl.needs_efa_security_group(document(eks={"kubernetes_version": version})) == needed
    without_efa = document(eks={"kubernetes_version": version}, nodes={"instance_type": "g6.xlarge"})
    assert not eksctl.needs_efa_security_group(without_efa)


def test_given_security_groups_are_attached_to_gpu_nodes_only() -> None:
    made = eksctl.cluster_config(document(), Facts(), ["sg-0123456789abcdef0"])
    validator().validate(made)
    attached = {group["name"]: group.get("securityGroups") for group in made["managedNodeGroups"]}
    assert attached["system"] is None
    assert attached["qwen-prefill"] == attached["qwen-decode"] == {"attachIDs": ["sg-0123456789abcdef0"]}
