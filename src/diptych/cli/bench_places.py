"""What `bench` needs of a place: a side of a comparison brought up, the model's tokenizer, and the devices."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diptych.cli.console import err
from diptych.cli.places import LOCAL, Up
from diptych.cli.view import LiveView
from diptych.errors import DocumentError, NotUpError
from diptych.spec import Document, load

if TYPE_CHECKING:
    from diptych.bench.workload import Workload
    from diptych.spec import Phase

AGGREGATED = "aggregated"
_PLACING = ("instance_type", "selector", "zone", "tolerations")
"""Fields of a phase's nodes that say on which of them its pods may stand."""
_NODES_THERE_ARE = (
    *(f"{holder}nodes.count=null" for holder in ("", "prefill.", "decode.")),
    "kubernetes.upgrade=in-place",
)
_BY_HAND = "`diptych bench --json` of each, then `diptych bench compare --results` (docs/bench.md#by-hand)."
_DMI = Path("/sys/class/dmi/id")


@dataclass(frozen=True)
class Side:
    """One side of a comparison.

    Args:
        name: "split", with several ratios "split 1:2", or "aggregated".
        overrides: that make a document this side.
    """

    name: str
    overrides: tuple[str, ...]


@dataclass(frozen=True)
class Turns:
    """Who is measured when: each side once a round, every other round backwards, each load `repeats` times."""

    sides: tuple[Side, ...]
    rounds: int
    repeats: int

    @property
    def rounds_of_sides(self) -> list[tuple[Side, ...]]:
        return [self.sides if number % 2 == 0 else self.sides[::-1] for number in range(self.rounds)]

    @property
    def order(self) -> list[str]:
        """The sides by name, as they are brought up."""
        return [side.name for sides in self.rounds_of_sides for side in sides]

    def runs(self, workloads: "Sequence[Workload]") -> int:
        """Runs of one side in one round, the warm-up included."""
        return 1 + self.repeats * len(workloads)

    def loads_s(self, workloads: "Sequence[Workload]") -> float:
        """Seconds until the last request of each load is sent, in all."""
        return len(self.order) * self.repeats * sum(workload.last_s for workload in workloads)


def sides_of(file: Path | None, overrides: Sequence[str], ratios: str | None) -> tuple[Side, ...]:
    """The splits of a comparison and, last, one engine for both phases: all on the same devices.

    Args:
        ratios: replicas of prefill and decode, like "1:1,1:2"; None: the document's.

    Raises:
        DocumentError: a side can't come up; the ratios need different numbers of GPUs; on a cluster the phases' nodes
            are of two kinds, or their number changes while they are measured.
    """
    document = load(file, list(overrides))
    if document.on != LOCAL:
        _require_one_kind_of_nodes(document)
        _require_a_fixed_number(document)
    splits = [
        Side(f"split {prefill}:{decode}", _split(prefill, decode)) for prefill, decode in _pairs(ratios)
    ] or [Side("split", ("topology=split",))]
    documents = [load(file, [*overrides, *side.overrides]) for side in splits]
    sides = (*splits, Side(AGGREGATED, tuple(_one_engine(documents))))
    if document.on != LOCAL:
        sides = tuple(_on_its_nodes(file, overrides, side) for side in sides)
    for side in sides:
        _require_no_errors(file, [*overrides, *side.overrides])
    return sides


def _pairs(ratios: str | None) -> list[tuple[int, int]]:
    found = []
    for ratio in ratios.split(",") if ratios else ():
        prefill, _, decode = ratio.strip().partition(":")
        if not (prefill.isdecimal() and decode.isdecimal() and int(prefill) and int(decode)):
            raise DocumentError(f"{ratio!r} is no ratio of replicas.", "Write them like 1:1,1:2.")
        found.append((int(prefill), int(decode)))
    return found


def _split(prefill: int, decode: int) -> tuple[str, ...]:
    return "topology=split", f"prefill.num_replicas={prefill}", f"decode.num_replicas={decode}"


def _one_engine(splits: Sequence[Document]) -> list[str]:
    """Overrides for the aggregated side: on GPUs replicas for all of them, on CPUs one with all cores.

    Cores, unlike GPUs, can be shared out anyhow, and one engine makes more of them than two.
    """
    sides = ["topology=aggregated"]
    if splits[0].on == LOCAL and not _has_gpus():
        return [*sides, "decode.num_replicas=1", f"decode.cores={_cores(splits[0]) or 'null'}"]
    totals = {
        sum(_gpus(each, phase) * each.phases[phase].num_replicas for phase in each.phases) for each in splits
    }
    each = _gpus(splits[0], "decode")
    if len(totals) > 1 or (total := totals.pop()) % each:
        raise DocumentError(
            "The sides of this comparison would not run on the same number of GPUs.",
            "Choose ratios with equal sums, and as many GPUs per replica in both phases.",
        )
    return [*sides, f"decode.num_replicas={total // each}"]


def _has_gpus() -> bool:
    from diptych.local.environment import has_cuda_engine
    from diptych.local.hardware import detect

    return bool(detect().gpus) and has_cuda_engine()


