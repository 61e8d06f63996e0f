"""The fake AWS and the stand-ins of eksctl and helm refuse what the real ones refuse, and fail as they fail."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml
from botocore.config import Config
from botocore.exceptions import ClientError

from fakes import real_tools
from fakes.aws import FakeAws
from fakes.kubernetes import FakeKubernetes

REGION = "us-east-2"
KUBERAY = "https://ray-project.github.io/kuberay-helm/"
GPU, EFA = "nvidia.com/gpu", "vpc.amazonaws.com/efa"


def group(
    name: str, instance_type: str = "g6.8xlarge", zone: str = "us-east-2a", **more: Any
) -> dict[str, Any]:
    return {
        "name": name,
        "instanceType": instance_type,
        "desiredCapacity": 1,
        "minSize": 1,
        "maxSize": 1,
        "availabilityZones": [zone],
        "privateNetworking": True,
        **more,
    }


def config(*groups: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "apiVersion": "eksctl.io/v1alpha5",
        "kind": "ClusterConfig",
        "metadata": {
            "name": "llm",
            "region": REGION,
            "version": "1.35",
            "tags": {"diptych.dev/service": "llm"},
        },
        "availabilityZones": ["us-east-2a", "us-east-2b"],
        "iam": {"withOIDC": True},
        "managedNodeGroups": list(groups),
        **more,
    }


@pytest.fixture
def kubernetes() -> Iterator[FakeKubernetes]:
    with FakeKubernetes() as fake:
        yield fake


@pytest.fixture
def aws(kubernetes: FakeKubernetes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeAws]:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    with FakeAws(REGION, kubernetes) as fake:
        for name, value in fake.environ().items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("KUBECONFIG", str(kubernetes.kubeconfig(tmp_path / "kubeconfig")))
        yield fake


def client(service: str, region: str = REGION) -> Any:
    """As a user has it, without retries."""
    return boto3.client(service, region_name=region, config=Config(retries={"total_max_attempts": 1}))


def code_of(call: Callable[[], object]) -> str:
    with pytest.raises(ClientError) as caught:
        call()
    return str(caught.value.response["Error"]["Code"])


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def write(path: Path, content: Mapping[str, Any]) -> str:
    path.write_text(yaml.safe_dump(dict(content)))
    return str(path)


def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)


def settled(aws: FakeAws, name: str) -> str:
    """The status that a stack comes to."""
    until(lambda: not aws.stacks.find(name) or not aws.stacks.find(name).status.endswith("IN_PROGRESS"))
    found = aws.stacks.find(name)
    return found.status if found else "DELETE_COMPLETE"


@pytest.fixture
def cluster(aws: FakeAws) -> FakeAws:
    """A cluster is there, without nodes."""
    aws.recipes.start_cluster(config())
    assert settled(aws, "eksctl-llm-cluster") == "CREATE_COMPLETE"
    return aws


def add(aws: FakeAws, wanted: Mapping[str, Any]) -> str:
    """Make a node group; the status of its stack."""
    aws.recipes.start_nodegroup(config(), wanted)
    return settled(aws, f"eksctl-llm-nodegroup-{wanted['name']}")


def allocatable(kubernetes: FakeKubernetes, resource: str) -> list[str | None]:
    return [node["status"]["allocatable"].get(resource) for node in kubernetes.nodes]


# Clusters and stacks


def test_a_cluster_takes_its_time_and_is_refused_with_what_eks_refuses(aws: FakeAws) -> None:
    eks, ec2 = client("eks"), client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    subnets = [
        ec2.create_subnet(VpcId=vpc, CidrBlock=f"10.0.{n}.0/24", AvailabilityZone=f"us-east-2{'ab'[n]}")[
            "Subnet"
        ]["SubnetId"]
        for n in range(2)
    ]

    def make(version: str = "1.35", ids: list[str] = subnets) -> Any:
        network = {"subnetIds": ids}
        return eks.create_cluster(
            name="x", version=version, roleArn="arn:aws:iam::1:role/r", resourcesVpcConfig=network
        )

    assert code_of(lambda: make("9.99")) == "InvalidParameterException"
    assert code_of(lambda: make(ids=["subnet-none", *subnets])) == "InvalidParameterException"
    assert code_of(lambda: make(ids=subnets[:1])) == "InvalidParameterException"
    assert make()["cluster"]["status"] == "CREATING"
    assert code_of(make) == "ResourceInUseException"

    def early() -> object:
        return eks.create_nodegroup(clusterName="x", nodegroupName="n", subnets=subnets, nodeRole="r")

    assert code_of(early) == "InvalidRequestException"
    until(lambda: eks.describe_cluster(name="x")["cluster"]["status"] == "ACTIVE")
    assert eks.delete_cluster(name="x")["cluster"]["status"] == "DELETING"
    until(lambda: not eks.list_clusters()["clusters"])
    assert code_of(lambda: eks.describe_cluster(name="x")) == "ResourceNotFoundException"


def test_a_stack_tells_its_events_and_what_it_holds(cluster: FakeAws) -> None:
    formation = client("cloudformation")
    events = formation.describe_stack_events(StackName="eksctl-llm-cluster")["StackEvents"]
    assert events[0]["ResourceStatus"] == "CREATE_COMPLETE"
    assert events[-1]["ResourceStatusReason"] == "User Initiated"
    assert [one["LogicalResourceId"] for one in events if one["ResourceType"] == "AWS::EKS::Cluster"] == [
        "ControlPlane"
    ] * 2
    stack = formation.describe_stacks(StackName="eksctl-llm-cluster")["Stacks"][0]
    assert {"Key": "diptych.dev/service", "Value": "llm"} in stack["Tags"]
    assert code_of(lambda: formation.describe_stacks(StackName="none")) == "ValidationError"


def test_a_template_of_a_security_group_makes_it_and_its_rules(cluster: FakeAws) -> None:
    render = pytest.importorskip("diptych.render.eksctl")
    from diptych.spec import Document

    document = Document.model_validate(
        {"on": "eks", "model": "Qwen/Qwen3-8B", "nodes": {"instance_type": "g6.8xlarge"}}
    )
    template = render.efa_security_group(document)
    vpc = client("eks").describe_cluster(name="llm")["cluster"]["resourcesVpcConfig"]["vpcId"]
    formation = client("cloudformation")
    formation.create_stack(
        StackName="efa",
        TemplateBody=json.dumps(template),
        Parameters=[{"ParameterKey": "VpcId", "ParameterValue": vpc}],
    )
    assert settled(cluster, "efa") == "CREATE_COMPLETE"
    output = formation.describe_stacks(StackName="efa")["Stacks"][0]["Outputs"][0]
    found = client("ec2").describe_security_groups(GroupIds=[output["OutputValue"]])["SecurityGroups"][0]
    assert found["IpPermissions"][0]["UserIdGroupPairs"][0]["GroupId"] == found["GroupId"]
    unknown = json.dumps({"Resources": {"A": {"Type": "AWS::S3::Bucket"}}})
    assert code_of(lambda: formation.create_stack(StackName="b", TemplateBody=unknown)) == "ValidationError"


def test_deleting_it_all_leaves_nothing(cluster: FakeAws, kubernetes: FakeKubernetes) -> None:
    assert add(cluster, group("gpu", efaEnabled=True)) == "CREATE_COMPLETE"
    assert len(kubernetes.nodes) == 1
    cluster.stacks.delete("eksctl-llm-nodegroup-gpu")
    assert settled(cluster, "eksctl-llm-nodegroup-gpu") == "DELETE_COMPLETE"
    cluster.stacks.delete("eksctl-llm-cluster")
    assert settled(cluster, "eksctl-llm-cluster") == "DELETE_COMPLETE"
    assert kubernetes.nodes == []
    ec2 = client("ec2")
    assert ec2.describe_network_interfaces()["NetworkInterfaces"] == []
    assert ec2.describe_volumes()["Volumes"] == []
    assert ec2.describe_placement_groups()["PlacementGroups"] == []
    assert [vpc["IsDefault"] for vpc in ec2.describe_vpcs()["Vpcs"]] == [True]
    assert cluster.unknown == []


# Nodes and capacity


@pytest.mark.report("T2")
def test_without_capacity_the_stack_rolls_back_and_a_second_run_does_nothing(
    cluster: FakeAws, kubernetes: FakeKubernetes, tmp_path: Path
) -> None:
    file = write(tmp_path / "c.yaml", config(group("gpu", efaEnabled=True)))
    cluster.machines.left["g6.8xlarge", "us-east-2a"] = 0
    first = run("eksctl", "create", "nodegroup", "-f", file, "--include=gpu")
    assert first.returncode == 1
    assert "InsufficientInstanceCapacity" in first.stdout
    assert settled(cluster, "eksctl-llm-nodegroup-gpu") == "ROLLBACK_COMPLETE"
    assert code_of(lambda: client("eks").describe_nodegroup(clusterName="llm", nodegroupName="gpu")) == (
        "ResourceNotFoundException"
    )
    cluster.machines.left.clear()
    again = run("eksctl", "create", "nodegroup", "-f", file, "--include=gpu")
    assert (again.returncode, kubernetes.nodes) == (0, [])
    assert "1 existing nodegroup(s) (gpu) will be excluded" in again.stdout
    assert (
        run("eksctl", "delete", "nodegroup", "-f", file, "--include=gpu", "--approve", "--wait").returncode
        == 0
    )
    assert run("eksctl", "create", "nodegroup", "-f", file, "--include=gpu").returncode == 0
    until(lambda: allocatable(kubernetes, EFA) == ["1"] and allocatable(kubernetes, GPU) == ["1"])


def test_a_zone_with_one_machine_left_gives_it_to_one_of_two_groups(cluster: FakeAws) -> None:
    cluster.machines.left["g6.8xlarge", "us-east-2a"] = 1
    for name in ("prefill", "decode"):
        cluster.recipes.start_nodegroup(config(), group(name))
    ends = sorted(settled(cluster, f"eksctl-llm-nodegroup-{name}") for name in ("prefill", "decode"))
    assert ends == ["CREATE_COMPLETE", "ROLLBACK_COMPLETE"]
    assert cluster.machines.left["g6.8xlarge", "us-east-2a"] == 0


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda aws: aws.quotas.values.update({"L-DB2E81BA": 31}), "vCPU limit of 31"),
        (
            lambda aws: aws.ec2.offerings.update({"g6.8xlarge": {"us-east-2b"}}),
            "not supported in your requested",
        ),
    ],
)
def test_other_refusals_of_ec2_are_told_in_its_words(
    cluster: FakeAws, spoil: Callable[[FakeAws], None], words: str
) -> None:
    spoil(cluster)
    assert add(cluster, group("gpu")) == "ROLLBACK_COMPLETE"
    reasons = [event.get("ResourceStatusReason", "") for event in cluster.stacks.all[-1].events]
    assert any(words in reason for reason in reasons)


@pytest.mark.report("B10")
def test_a_reservation_serves_only_launches_outside_a_placement_group(cluster: FakeAws) -> None:
    reserved = cluster.ec2.reserve("g6.8xlarge", "us-east-2a", 1)
    cluster.machines.left["g6.8xlarge", "us-east-2a"] = 0
    target = {"capacityReservationTarget": {"capacityReservationID": reserved}}
    placed = group("placed", capacityReservation=target, placement={"groupName": "mine"})
    client("ec2").create_placement_group(GroupName="mine", Strategy="cluster")
    assert add(cluster, placed) == "ROLLBACK_COMPLETE"
    assert add(cluster, group("gpu", efaEnabled=True, capacityReservation=target)) == "CREATE_COMPLETE"
    found = client("ec2").describe_capacity_reservations(CapacityReservationIds=[reserved])[
        "CapacityReservations"
    ][0]
    assert found["AvailableInstanceCount"] == 0
    cluster.ec2.reservation_groups["arn:group"] = [reserved]
    listed = client("resource-groups").list_group_resources(Group="arn:group")["Resources"]
    assert listed[0]["Identifier"]["ResourceArn"] == found["CapacityReservationArn"]


@pytest.mark.report("T1")
@pytest.mark.parametrize(
    ("instance_type", "taints", "interfaces"),
    [
        ("g6.8xlarge", [], "1"),
        ("g6.8xlarge", [{"key": GPU, "value": "true", "effect": "NoSchedule"}], None),
        ("g7e.8xlarge", [], None),
    ],
)
def test_eksctls_efa_plugin_stays_away_from_taints_and_from_types_it_does_not_know(
    cluster: FakeAws,
    kubernetes: FakeKubernetes,
    tmp_path: Path,
    instance_type: str,
    taints: list[dict[str, str]],
    interfaces: str | None,
) -> None:
    wanted = group("gpu", instance_type, efaEnabled=True, **({"taints": taints} if taints else {}))
    done = run("eksctl", "create", "nodegroup", "-f", write(tmp_path / "c.yaml", config(wanted)))
    assert done.returncode == 0, done.stderr
    until(lambda: allocatable(kubernetes, GPU) == ["1"])
    assert allocatable(kubernetes, EFA) == [interfaces]


def test_a_group_shrinks_without_asking_which_node_is_drained(cluster: FakeAws) -> None:
    assert add(cluster, group("gpu", desiredCapacity=2, minSize=1, maxSize=2)) == "CREATE_COMPLETE"
    eks, scaling = client("eks"), client("autoscaling")
    about = {"clusterName": "llm", "nodegroupName": "gpu"}
    name = eks.describe_nodegroup(**about)["nodegroup"]["resources"]["autoScalingGroups"][0]["name"]
    described = scaling.describe_auto_scaling_groups(AutoScalingGroupNames=[name])["AutoScalingGroups"][0]
    first, second = (one["InstanceId"] for one in described["Instances"])

    def end(instance: str) -> Any:
        shrink = {"InstanceId": instance, "ShouldDecrementDesiredCapacity": True}
        return scaling.terminate_instance_in_auto_scaling_group(**shrink)

    def resize(count: int) -> Any:
        return eks.update_nodegroup_config(**about, scalingConfig={"desiredSize": count})

    def running() -> list[str]:
        return list(cluster.machines.groups[name].instances)

    end(second)
    until(lambda: running() == [first])
    assert code_of(lambda: end(first)) == "ValidationError", "it has no more than it must have"
    resize(2)
    assert code_of(lambda: resize(1)) == "ResourceInUseException"
    until(lambda: len(running()) == 2)
    until(lambda: eks.describe_nodegroup(**about)["nodegroup"]["status"] == "ACTIVE")
    resize(1)
    until(lambda: len(running()) == 1)
    assert running() != [first], "the group chose"


@pytest.mark.report("B7")
@pytest.mark.parametrize(("version", "groups"), [("1.32", 2), ("1.35", 1)])
def test_efa_passes_by_the_clusters_security_group_since_1_33_and_by_one_per_group_before(
    aws: FakeAws, version: str, groups: int
) -> None:
    older = config(metadata={"name": "llm", "region": REGION, "version": version})
    aws.recipes.start_cluster(older)
    assert settled(aws, "eksctl-llm-cluster") == "CREATE_COMPLETE"
    aws.recipes.start_nodegroup(older, group("gpu", efaEnabled=True))
    assert settled(aws, "eksctl-llm-nodegroup-gpu") == "CREATE_COMPLETE"
    ec2 = client("ec2")
    interface = ec2.describe_instances()["Reservations"][0]["Instances"][0]["NetworkInterfaces"][0]
    attached = [one["GroupId"] for one in interface["Groups"]]
    assert len(attached) == groups
    last = ec2.describe_security_groups(GroupIds=[attached[-1]])["SecurityGroups"][0]
    for rules in (last["IpPermissions"], last["IpPermissionsEgress"]):
        assert {"GroupId": last["GroupId"]}.items() <= rules[-1]["UserIdGroupPairs"][0].items()


def test_a_capacity_block_serves_only_those_who_launch_into_one(aws: FakeAws) -> None:
    aws.recipes.start_cluster(config())
    assert settled(aws, "eksctl-llm-cluster") == "CREATE_COMPLETE"
    block = aws.ec2.reserve("p5.48xlarge", "us-east-2a", 1, block=True)
    target = {"capacityReservationTarget": {"capacityReservationID": block}}
    plain = group("plain", "p5.48xlarge", capacityReservation=target)
    assert add(aws, plain) == "ROLLBACK_COMPLETE"
    market = {"marketType": "capacity-block"}
    assert add(aws, {**plain, "name": "block", "instanceMarketOptions": market}) == "CREATE_COMPLETE"


# What goes wrong on the way down


@pytest.mark.report("I1")
def test_an_interface_left_behind_holds_the_clusters_stack_until_it_is_deleted(cluster: FakeAws) -> None:
    cluster.eks.dangling.add("gpu")
    add(cluster, group("gpu"))
    cluster.stacks.delete("eksctl-llm-nodegroup-gpu")
    assert settled(cluster, "eksctl-llm-nodegroup-gpu") == "DELETE_COMPLETE"
    done = run("eksctl", "delete", "cluster", "--name=llm", f"--region={REGION}", "--wait")
    assert done.returncode == 1
    assert "has dependencies and cannot be deleted" in done.stdout
    assert settled(cluster, "eksctl-llm-cluster") == "DELETE_FAILED"
    ec2 = client("ec2")
    left = ec2.describe_network_interfaces(Filters=[{"Name": "status", "Values": ["available"]}])[
        "NetworkInterfaces"
    ]
    assert left[0]["Description"].startswith("aws-K8S-")
    owners = {tag["Key"]: tag["Value"] for tag in left[0]["TagSet"]}
    assert owners["cluster.k8s.amazonaws.com/name"] == "llm"
    ec2.delete_network_interface(NetworkInterfaceId=left[0]["NetworkInterfaceId"])
    for one in ec2.describe_security_groups(
        Filters=[{"Name": "tag:aws:eks:cluster-name", "Values": ["llm"]}]
    )["SecurityGroups"]:
        ec2.delete_security_group(GroupId=one["GroupId"])
    done = run("eksctl", "delete", "cluster", "--name=llm", f"--region={REGION}", "--wait")
    assert done.returncode == 0, done.stdout
    assert settled(cluster, "eksctl-llm-cluster") == "DELETE_COMPLETE"


@pytest.mark.report("I2")
def test_a_disruption_budget_holds_a_drain_until_its_time_is_over(
    cluster: FakeAws, kubernetes: FakeKubernetes, tmp_path: Path
) -> None:
    add(cluster, group("gpu"))
    node = kubernetes.nodes[0]["metadata"]["name"]
    meta = {"name": "held", "namespace": "default", "labels": {"app": "held"}}
    container = {"name": "c", "image": "i"}
    pod = {"nodeName": node, "containers": [container], "terminationGracePeriodSeconds": 0}
    ready = [{"type": "Ready", "status": "True"}]
    status = {"phase": "Running", "conditions": ready}
    kubernetes.put({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": pod, "status": status})
    budget = {"minAvailable": 1, "selector": {"matchLabels": {"app": "held"}}}
    about = {"name": "held", "namespace": "default"}
    kubernetes.put(
        {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": about, "spec": budget}
    )
    file = write(tmp_path / "c.yaml", config(group("gpu")))
    delete = ("eksctl", "delete", "nodegroup", "-f", file, "--include=gpu", "--approve")
    held = run(*delete, "--timeout=2m")
    assert held.returncode == 1
    assert "Cannot evict pod as it would violate the pod's disruption budget" in held.stdout
    assert settled(cluster, "eksctl-llm-nodegroup-gpu") == "CREATE_COMPLETE"
    assert run(*delete, "--disable-eviction", "--wait").returncode == 0
    assert kubernetes.nodes == []


@pytest.mark.report("I4")
def test_a_node_group_that_eksctl_has_deleted_may_still_run(aws: FakeAws, tmp_path: Path) -> None:
    aws.recipes.start_cluster(config())
    settled(aws, "eksctl-llm-cluster")
    add(aws, group("gpu"))
    aws.clock.scale = 2.0
    file = write(tmp_path / "c.yaml", config(group("gpu")))
    done = run("eksctl", "delete", "nodegroup", "-f", file, "--approve", "--drain=false")
    assert done.returncode == 0 and "deleted 1 nodegroup(s)" in done.stdout
    running = [{"Name": "instance-state-name", "Values": ["running"]}]
    assert client("ec2").describe_instances(Filters=running)["Reservations"]
    about = {"clusterName": "llm", "nodegroupName": "gpu"}
    until(lambda: client("eks").describe_nodegroup(**about)["nodegroup"]["status"] == "DELETING")


# eksctl


def test_eksctl_refuses_what_the_real_one_refuses(aws: FakeAws, tmp_path: Path) -> None:
    good = write(tmp_path / "good.yaml", config(group("gpu")))
    cases: list[tuple[list[str], str]] = [
        (["create", "cluster", "-f", good, "--nodes-of", "x"], "unknown flag: --nodes-of"),
        (["create", "cluster", "-f", good, "--region=x"], "cannot use --region when --config-file/-f is set"),
        (["create", "cluster", "-f", str(tmp_path / "none.yaml")], "no such file or directory"),
        (["frobnicate"], 'unknown command "frobnicate" for "eksctl"'),
        (["delete", "cluster", "--name=none", "--region=us-east-2"], "No cluster found for name: none."),
        (["create", "nodegroup", "-f", good], "No cluster found for name: llm."),
        (["create", "cluster", "-f", good, "--timeout=soon"], 'time: invalid duration "soon"'),
        (
            ["create", "cluster", "-f", good, "--dry-run", "--timeout=5m"],
            "cannot use --timeout with --dry-run",
        ),
    ]
    for arguments, words in cases:
        done = run("eksctl", *arguments)
        assert (done.returncode, words in done.stderr) == (1, True), (arguments, done.stderr)
    assert aws.stacks.all == []


def test_eksctl_refuses_configs_that_it_could_not_load(aws: FakeAws, tmp_path: Path) -> None:
    from fakes.programs.eksctl.config import SCHEMA, load
    from fakes.programs.flags import RefusedError

    if not SCHEMA.is_file():
        pytest.skip(f"{SCHEMA} is not here")
    cases = [
        (config(group("gpu"), frob=1), 'unknown field "frob"'),
        (config(group("gpu", frob=1)), 'unknown field "frob"'),
        (config(group("gpu", desiredCapacity="two")), "desiredCapacity"),
        (config(availabilityZones=["us-east-2a"]), "only 1 zone(s) specified [us-east-2a], 2 are required"),
        (
            config(metadata={"name": "llm", "region": REGION, "version": "1.12"}),
            "1.12 is no longer supported",
        ),
        (
            config(group("gpu", "g6.4xlarge", efaEnabled=True)),
            "instance type g6.4xlarge does not support EFA",
        ),
        (
            config(group("gpu", instanceMarketOptions={"marketType": "capacity-block"})),
            "can only be set with",
        ),
        (config(group("gpu", minSize=3)), "at the same time"),
        (config(group("a"), group("a")), "is not unique"),
    ]
    for number, (wrong, words) in enumerate(cases):
        with pytest.raises(
            RefusedError, match=words.replace("(", r"\(").replace(")", r"\)").replace("[", r"\[")
        ):
            load(write(tmp_path / f"{number}.yaml", wrong))


def test_a_cluster_that_is_there_is_refused_and_deletion_of_groups_is_only_planned(
    cluster: FakeAws, tmp_path: Path
) -> None:
    add(cluster, group("gpu"))
    file = write(tmp_path / "c.yaml", config(group("gpu")))
    again = run("eksctl", "create", "cluster", "-f", file)
    assert again.returncode == 1 and "AlreadyExistsException" in again.stdout
    planned = run("eksctl", "delete", "nodegroup", "-f", file)
    assert planned.returncode == 0 and "run again with '--approve'" in planned.stdout
    assert client("eks").list_nodegroups(clusterName="llm")["nodegroups"] == ["gpu"]
    none = run("eksctl", "delete", "nodegroup", "--cluster=llm", "--name=none", "--drain=false")
    assert none.returncode == 1 and "No node group found for name: none." in none.stderr


def test_an_interrupt_ends_eksctl_and_not_its_stacks(
    aws: FakeAws, kubernetes: FakeKubernetes, tmp_path: Path
) -> None:
    aws.recipes.start_cluster(config())
    settled(aws, "eksctl-llm-cluster")
    aws.clock.scale = 0.02
    file = write(tmp_path / "c.yaml", config(group("gpu", efaEnabled=True)))
    with subprocess.Popen(
        ["eksctl", "create", "nodegroup", "-f", file], stdout=subprocess.DEVNULL
    ) as process:
        until(lambda: aws.stacks.find("eksctl-llm-nodegroup-gpu"))
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == -signal.SIGINT
    assert settled(aws, "eksctl-llm-nodegroup-gpu") == "CREATE_COMPLETE"
    assert allocatable(kubernetes, GPU) == [None]
    assert run("eksctl", "create", "nodegroup", "-f", file).returncode == 0
    assert allocatable(kubernetes, GPU) == [None], "plugins are for groups made in that run"


def test_create_cluster_makes_all_of_it_and_writes_a_kubeconfig(
    aws: FakeAws, kubernetes: FakeKubernetes, tmp_path: Path
) -> None:
    identity = {
        "namespace": "inference",
        "serviceAccountName": "llm",
        "permissionPolicy": {"Version": "2012-10-17", "Statement": []},
    }
    whole = config(
        group("system", "m7i.xlarge"),
        iam={"withOIDC": True, "podIdentityAssociations": [identity]},
        addonsConfig={"disableDefaultAddons": True},
        addons=[{"name": "vpc-cni"}, {"name": "coredns"}],
    )
    file, kubeconfig = write(tmp_path / "c.yaml", whole), tmp_path / "made"
    done = run("eksctl", "create", "cluster", "-f", file, f"--kubeconfig={kubeconfig}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert yaml.safe_load(kubeconfig.read_text())["clusters"][0]["cluster"]["server"] == kubernetes.url
    eks = client("eks")
    assert eks.list_addons(clusterName="llm")["addons"] == ["vpc-cni", "coredns"]
    assert len(eks.list_pod_identity_associations(clusterName="llm")["associations"]) == 1
    assert len(client("iam").list_open_id_connect_providers()["OpenIDConnectProviderList"]) == 1
    assert [node["metadata"]["labels"]["eks.amazonaws.com/nodegroup"] for node in kubernetes.nodes] == [
        "system"
    ]
    done = run("eksctl", "delete", "cluster", "--name=llm", f"--region={REGION}", "--wait")
    assert done.returncode == 0, done.stdout + done.stderr
    assert client("iam").list_open_id_connect_providers()["OpenIDConnectProviderList"] == []
    assert client("cloudformation").describe_stacks()["Stacks"] == []


# The account


def test_expired_unknown_and_forbidden_callers_hear_it_in_each_services_words(
    aws: FakeAws, tmp_path: Path
) -> None:
    calls = {
        "sts": lambda: client("sts").get_caller_identity(),
        "ec2": lambda: client("ec2").describe_subnets(),
        "eks": lambda: client("eks").list_clusters(),
        "cloudformation": lambda: client("cloudformation").describe_stacks(),
        "service-quotas": lambda: client("service-quotas").list_service_quotas(ServiceCode="ec2"),
    }

    def heard() -> list[str]:
        return [code_of(call) for call in calls.values()]

    aws.faults.credentials = "expired"
    token = "ExpiredTokenException"
    assert heard() == ["ExpiredToken", "RequestExpired", token, "ExpiredToken", token]
    done = run("eksctl", "create", "cluster", "-f", write(tmp_path / "c.yaml", config()))
    assert done.returncode == 1 and "The security token included in the request is expired" in done.stderr
    aws.faults.credentials = "invalid"
    unknown = "UnrecognizedClientException"
    assert heard() == ["InvalidClientTokenId", "AuthFailure", unknown, "InvalidClientTokenId", unknown]
    aws.faults.credentials = "good"
    aws.faults.denied |= {"sts:*", "ec2:*", "eks:ListClusters", "cloudformation:*", "servicequotas:*"}
    denied = "AccessDeniedException"
    assert heard() == ["AccessDenied", "UnauthorizedOperation", denied, "AccessDenied", denied]
    simulated = client("iam").simulate_principal_policy(
        PolicySourceArn=aws.faults.arn, ActionNames=["eks:ListClusters", "eks:CreateCluster"]
    )["EvaluationResults"]
    assert [row["EvalDecision"] for row in simulated] == ["implicitDeny", "allowed"]
    role = "arn:aws:sts::123456789012:assumed-role/admin/me"
    assert (
        code_of(lambda: client("iam").simulate_principal_policy(PolicySourceArn=role, ActionNames=["a:b"]))
        == "InvalidInput"
    )


def test_a_role_that_was_assumed_and_a_profiles_key_have_their_own_names(aws: FakeAws) -> None:
    role = "arn:aws:iam::999999999999:role/admin"
    made = client("sts").assume_role(RoleArn=role, RoleSessionName="me")["Credentials"]
    keys = {"aws_access_key_id": made["AccessKeyId"], "aws_secret_access_key": made["SecretAccessKey"]}
    assumed = boto3.client("sts", aws_session_token=made["SessionToken"], **keys)
    assert assumed.get_caller_identity()["Arn"] == "arn:aws:sts::999999999999:assumed-role/admin/me"
    assert client("sts").get_caller_identity()["Account"] == "123456789012"


def test_every_answer_tells_the_time_by_a_clock_that_may_go_wrong(aws: FakeAws) -> None:
    aws.clock_skew_s = 3600
    for call in (client("sts").get_caller_identity, client("ec2").describe_subnets):
        told = parsedate_to_datetime(call()["ResponseMetadata"]["HTTPHeaders"]["date"])
        assert abs((told - datetime.now(UTC)).total_seconds() - 3600) < 60


def test_rates_and_broken_answers_end_by_themselves(aws: FakeAws) -> None:
    aws.faults.throttled = {"ec2:DescribeSubnets": 1, "eks:ListClusters": 1}
    aws.faults.broken = {"sts:GetCallerIdentity": 1}
    assert code_of(client("ec2").describe_subnets) == "RequestLimitExceeded"
    assert code_of(client("eks").list_clusters) == "ThrottlingException"
    assert code_of(client("sts").get_caller_identity) == "InternalFailure"
    client("ec2").describe_subnets()
    client("eks").list_clusters()
    assert client("sts").get_caller_identity()["Account"] == "123456789012"
    assert len(aws.called("eks:ListClusters")) == 2


def test_answers_come_in_pages(cluster: FakeAws) -> None:
    cluster.faults.page_size = 1
    for name in ("a", "b"):
        add(cluster, group(name, "m7i.xlarge"))
    pages = list(client("eks").get_paginator("list_nodegroups").paginate(clusterName="llm"))
    assert [page["nodegroups"] for page in pages] == [["a"], ["b"]]
    stacks = list(client("cloudformation").get_paginator("describe_stacks").paginate())
    assert len(stacks) == 3
    tagged = client("resourcegroupstaggingapi").get_paginator("get_resources")
    rows = [
        row
        for page in tagged.paginate(TagFilters=[{"Key": "diptych.dev/service"}])
        for row in page["ResourceTagMappingList"]
    ]
    kinds = {row["ResourceARN"].split(":")[2] for row in rows}
    assert kinds == {"ec2", "eks"}
    cluster.tags.late = True
    late = client("resourcegroupstaggingapi").get_resources(ResourceTypeFilters=["eks:cluster"])
    assert late["ResourceTagMappingList"] == []


def test_prices_are_one_only_for_those_who_ask_exactly(aws: FakeAws) -> None:
    pricing = client("pricing")

    def ask(**fields: str) -> list[dict[str, Any]]:
        filters = [{"Type": "TERM_MATCH", "Field": key, "Value": value} for key, value in fields.items()]
        return [
            json.loads(one)
            for one in pricing.get_products(ServiceCode="AmazonEC2", Filters=filters)["PriceList"]
        ]

    loose = {"instanceType": "g6.8xlarge", "regionCode": REGION}
    exact = {
        **loose,
        "operatingSystem": "Linux",
        "tenancy": "Shared",
        "preInstalledSw": "NA",
        "capacitystatus": "Used",
    }
    assert len(ask(**loose)) > 1
    term = next(iter(ask(**exact)[0]["terms"]["OnDemand"].values()))
    price = next(iter(term["priceDimensions"].values()))
    assert (price["unit"], float(price["pricePerUnit"]["USD"])) == ("Hrs", 2.1144)
    assert ask(**{**exact, "regionCode": "eu-west-1"}) == []


def test_quotas_versions_and_placement_groups_are_as_documented(aws: FakeAws) -> None:
    quotas = client("service-quotas")
    asked = {"ServiceCode": "ec2", "QuotaCode": "L-DB2E81BA"}
    assert quotas.get_service_quota(**asked)["Quota"]["Value"] == 192
    quotas.request_service_quota_increase(**asked, DesiredValue=256)
    assert (
        code_of(lambda: quotas.request_service_quota_increase(**asked, DesiredValue=300))
        == "ResourceAlreadyExistsException"
    )
    wrong = {"ServiceCode": "ec2", "QuotaCode": "L-0"}
    assert code_of(lambda: quotas.get_service_quota(**wrong)) == "NoSuchResourceException"
    aws.eks.today = datetime(2026, 12, 5, tzinfo=UTC)
    versions = {
        one["clusterVersion"]: one["versionStatus"]
        for one in client("eks").describe_cluster_versions()["clusterVersions"]
    }
    assert (versions["1.34"], versions["1.35"]) == ("EXTENDED_SUPPORT", "STANDARD_SUPPORT")
    ec2 = client("ec2")
    ec2.create_placement_group(GroupName="p", Strategy="cluster")
    assert code_of(lambda: ec2.create_placement_group(GroupName="p")) == "InvalidPlacementGroup.Duplicate"
    ec2.delete_placement_group(GroupName="p")
    assert code_of(lambda: ec2.delete_placement_group(GroupName="p")) == "InvalidPlacementGroup.Unknown"


def test_other_regions_are_empty_and_what_nobody_knows_is_an_error(aws: FakeAws) -> None:
    assert client("eks", "eu-west-1").list_clusters()["clusters"] == []
    assert (
        code_of(lambda: client("eks", "eu-west-1").describe_cluster(name="llm"))
        == "ResourceNotFoundException"
    )
    assert code_of(lambda: client("eks").list_fargate_profiles(clusterName="llm")) == "InternalFailure"
    assert code_of(lambda: client("ec2").describe_fast_snapshot_restores()) == "InternalFailure"
    assert aws.unknown == ["eks:ListFargateProfiles", "ec2:DescribeFastSnapshotRestores"]


# helm


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run("helm", *arguments, "--namespace=operators")


def upgrade(values: str, *more: str) -> subprocess.CompletedProcess[str]:
    return helm(
        "upgrade", "kuberay-operator", "kuberay-operator", "--install", f"--repo={KUBERAY}", "--version=1.7.0",
        f"--values={values}", *more,
    )  # fmt: skip


@pytest.fixture
def values(aws: FakeAws, kubernetes: FakeKubernetes, tmp_path: Path) -> str:
    for name in ("operators", "inference"):
        kubernetes.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    about = {"image": {"tag": "v1.7.0"}, "singleNamespaceInstall": True, "watchNamespace": ["inference"]}
    return write(tmp_path / "values.yaml", about)


def test_helm_says_which_it_is_and_knows_its_own_flags(values: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("helm", "version", "--short").stdout == "v4.1.4+g05fa379\n"
    assert "unknown flag: --atomic" in upgrade(values, "--atomic").stderr
    monkeypatch.setenv("FAKE_HELM_VERSION", "3.19.0")
    assert run("helm", "version", "--short").stdout.startswith("v3.19.0+g")
    assert "unknown flag: --rollback-on-failure" in upgrade(values, "--rollback-on-failure").stderr


def test_helm_installs_the_operator_upgrades_it_and_leaves_its_crds(
    values: str, kubernetes: FakeKubernetes, tmp_path: Path
) -> None:
    crds = helm("show", "crds", "kuberay-operator", f"--repo={KUBERAY}", "--version=1.7.0")
    if "is not there" in crds.stderr:
        pytest.skip("../shared/schemas is not here")
    names = [one["metadata"]["name"] for one in yaml.load_all(crds.stdout, yaml.CSafeLoader)]
    assert names == ["rayclusters.ray.io", "rayservices.ray.io", "rayjobs.ray.io"]
    assert helm("get", "values", "kuberay-operator", "-o=json").stderr == "Error: release: not found\n"
    done = upgrade(values)
    assert done.returncode == 0, done.stderr
    deployment = kubernetes.get("Deployment", "kuberay-operator", "operators")
    assert deployment is not None
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    assert container["args"][:2] == ["--watch-namespace", "inference"]
    assert container["image"] == "quay.io/kuberay/operator:v1.7.0"
    other = write(tmp_path / "other.yaml", {"watchNamespace": ["operators"], "singleNamespaceInstall": True})
    assert upgrade(other, "--history-max=1").returncode == 0
    assert kubernetes.get("Role", "kuberay-operator", "inference") is None
    assert len(kubernetes.all("Secret", "operators")) == 1
    listed = json.loads(helm("list", "-o=json").stdout)
    assert [(row["revision"], row["status"], row["chart"]) for row in listed] == [
        ("2", "deployed", "kuberay-operator-1.7.0")
    ]
    assert helm("uninstall", "kuberay-operator").returncode == 0
    assert kubernetes.get("Deployment", "kuberay-operator", "operators") is None
    assert kubernetes.get("CustomResourceDefinition", "rayservices.ray.io") is not None
    assert (
        "Release not loaded: kuberay-operator: release: not found"
        in helm("uninstall", "kuberay-operator").stderr
    )


def test_helm_refuses_unknown_values_charts_namespaces_and_what_others_made(
    values: str, kubernetes: FakeKubernetes, tmp_path: Path
) -> None:
    unknown = write(tmp_path / "unknown.yaml", {"watchNamespaces": ["inference"]})
    assert "has no value watchNamespaces" in upgrade(unknown).stderr
    elsewhere = run("helm", "upgrade", "a", "b", "--install", "--repo=https://example.com")
    assert "is not a valid chart repository" in elsewhere.stderr
    old = run("helm", "upgrade", "a", "kuberay-operator", "--install", f"--repo={KUBERAY}", "--version=0.1.0")
    assert 'version "0.1.0" not found' in old.stderr
    nowhere = run("helm", "install", "a", "kuberay-operator", f"--repo={KUBERAY}", "--namespace=nowhere")
    assert 'namespaces "nowhere" not found' in nowhere.stderr
    account = {"name": "kuberay-operator", "namespace": "operators"}
    kubernetes.put({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})
    assert "cannot be imported into the current release" in upgrade(values, "--skip-crds").stderr


def test_helm_interrupted_marks_its_release_failed_and_killed_leaves_it_pending(
    values: str, kubernetes: FakeKubernetes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_HELM_PAUSE_S", "30")
    command = [
        "helm",
        "install",
        "kuberay-operator",
        "kuberay-operator",
        f"--repo={KUBERAY}",
        f"--values={values}",
    ]
    command += ["--namespace=operators", "--skip-crds"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        until(lambda: kubernetes.all("Secret", "operators"))
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 1
    assert kubernetes.all("Secret", "operators")[0]["metadata"]["labels"]["status"] == "failed"
    with subprocess.Popen(["helm", "upgrade", "--install", *command[2:]]) as process:
        until(lambda: len(kubernetes.all("Secret", "operators")) == 2)
        process.kill()
    assert "another operation (install/upgrade/rollback) is in progress" in upgrade(values).stderr


def test_the_real_helm_reads_the_stand_ins_releases(values: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = str(real_tools.helm())
    assert upgrade(values, "--skip-crds").returncode == 0
    told = [
        json.loads(run(program, "get", "values", "kuberay-operator", "-n=operators", "-o=json").stdout)
        for program in (real, "helm")
    ]
    assert told[0] == told[1]
    missing = [run(program, "get", "values", "none", "-n=operators").stderr for program in (real, "helm")]
    assert missing[0] == missing[1]


@pytest.mark.report("B12")
def test_the_charts_device_plugins_make_devices_allocatable_where_they_go(
    cluster: FakeAws, kubernetes: FakeKubernetes, tmp_path: Path
) -> None:
    add(cluster, group("gpu", "g7e.8xlarge", efaEnabled=True, labels={"role": "gpu-worker"}))
    chart = ("aws-efa-k8s-device-plugin", "--repo=https://aws.github.io/eks-charts", "--version=v0.5.30")
    install = ("helm", "upgrade", "--install", "--namespace=kube-system")
    assert run(*install, "efa", *chart).returncode == 0
    time.sleep(0.2)
    assert allocatable(kubernetes, EFA) == [None], "the chart's own list lacks g7e"
    types = {"supportedInstanceLabels": {"values": ["g7e.8xlarge"]}}
    assert run(*install, "efa", *chart, f"--values={write(tmp_path / 'efa.yaml', types)}").returncode == 0
    until(lambda: allocatable(kubernetes, EFA) == ["1"])
    cluster.nodes.advertised["g7e.8xlarge"] = {EFA: 2}
    until(lambda: allocatable(kubernetes, EFA) == ["2"])
    chart = ("nvidia-device-plugin", "--repo=https://nvidia.github.io/k8s-device-plugin", "--version=0.18.2")
    assert run(*install, "gpu", *chart).returncode == 0
    time.sleep(0.2)
    assert allocatable(kubernetes, GPU) == [None], "the chart waits for labels that nobody sets"
    free = write(tmp_path / "gpu.yaml", {"affinity": None, "nodeSelector": {"role": "gpu-worker"}})
    assert run(*install, "gpu", *chart, f"--values={free}").returncode == 0
    until(lambda: allocatable(kubernetes, GPU) == ["1"])
