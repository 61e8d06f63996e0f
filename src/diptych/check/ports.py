"""T4xx: ports. Replicas meet for a KV transfer on `base + replica x ranks + rank`, in pods that Ray listens in too."""

from collections.abc import Iterable
from dataclasses import dataclass

from diptych.check.findings import Complaint
from diptych.check.rules import rule
from diptych.check.subject import Subject

EPHEMERAL = range(32768, 61000)
"""Linux hands these out to whoever asks for any port."""

RAY_WORKERS = range(10002, 20000)
FIXED_PORTS = {
    6379: "Ray's GCS",
    8000: "Ray Serve",
    8080: "Ray's metrics",
    8265: "Ray's dashboard",
    10001: "Ray's client server",
    52365: "Ray's dashboard agent",
}
"""Where Ray and Serve listen in KubeRay's pods."""


@dataclass(frozen=True)
class PortRange:
    """The ports of one phase's replicas."""

    phase: str
    ports: range

    @property
    def field(self) -> str:
        return f"kv_transfer.ports.{self.phase}"

    def __str__(self) -> str:
        first, last = self.ports.start, self.ports.stop - 1
        return str(first) if first == last else f"{first} to {last}"


def port_ranges(subject: Subject) -> tuple[PortRange, ...]:
    """The ports of each phase that the document gives some to: on a cluster, with the phases apart."""
    if subject.is_local or not subject.is_split:
        return ()
    bases = subject.document.kv_transfer.ports
    return tuple(
        PortRange(
            view.name, _range(getattr(bases, view.name), view.section.most_replicas * view.gpus_per_replica)
        )
        for view in subject.phases
    )


@rule("T406", "error", "Ports of prefill and decode that overlap")
def phases_have_own_ports(subject: Subject) -> Iterable[Complaint]:
    ranges = port_ranges(subject)
    if len(ranges) == 2 and _overlap(ranges[0].ports, ranges[1].ports):
        prefill, decode = ranges
        apart = prefill.ports.stop if prefill.ports.start <= decode.ports.start else decode.ports.start
        yield Complaint(
            decode.field,
            f"decode's ports ({decode}) overlap prefill's ({prefill}): one port for each GPU of each replica",
            f"keep them apart, for example decode: {max(22000, (apart // 1000 + 1) * 1000)}",
        )


@rule("T407", "error", "Ports that Ray listens on")
def ports_are_not_rays(subject: Subject) -> Iterable[Complaint]:
    for each in port_ranges(subject):
        do = f"choose one from 20000 to {EPHEMERAL.start - len(each.ports)}"
        taken = [f"{port} ({who})" for port, who in FIXED_PORTS.items() if port in each.ports]
        if taken:
            yield Complaint(each.field, f"{each.phase}'s ports ({each}) hold {', '.join(taken)}", do)
        elif _overlap(each.ports, RAY_WORKERS):
            workers = f"{RAY_WORKERS.start} to {RAY_WORKERS.stop - 1}"
            yield Complaint(
                each.field, f"{each.phase}'s ports ({each}) overlap those of Ray's workers ({workers})", do
            )


@rule("T408", "warning", "Ports that Linux hands out")
def ports_are_not_ephemeral(subject: Subject) -> Iterable[Complaint]:
    for each in port_ranges(subject):
        if _overlap(each.ports, EPHEMERAL):
            yield Complaint(
                each.field,
                f"{each.phase}'s ports ({each}) reach into those that Linux hands out ({EPHEMERAL.start} to "
                f"{EPHEMERAL.stop - 1}): another process may hold one already",
                f"choose one from 20000 to {EPHEMERAL.start - len(each.ports)}",
            )


@rule("T415", "error", "Ports past the last one")
def ports_end_in_time(subject: Subject) -> Iterable[Complaint]:
    for each in port_ranges(subject):
        if each.ports.stop > 65536:
            yield Complaint(
                each.field,
                f"{each.phase} needs {len(each.ports)} ports from {each.ports.start} on, and the last port is 65535",
                f"choose one from 20000 to {EPHEMERAL.start - len(each.ports)}",
            )


def _range(first: int, count: int) -> range:
    return range(first, first + count)


def _overlap(one: range, other: range) -> bool:
    return one.start < other.stop and other.start < one.stop