def _require_one_kind_of_nodes(document: Document) -> None:
    """On a cluster one engine for both phases stands on the nodes of either."""
    prefill, decode = document.nodes_for("prefill"), document.nodes_for("decode")
    apart = [name for name in _PLACING if getattr(prefill, name) != getattr(decode, name)]
    if apart:
        fields = " and ".join(f"nodes.{name}" for name in apart)
        values = (
            f"{name} {_said(getattr(nodes, apart[0]))}"
            for name, nodes in (("prefill", prefill), ("decode", decode))
        )
        raise DocumentError(
            f"prefill and decode have nodes of two kinds, by {fields} ({', '.join(values)}): engines that do both "
            "phases can't be placed on both.",
            f"Give both phases the same, in `nodes`; or measure each topology by itself: {_BY_HAND}",
        )


def _require_a_fixed_number(document: Document) -> None:
    """On a cluster a document may have Ray Serve change the number of replicas, and so of devices."""
    phases = (("prefill", document.prefill), ("decode", document.decode))
    scaled = [name for name, phase in phases if phase.autoscaling_config is not None]
    if scaled:
        field = f"{scaled[0]}.autoscaling_config"
        raise DocumentError(
            f"{field} changes the number of devices while they are measured: the two sides would not have the same.",
            f"Write num_replicas instead and bring that up; or measure each topology by itself: {_BY_HAND}",
        )


def _said(value: object) -> str:
    return "none" if value is None else str(value)


def _on_its_nodes(file: Path | None, overrides: Sequence[str], side: Side) -> Side:
    """A side other than the document itself uses the nodes there are, and pods end before others take their place."""
    if load(file, [*overrides, *side.overrides]) == load(file, list(overrides)):
        return side
    return Side(side.name, (*side.overrides, *_NODES_THERE_ARE))


def _gpus(document: Document, phase: "Phase") -> int:
    from diptych.render.layout import gpus_per_replica

    return gpus_per_replica(document, phase)


def _cores(document: Document) -> int | None:
    """The cores that a split takes; None: all."""
    shares = [(phase.cores, phase.num_replicas) for phase in document.phases.values()]
    return sum(cores * replicas for cores, replicas in shares if cores) if all(c for c, _ in shares) else None


def _require_no_errors(file: Path | None, overrides: list[str]) -> None:
    from diptych.check import check_file
    from diptych.cli.check import this_machine

    report = check_file(file, overrides, offline=True, machine=this_machine)
    errors = [f"{each.code} {each}" for each in report.findings if each.severity == "error"]
    if errors:
        raise DocumentError("\n".join(errors), "docs/checks.md explains each code.")


@contextmanager
def brought_up(file: Path | None, overrides: list[str]) -> Iterator[Up]:
    """A document's service, for as long as the context lasts; whatever ends it leaves nothing running.

    Raises:
        NotUpError: a service of that name is up already.
        StartError: it does not come up.
    """
    from diptych.local.planning import stages
    from diptych.local.up import bring_up

    document = load(file, overrides)
    view = LiveView(err(), ("model", *stages(document.topology)))
    services = bring_up(document, file, view, hold=True)
    with view:
        service = next(services)
    try:
        if service.already:
            raise NotUpError(
                f"A service called {document.name} is up already, and a comparison brings up its own.",
                f"Take it down first: diptych down --name {document.name}",
            )
        yield Up(service.state.name, LOCAL)
    finally:
        services.close()


def tokenizer_of(up: Up) -> Path | None:
    """The folder of the model of a service on this machine; None of one on a cluster."""
    if up.place != LOCAL:
        return None
    from diptych.local.paths import ServicePaths
    from diptych.local.plan import Plan

    try:
        plan = Plan.load(ServicePaths.of(up.name).plan)
    except (OSError, ValueError):
        return None
    args = plan.serve_config["applications"][0]["args"]
    config = args.get("decode_config") or args["llm_config"]
    return Path(config["model_loading_config"]["model_source"])


def machines_of(up: Up) -> dict[str, Any]:
    """What the engines run on: `devices` in words, and `usd_per_hour`, their list price, where that is known."""
    if up.place != LOCAL:
        return _nodes(up.remembered.document) if up.remembered else {"devices": up.place}
    from diptych.catalog.instances import instance_type
    from diptych.local.hardware import detect

    hardware = detect()
    number = _several(len(hardware.gpus), "GPU") if hardware.gpus else _several(len(hardware.cores), "core")
    instance = instance_type(_product())
    if instance is None:
        return {"devices": number}
    return {"devices": f"{instance.name}, {number}", "usd_per_hour": instance.usd_per_hour}


def _several(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def _nodes(document: Document) -> dict[str, Any]:
    from diptych.render.layout import worker_groups

    groups = worker_groups(document)
    prices = [
        group.instance.usd_per_hour if group.instance and group.nodes.market in (None, "on-demand") else None
        for group in groups
    ]
    known = [group.count * usd for group, usd in zip(groups, prices, strict=True) if usd is not None]
    return {
        "devices": " and ".join(f"{group.count} × {group.instance_type or 'a node'}" for group in groups),
        "usd_per_hour": sum(known) if len(known) == len(groups) else None,
    }


def _product() -> str:
    """What the firmware calls this machine: of EC2's the instance type."""
    try:
        return (_DMI / "product_name").read_text().strip()
    except OSError:
        return ""
