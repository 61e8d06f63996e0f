"""CloudFormation templates of security groups and their rules: what Diptych itself hands to CreateStack.

Known: AWS::EC2::SecurityGroup, ::SecurityGroupIngress, ::SecurityGroupEgress, AWS::EC2::PlacementGroup; `Ref` and
`Fn::GetAtt`. Anything else is refused.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import yaml
from botocore.exceptions import ClientError

from fakes.aws.wire import AwsError

if TYPE_CHECKING:
    from fakes.aws.stacks import Resource

_SECTIONS = {"AWSTemplateFormatVersion", "Description", "Parameters", "Resources", "Outputs"}


def resources_of(
    body: str, given: Mapping[str, str], client: Callable[[str], Any]
) -> tuple[list["Resource"], Callable[[], dict[str, str]]]:
    """The template's resources in the order that their references need, and what finds the outputs.

    Args:
        given: parameters.
        client: gives boto3's client of a service.
    """
    from fakes.aws.stacks import Resource

    template = yaml.safe_load(body)
    _check(template, given)
    ids = dict(given)

    def value(written: Any) -> Any:
        if isinstance(written, list):
            return [value(one) for one in written]
        if not isinstance(written, dict):
            return written
        if "Ref" in written:
            return ids[written["Ref"]]
        if "Fn::GetAtt" in written:
            return ids[written["Fn::GetAtt"][0]]
        return {key: value(one) for key, one in written.items()}

    def resource(name: str, about: Mapping[str, Any]) -> "Resource":
        make, remove = _MAKERS[about["Type"]]

        def made() -> str:
            try:
                ids[name] = make(client("ec2"), value(about.get("Properties", {})))
            except ClientError as error:
                raise AwsError("Resource", str(error)) from error
            return ids[name]

        def removed(identifier: str) -> None:
            try:
                remove(client("ec2"), identifier)
            except ClientError as error:
                raise AwsError("Resource", str(error)) from error

        return Resource(name, about["Type"], made, removed)

    resources = [resource(name, about) for name, about in _in_order(template["Resources"])]
    outputs = template.get("Outputs", {})
    return resources, lambda: {name: value(about["Value"]) for name, about in outputs.items()}


def _check(template: Any, given: Mapping[str, str]) -> None:
    if not isinstance(template, dict) or not template.get("Resources"):
        raise AwsError(
            "ValidationError", "Template format error: At least one Resources member must be defined."
        )
    if unknown := set(template) - _SECTIONS:
        raise AwsError("ValidationError", f"Invalid template property or properties {sorted(unknown)}")
    parameters = template.get("Parameters", {})
    if missing := {name for name, about in parameters.items() if "Default" not in about} - set(given):
        raise AwsError("ValidationError", f"Parameters: {sorted(missing)} must have values")
    if surplus := set(given) - set(parameters):
        raise AwsError("ValidationError", f"Parameters: {sorted(surplus)} do not exist in the template")
    kinds = {about["Type"] for about in template["Resources"].values()}
    if unknown := kinds - set(_MAKERS):
        raise AwsError(
            "ValidationError", f"Template format error: Unrecognized resource types: {sorted(unknown)}"
        )


def _in_order(resources: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """What others refer to comes first."""
    left, done = dict(resources), []
    while left:
        for name, about in list(left.items()):
            if not _references(about) & (set(left) - {name}):
                done.append((name, left.pop(name)))
                break
        else:
            raise AwsError("ValidationError", f"Circular dependency between resources: {sorted(left)}")
    return done


def _references(written: Any) -> set[str]:
    if isinstance(written, list):
        return set().union(*map(_references, written))
    if not isinstance(written, dict):
        return set()
    if "Ref" in written:
        return {written["Ref"]}
    if "Fn::GetAtt" in written:
        return {written["Fn::GetAtt"][0]}
    return set().union(*map(_references, written.values()))


def _security_group(ec2: Any, about: Mapping[str, Any]) -> str:
    tags = [{"ResourceType": "security-group", "Tags": about.get("Tags", [])}]
    name = about.get("GroupName") or f"stack-{abs(hash(about['GroupDescription'])):x}"
    answer = ec2.create_security_group(
        GroupName=name,
        Description=about["GroupDescription"],
        VpcId=about["VpcId"],
        **({"TagSpecifications": tags} if about.get("Tags") else {}),
    )
    return str(answer["GroupId"])


def _remove_security_group(ec2: Any, identifier: str) -> None:
    ec2.delete_security_group(GroupId=identifier)


def _ingress(ec2: Any, about: Mapping[str, Any]) -> str:
    other = {"GroupId": about["SourceSecurityGroupId"]}
    rule = {"IpProtocol": str(about["IpProtocol"]), "UserIdGroupPairs": [other]}
    answer = ec2.authorize_security_group_ingress(GroupId=about["GroupId"], IpPermissions=[rule])
    return f"{about['GroupId']}/{answer['SecurityGroupRules'][0]['SecurityGroupRuleId']}"


def _egress(ec2: Any, about: Mapping[str, Any]) -> str:
    other = {"GroupId": about["DestinationSecurityGroupId"]}
    rule = {"IpProtocol": str(about["IpProtocol"]), "UserIdGroupPairs": [other]}
    answer = ec2.authorize_security_group_egress(GroupId=about["GroupId"], IpPermissions=[rule])
    return f"{about['GroupId']}/{answer['SecurityGroupRules'][0]['SecurityGroupRuleId']}"


def _revoke_ingress(ec2: Any, identifier: str) -> None:
    group, _, rule = identifier.partition("/")
    ec2.revoke_security_group_ingress(GroupId=group, SecurityGroupRuleIds=[rule])


def _revoke_egress(ec2: Any, identifier: str) -> None:
    group, _, rule = identifier.partition("/")
    ec2.revoke_security_group_egress(GroupId=group, SecurityGroupRuleIds=[rule])


def _placement_group(ec2: Any, about: Mapping[str, Any]) -> str:
    name = f"stack-{id(about):x}"
    ec2.create_placement_group(GroupName=name, Strategy=about.get("Strategy", "cluster"))
    return name


def _remove_placement_group(ec2: Any, name: str) -> None:
    ec2.delete_placement_group(GroupName=name)


_MAKERS: Mapping[str, tuple[Callable[[Any, Mapping[str, Any]], str], Callable[[Any, str], None]]] = {
    "AWS::EC2::SecurityGroup": (_security_group, _remove_security_group),
    "AWS::EC2::SecurityGroupIngress": (_ingress, _revoke_ingress),
    "AWS::EC2::SecurityGroupEgress": (_egress, _revoke_egress),
    "AWS::EC2::PlacementGroup": (_placement_group, _remove_placement_group),
}
