"""C8xx: the place itself: zones, nodes, dates, what each place can't do, and fields that it does not read."""

import re
from collections.abc import Iterable
from datetime import date, timedelta

from diptych.catalog.engines import KUBERNETES_VERSIONS
from diptych.catalog.instances import instance_type, instance_types, is_arm, nearest_with_efa
from diptych.catalog.regions import ZONE_LETTERS, last_zone
from diptych.check.findings import Complaint
from diptych.check.rules import rule
from diptych.check.subject import Subject, zone_field
from diptych.render.layout import own_zone
from diptych.spec import OrchestratorSection
from diptych.spec.problems import nearest

MOST_LOCAL_REPLICAS = 8
SOON = timedelta(days=60)

_UNREAD: dict[str, tuple[str, ...]] = {
    "local": (
        "nodes",
        "prefill.nodes",
        "decode.nodes",
        "prefill.resources",
        "decode.resources",
        "prefill.max_ongoing_requests",
        "decode.max_ongoing_requests",
        "kv_transfer.ports",
        "access.expose",
        "access.hostname",
        "access.tls_secret",
        "access.tls_certificate_arn",
        "access.gateway_class",
        "image",
        "staging",
        "monitoring",
        "kubernetes",
        "eks",
    ),
    "kubernetes": ("prefill.cores", "decode.cores", "eks"),
    "eks": ("prefill.cores", "decode.cores", "kubernetes.context", "kubernetes.head_selector"),
}
"""Fields that each place does not read."""

_ORCHESTRATOR_OF_TWO = (
    *(f"orchestrator.{name}" for name in OrchestratorSection.model_fields if name != "queues"),
    "orchestrator.queues.prefill",
)
"""Settings of the orchestrator that mean nothing where one engine does both phases."""

_EKS_ONLY_NODES = ("market", "capacity_reservation", "volume_size")


@rule("C801", "error", "A node without a GPU")
def nodes_have_gpus(subject: Subject) -> Iterable[Complaint]:
    for view in subject.phases:
        instance = view.group.instance if view.group else None
        if instance is not None and instance.gpus == 0:
            kind = "has a part of a GPU only" if instance.sliced_gpu else "has no GPU"
            like = nearest_with_efa(instance.name)
            field = view.nodes_path("instance_type")
            named = like.name if like else "g6.8xlarge"
            yield Complaint(
                field, f"is {instance.name}, which {kind}", f"use a type with whole GPUs, like {named}"
            )


@rule("C802", "warning", "An instance type that is not known")
def type_is_known(subject: Subject) -> Iterable[Complaint]:
    fields = {
        view.nodes_path("instance_type"): view.group.instance_type for view in subject.phases if view.group
    }
    if subject.document.on == "eks":
        fields["eks.system_nodes.instance_type"] = subject.document.eks.system_nodes.instance_type
    for field, name in fields.items():
        if name is not None and instance_type(name) is None:
            if is_arm(name):
                what = f"is {name}, which has ARM processors: the engines' images are built for x86-64"
                yield Complaint(field, what, "use a type with x86-64 processors")
                continue
            like = _misspelt(name)
            do = f"did you mean {like}?" if like else "look it up: its GPUs, memory and EFA are not checked"
            yield Complaint(field, f"is {name}, which the table of this version of Diptych does not have", do)


@rule("C803", "error", "A zone of another region")
def zones_are_in_region(subject: Subject) -> Iterable[Complaint]:
    eks = subject.document.eks
    if subject.document.on != "eks":
        return
    last = last_zone(eks.region)
    for field, zone in _zones(subject):
        if zone[:-1] != eks.region:
            ours = f"{eks.region}a to {last}" if last else f"one of {eks.region}"
            yield Complaint(
                field,
                f"is {zone}, which is not in eks.region ({eks.region})",
                f"write {ours}, or correct eks.region",
            )


@rule("C814", "warning", "A region or zone that is not known")
def region_is_known(subject: Subject) -> Iterable[Complaint]:
    region = subject.document.eks.region
    if subject.document.on != "eks":
        return
    last = last_zone(region)
    if last is None:
        swapped = (each for each in ZONE_LETTERS if sorted(each) == sorted(region))
        like = next(swapped, None) or nearest(region, list(ZONE_LETTERS))
        do = f"did you mean {like}?" if like else "look it up in AWS's list of regions"
        yield Complaint(
            "eks.region", f"is {region}, which the table of this version of Diptych does not have", do
        )
        return
    for field, zone in _zones(subject):
        if zone[:-1] == region and zone > last:
            yield Complaint(
                field, f"is {zone}, and the last zone of {region} is {last}", f"write {region}a to {last}"
            )


@rule("C804", "error", "A version of Kubernetes that EKS does not have")
def kubernetes_is_known(subject: Subject) -> Iterable[Complaint]:
    version = subject.document.eks.kubernetes_version
    account = subject.facts.account
    offered = account is not None and account.release(version) is not None
    if subject.document.on == "eks" and version not in KUBERNETES_VERSIONS and not offered:
        known = list(KUBERNETES_VERSIONS)
        what = f"is {version}, and this version of Diptych knows {', '.join(known)}"
        yield Complaint("eks.kubernetes_version", what, f'write "{_supported(subject.facts.today + SOON)}"')


@rule("C805", "error", "A version of Kubernetes past its support")
def kubernetes_is_supported(subject: Subject) -> Iterable[Complaint]:
    version = subject.document.eks.kubernetes_version
    end = KUBERNETES_VERSIONS.get(version)
    if subject.document.on == "eks" and end is not None and end < subject.facts.today:
        yield Complaint(
            "eks.kubernetes_version",
            f"is {version}, whose standard support on EKS ended on {end}: extended support costs six times as much",
            f'write "{_supported(subject.facts.today + SOON)}"',
        )


