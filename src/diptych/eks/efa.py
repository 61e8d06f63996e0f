"""The security group for EFA among a service's GPU nodes, where the cluster's own does not have its rules yet."""

import json
from collections.abc import Sequence

from diptych.eks import ownership, stacks
from diptych.eks.job import EksJob
from diptych.eks.vpc import Vpc
from diptych.render.eksctl import efa_security_group, needs_efa_security_group

_USUAL_S = 60.0


def stack_name(job: EksJob) -> str:
    """The name of its stack."""
    return f"diptych-{job.place.cluster}-efa-{job.document.name}"


def security_groups(job: EksJob, stage: str, network: Vpc | None) -> Sequence[str]:
    """Ids of further security groups for the GPU nodes; made where they are needed and not there."""
    if network is None or not needs_efa_security_group(job.document):
        return ()
    name = stack_name(job)
    stack = stacks.settle(job, stage, name, _USUAL_S)
    if stack is not None and stack.is_dead:
        stacks.remove(job, stage, name)
        stack = None
    if stack is None:
        job.tell("detail", stage, "making the security group for EFA")
        job.change(
            "cloudformation",
            "create_stack",
            name,
            StackName=name,
            TemplateBody=json.dumps(efa_security_group(job.document)),
            Parameters=[{"ParameterKey": "VpcId", "ParameterValue": network.id}],
            Tags=[{"Key": key, "Value": value} for key, value in ownership.tags_of(job).items()],
        )
        stacks.settle(job, stage, name, _USUAL_S)
    answer = job.session.find("cloudformation", "describe_stacks", StackName=name) or {"Stacks": []}
    outputs = [output for stack in answer["Stacks"] for output in stack.get("Outputs", ())]
    return [each["OutputValue"] for each in outputs if each["OutputKey"] == "SecurityGroupId"]


def remove(job: EksJob, stage: str) -> None:
    """Remove it, where there is one."""
    if stacks.find(job.session, stack_name(job)) is not None:
        stacks.remove(job, stage, stack_name(job))
