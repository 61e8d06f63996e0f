"""Where node groups that are there differ from the document: in words, a line for each; nothing of it is changed.

What is not compared: the size of a root volume that the document leaves to Diptych, since that depends on what the
hub said of the checkpoint at the time; and how many nodes there are, which `up` sets.
"""

from collections.abc import Mapping
from typing import Any

from diptych.eks import capacity
from diptych.eks.groups import NodeGroup
from diptych.eks.job import EksJob
from diptych.eks.vpc import Zones
from diptych.errors import AccountError
from diptych.render.layout import WorkerGroup, worker_groups
from diptych.render.node_groups import volume_gib

_MARKETS = {"spot": "SPOT", "capacity-block": "CAPACITY_BLOCK"}


def of_machines(group: WorkerGroup, there: NodeGroup) -> tuple[str, ...]:
    """The instance type and the market of a GPU group, which can't become others in place."""
    market = _MARKETS.get(group.nodes.market or "", "ON_DEMAND")
    return _told(
        ("its instance type", ", ".join(there.instance_types), group.instance_type or ""),
        ("its market", there.market, market),
    )


def of_zone(job: EksJob, group: WorkerGroup, there: NodeGroup, zones: Zones) -> tuple[str, ...]:
    """The zone of a GPU group, where the document demands one."""
    return _of_zone("its zone", there, zones, capacity.fixed_zone(job, group))


def of_system(job: EksJob, there: NodeGroup, zones: Zones) -> tuple[str, ...]:
    """The system nodes' type, and their zone where the document demands one for the nodes beside them."""
    first = worker_groups(job.document)[0]
    wanted = job.document.eks.system_nodes.instance_type
    told = _told(("the system nodes' instance type", ", ".join(there.instance_types), wanted))
    return (*told, *_of_zone("the system nodes' zone", there, zones, capacity.fixed_zone(job, first)))


def of_template(job: EksJob, group: WorkerGroup, there: NodeGroup) -> tuple[str, ...]:
    """The size of the root volume, where the document has it, and the capacity reservation of a GPU group."""
    try:
        template = _template(job, there)
    except AccountError as error:
        return (f"its root volume and its capacity reservation could not be compared: {error.message}",)
    if template is None:
        return ()
    volumes = [each.get("Ebs") or {} for each in template.get("BlockDeviceMappings") or ()]
    size = next((each["VolumeSize"] for each in volumes if each.get("VolumeSize")), None)
    asked = group.nodes.volume_size is not None
    wanted = f"{volume_gib(job.document, job.facts, group)} GiB" if asked else ""
    target = (template.get("CapacityReservationSpecification") or {}).get("CapacityReservationTarget") or {}
    reserved = target.get("CapacityReservationId") or target.get("CapacityReservationResourceGroupArn")
    return (
        *_told(("its root volume", f"{size} GiB" if size else "", wanted)),
        *_told(
            ("its capacity reservation", reserved or "none", group.nodes.capacity_reservation or "none"),
        ),
    )


def _template(job: EksJob, there: NodeGroup) -> Mapping[str, Any] | None:
    """What the launch template of a group says; None where it has none."""
    if not there.template:
        return None
    answer = job.session.find(
        "ec2",
        "describe_launch_template_versions",
        LaunchTemplateId=there.template,
        Versions=[there.template_version or "$Default"],
    )
    found = (answer or {}).get("LaunchTemplateVersions") or ()
    return next((each["LaunchTemplateData"] for each in found), None)


def _of_zone(what: str, there: NodeGroup, zones: Zones, wanted: str | None) -> tuple[str, ...]:
    if wanted is None:
        return ()
    try:
        return _told((what, zones.of(there.subnets), wanted))
    except AccountError as error:
        return (f"{what} could not be compared: {error.message}",)


def _told(*pairs: tuple[str, str, str]) -> tuple[str, ...]:
    """
    >>> _told(("its zone", "us-east-2a", "us-east-2b"), ("its market", "SPOT", "SPOT"))
    ('its zone is us-east-2a, and the document says us-east-2b',)
    """
    return tuple(
        f"{what} is {is_now}, and the document says {wanted}"
        for what, is_now, wanted in pairs
        if is_now and wanted and is_now != wanted
    )