@rule("C806", "warning", "A version of Kubernetes whose support ends soon")
def kubernetes_stays_supported(subject: Subject) -> Iterable[Complaint]:
    version, today = subject.document.eks.kubernetes_version, subject.facts.today
    end = KUBERNETES_VERSIONS.get(version)
    if subject.document.on == "eks" and end is not None and today <= end <= today + SOON:
        what = f"is {version}, whose standard support on EKS ends on {end}"
        yield Complaint("eks.kubernetes_version", what, f'write "{_supported(today + SOON)}"')


@rule("C807", "error", "A market that does not sell these nodes")
def market_sells_nodes(subject: Subject) -> Iterable[Complaint]:
    for view in subject.phases if subject.document.on == "eks" else ():
        nodes, instance = view.nodes, view.group.instance if view.group else None
        market = view.nodes_path("market")
        if nodes.market == "capacity-block" and nodes.capacity_reservation is None:
            what = "is capacity-block, and nodes.capacity_reservation is not set"
            yield Complaint(market, what, "set it to the block's reservation, cr-…")
        if nodes.market == "capacity-block" and instance is not None and not instance.capacity_blocks:
            what = f"is capacity-block, and {instance.name} can't be had as one"
            yield Complaint(market, what, "use on-demand, or a type of the P family")
        if nodes.market == "spot" and nodes.capacity_reservation is not None:
            what = "is spot, and nodes.capacity_reservation is set: a reservation is not for spot"
            yield Complaint(market, what, "remove one of the two")


@rule("C808", "error", "Too many replicas for one machine")
def few_local_replicas(subject: Subject) -> Iterable[Complaint]:
    for view in subject.phases if subject.is_local else ():
        if view.section.num_replicas > MOST_LOCAL_REPLICAS:
            what = f"is {view.section.num_replicas}, and on is local, where {MOST_LOCAL_REPLICAS} is the most"
            yield Complaint(f"{view.name}.num_replicas", what, f"write {MOST_LOCAL_REPLICAS} or less")


@rule("C809", "error", "Autoscaling on one machine")
def no_local_autoscaling(subject: Subject) -> Iterable[Complaint]:
    for view in subject.phases if subject.is_local else ():
        if view.section.autoscaling_config is not None:
            yield Complaint(
                f"{view.name}.autoscaling_config",
                "is set, and on is local: cores and memory are shared out once, at the start",
                f"use {view.name}.num_replicas",
            )


@rule("C810", "warning", "A field that this place does not read")
def fields_are_read(subject: Subject) -> Iterable[Complaint]:
    place = subject.document.on
    unread = [*_UNREAD[place]]
    if place == "kubernetes":
        unread += [
            f"{holder}nodes.{name}" for holder in ("", "prefill.", "decode.") for name in _EKS_ONLY_NODES
        ]
    for field in unread:
        if subject.is_written(field):
            yield Complaint(field, f"is not read where on is {place}", "remove it, or correct on")


@rule("C811", "warning", "A phase that this topology does not read")
def phases_are_read(subject: Subject) -> Iterable[Complaint]:
    if subject.is_split:
        return
    for field in ("prefill", "kv_transfer", *_ORCHESTRATOR_OF_TWO):
        if subject.is_written(field):
            yield Complaint(
                field,
                "is not read where topology is aggregated: one engine does both phases, and decode describes it",
                "keep it for comparisons, or remove it",
            )


@rule("C812", "error", "A cluster that nobody can reach")
def api_can_be_reached(subject: Subject) -> Iterable[Complaint]:
    eks = subject.document.eks
    if subject.document.on == "eks" and eks.private_access_only and eks.public_access_cidrs:
        yield Complaint(
            "eks.public_access_cidrs",
            "name addresses outside, and eks.private_access_only closes the public endpoint",
            "remove one of the two",
        )


@rule("C813", "warning", "Spot nodes for a service")
def spot_is_meant(subject: Subject) -> Iterable[Complaint]:
    for view in subject.phases if subject.document.on == "eks" else ():
        replicas = view.section.least_replicas
        if view.nodes.market == "spot" and replicas == 1:
            yield Complaint(
                view.nodes_path("market"),
                f"is spot, and {view.name} has one replica: when AWS takes its node, the phase is down until another "
                "starts",
                "use on-demand, or two replicas and more",
            )


@rule("C831", "error", "Data parallelism on one machine")
def no_local_data_parallelism(subject: Subject) -> Iterable[Complaint]:
    for view in subject.phases if subject.is_local else ():
        ranks = view.data_parallel
        if ranks > 1:
            field = f"{view.name}.num_replicas"
            yield Complaint(
                view.path("data_parallel_size"),
                f"is {ranks}, and on is local, where each engine runs by itself",
                f"remove it, and set {field} to {view.section.num_replicas * ranks}",
            )


def _zones(subject: Subject) -> Iterable[tuple[str, str]]:
    """The zones that a document on EKS names, with their fields."""
    named = {zone_field(view): own_zone(view.nodes) for view in subject.phases}
    eks = subject.document.eks
    named["eks.zone"] = None if eks.zone == "auto" else eks.zone
    return [(field, zone) for field, zone in named.items() if zone is not None]


def _misspelt(name: str) -> str | None:
    """The type that a name stands for which differs in letters only: other numbers are another type."""
    numbers = re.findall(r"\d+", name)
    return nearest(name, [each for each in instance_types() if re.findall(r"\d+", each) == numbers])


def _supported(day: date) -> str:
    """The oldest version that is still supported on `day`."""
    return next(name for name, end in KUBERNETES_VERSIONS.items() if end is None or end > day)
