"""An AWS account in which something runs already: what is counted, and what an existing cluster's network allows."""

from collections.abc import Callable

import pytest

from diptych.check import Finding
from diptych.eks import permissions, quotas
from diptych.eks.aws import Session
from eks.world import document
from fakes.aws import FakeAws

REGION = "us-east-2"
G_QUOTA = "L-DB2E81BA"

Check = Callable[..., dict[str, list[Finding]]]


def test_a_quota_is_compared_with_what_runs_and_the_command_has_the_numbers(
    aws: FakeAws, check: Check
) -> None:
    aws.quotas.values[G_QUOTA] = 80
    run(aws, "g6.8xlarge", 1)
    [found] = check()["N106"]
    assert "needs 64 vCPUs (1 × g6.8xlarge + 1 × g6.8xlarge)" in found.what
    assert "32 of them in use" in found.what
    assert f"--quota-code {G_QUOTA} --desired-value 96 --region {REGION}" in found.do


def test_this_documents_own_nodes_are_not_counted_twice(aws: FakeAws, check: Check) -> None:
    aws.quotas.values[G_QUOTA] = 64
    for group in ("llm-prefill", "llm-decode"):
        run(aws, "g6.8xlarge", 1, cluster="llm", group=group)
    assert "N106" not in check()
    run(aws, "g6.8xlarge", 1, cluster="other", group="llm-prefill")
    assert "N106" in check()


def test_permissions_are_simulated_for_the_role_and_not_for_its_session(
    aws: FakeAws, session: Session
) -> None:
    aws.client("iam").create_role(
        Path="/aws-reserved/sso.amazonaws.com/", RoleName="Dev", AssumeRolePolicyDocument="{}"
    )
    aws.faults.arn = "arn:aws:sts::123456789012:assumed-role/Dev/ada@example.com"
    aws.faults.denied |= {"iam:CreateRole", "eks:CreateCluster"}
    assert set(permissions.denied(session, session.who())) == {"iam:CreateRole", "eks:CreateCluster"}
    calls = aws.called("iam:SimulatePrincipalPolicy")
    role = "arn:aws:iam::123456789012:role/aws-reserved/sso.amazonaws.com/Dev"
    assert {call.parameters["PolicySourceArn"] for call in calls} == {role}


@pytest.mark.report("B7")
def test_security_groups_of_an_existing_cluster_need_both_rules_on_themselves(
    aws: FakeAws, check: Check
) -> None:
    own = make_cluster(aws)
    ec2 = aws.client("ec2")
    ec2.revoke_security_group_egress(
        GroupId=own, IpPermissions=rules_on_itself(aws, own, "IpPermissionsEgress")
    )
    ec2.authorize_security_group_egress(
        GroupId=own, IpPermissions=[{"IpProtocol": "-1", "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}]
    )
    [found] = check()["N141"]
    assert f"{own} has no rule to itself" in found.what
    assert f"authorize-security-group-egress --group-id {own}" in found.do


def test_the_security_group_of_a_new_cluster_lets_efa_pass(aws: FakeAws, check: Check) -> None:
    make_cluster(aws)
    assert not set(check()) & {"N140", "N141", "N142", "N143"}


def test_a_zone_in_which_the_cluster_has_no_subnet_is_told(aws: FakeAws, check: Check) -> None:
    make_cluster(aws)
    assert "are in us-east-2a, us-east-2b" in check("eks: {zone: us-east-2c}\n")["N142"][0].what


def test_vpcs_and_addresses_are_counted_too(aws: FakeAws, session: Session) -> None:
    aws.quotas.values[quotas.ADDRESSES] = 5
    aws.client("ec2").allocate_address(Domain="vpc")
    [found] = quotas.find(session, document(), [quotas.ADDRESSES])
    assert (found.limit, found.used, found.unit) == (5, 1, "Elastic IP addresses")


def run(aws: FakeAws, instance_type: str, count: int, **tags: str) -> None:
    """Instances that run, tagged as EKS tags those of a node group."""
    names = {"cluster": "eks:cluster-name", "group": "eks:nodegroup-name"}
    ec2 = aws.client("ec2")
    ec2.run_instances(
        ImageId="ami-0c1f7b7eb05c17ca5",
        InstanceType=instance_type,
        MinCount=count,
        MaxCount=count,
        TagSpecifications=[
            {
                "ResourceType": "instance",
                "Tags": [{"Key": names[name], "Value": value} for name, value in tags.items()]
                or [{"Key": "a", "Value": "b"}],
            }
        ],
    )


def make_cluster(aws: FakeAws) -> str:
    """A cluster called "llm", in two zones; the id of its security group."""
    ec2, eks = aws.client("ec2"), aws.client("eks")
    vpc = ec2.create_vpc(CidrBlock="192.168.0.0/16")["Vpc"]["VpcId"]
    subnets = [
        ec2.create_subnet(VpcId=vpc, CidrBlock=f"192.168.{n}.0/24", AvailabilityZone=f"{REGION}{letter}")[
            "Subnet"
        ]
        for n, letter in enumerate("ab")
    ]
    eks.create_cluster(
        name="llm",
        version="1.35",
        roleArn="arn:aws:iam::123456789012:role/eks",
        resourcesVpcConfig={"subnetIds": [each["SubnetId"] for each in subnets]},
    )
    found = eks.describe_cluster(name="llm")["cluster"]
    return str(found["resourcesVpcConfig"]["clusterSecurityGroupId"])


def rules_on_itself(aws: FakeAws, group: str, direction: str) -> list[dict[str, object]]:
    [found] = aws.client("ec2").describe_security_groups(GroupIds=[group])["SecurityGroups"]
    return list(found[direction])
