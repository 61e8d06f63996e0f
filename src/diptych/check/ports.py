"""T4xx: ports. Replicas meet for a KV transfer in pods that Ray listens in too, on these ports:

base + replica x GPUs of one     without data parallelism
base + 2 x rank                  with it, whichever replica the rank is of
"""

from collections.abc import Iterable
from dataclasses import dataclass

from diptych.check.findings import Complaint
from diptych.check.rules import rule
from diptych.check.subject import PhaseView, Subject
from diptych.render.ingress import HAPROXY_PORTS, REPLICA_PORTS, is_behind_haproxy

EPHEMERAL = range(32768, 61000)
"""Linux hands these out to whoever asks for any port."""

DEFAULT_PORT = 8000
"""Where the endpoint answers unless the document says otherwise."""

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


def fixed_ports(subject: Subject) -> dict[int, str]:
    """Ports of the pods that are taken, and by whom."""
    if not is_behind_haproxy(subject.document):
        return FIXED_PORTS
    replicas = dict.fromkeys(REPLICA_PORTS, "decode's replicas, where HAProxy reaches them")
    return {**FIXED_PORTS, **HAPROXY_PORTS, **replicas}


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
        PortRange(view.name, _range(getattr(bases, view.name), _ports_of(view))) for view in subject.phases
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
        do = _choose(subject, each)
        taken = {who: port for port, who in reversed(fixed_ports(subject).items()) if port in each.ports}
        if taken:
            held = ", ".join(
                f"{port} ({who})" for who, port in sorted(taken.items(), key=lambda pair: pair[1])
            )
            yield Complaint(each.field, f"{each.phase}'s ports ({each}) hold {held}", do)
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
                _choose(subject, each),
            )


@rule("T415", "error", "Ports past the last one")
def ports_end_in_time(subject: Subject) -> Iterable[Complaint]:
    for each in port_ranges(subject):
        if each.ports.stop > 65536:
            yield Complaint(
                each.field,
                f"{each.phase} needs {len(each.ports)} ports from {each.ports.start} on, and the last port is 65535",
                _choose(subject, each),
            )


@rule("T417", "error", "An endpoint's port that is taken")
def access_port_is_free(subject: Subject) -> Iterable[Complaint]:
    port = subject.document.access.port
    if subject.is_local or port is None or port == DEFAULT_PORT:
        return
    holders = {each.ports: f"{each.phase}'s KV transfers ({each})" for each in port_ranges(subject)}
    held = next((who for ports, who in holders.items() if port in ports), fixed_ports(subject).get(port))
    if held:
        what = f"is {port}, which is taken in the same pods: {held}"
        yield Complaint("access.port", what, "remove it, or write 8000")


@rule("T432", "error", "Data-parallel replicas that share a pod")
def data_parallel_groups_are_apart(subject: Subject) -> Iterable[Complaint]:
    for view in subject.phases if subject.is_split else ():
        group = view.group
        if group is None or view.data_parallel == 1:
            continue
        if group.replicas_per_pod > 1 and view.section.most_replicas > 1:
            gpus = view.tensor_parallel * view.pipeline_parallel
            yield Complaint(
                view.path("data_parallel_size"),
                f"is {view.data_parallel}, and {group.replicas_per_pod} replicas of {view.name} share a pod: their "
                "ranks meet for KV transfers on the same ports",
                f"set it to {group.size.gpus // gpus} for one replica in each pod, or remove it and raise "
                f"{view.name}.num_replicas",
            )


def _choose(subject: Subject, each: PortRange) -> str:
    end = REPLICA_PORTS.start if is_behind_haproxy(subject.document) else EPHEMERAL.start
    return f"choose one from 20000 to {end - len(each.ports)}"


def _ports_of(view: PhaseView) -> int:
    """Ports from the base on: Ray and vLLM both add a rank's number to it, and Ray a replica's without such ranks."""
    if view.data_parallel > 1:
        return 2 * (view.data_parallel - 1) + view.tensor_parallel * view.pipeline_parallel
    return view.section.most_replicas * view.gpus_per_replica


def _range(first: int, count: int) -> range:
    return range(first, first + count)


def _overlap(one: range, other: range) -> bool:
    return one.start < other.stop and other.start < one.stop
