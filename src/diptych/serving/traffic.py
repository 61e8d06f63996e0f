"""What moved between two looks at a pair of replicas, by the counters of its devices. Bytes; nothing but arithmetic.

A pair is as `/diptych/v1/probe` tells it (docs/json.md). Workers of one node tell the same counters, which are counted
once.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ABOUT = 0.9
"""From this share of the KV cache's bytes on, a device has carried it; rails leave rounding and headers open."""
STILL = 0.1
"""Below this share it has not."""

_EFA, _NET, _LOOPBACK = "efa:", "net:", "net:lo"
# What a device counts in all, and beside it by kind of operation: a KV transfer is a read by decode.
_IN = ("rx_bytes", ("recv_bytes", "rdma_read_bytes", "rdma_write_recv_bytes"))
_OUT = ("tx_bytes", ("send_bytes", "rdma_read_resp_bytes", "rdma_write_bytes"))
_BY_RDMA = ("rdma_read_bytes", "rdma_write_recv_bytes")


@dataclass(frozen=True)
class Moved:
    """Bytes that went over a side's devices in the direction of the KV cache: out of prefill, into decode.

    Args:
        efa: by EFA device; None: the side tells of none.
        rdma: of them, by RDMA; only what decode reads is counted so.
        net: by network interface; None: the side tells of none.
    """

    efa: Mapping[str, int] | None
    rdma: int
    net: Mapping[str, int] | None

    @property
    def efa_bytes(self) -> int:
        """Over all EFA devices together: rails share a KV transfer."""
        return sum((self.efa or {}).values())

    @property
    def busiest_net(self) -> tuple[str, int]:
        """The interface that moved most. One alone: a bond and its parts count the same bytes."""
        return max((self.net or {}).items(), key=lambda item: item[1], default=("", 0))


def kv_bytes(pair: Mapping[str, Any]) -> int:
    """Bytes of KV cache that the probe's transfers carried, as NIXL counted them."""
    return sum(int(one.get("bytes") or 0) for one in pair.get("transfers") or () if one.get("ok"))


def is_on_one_host(pair: Mapping[str, Any]) -> bool:
    """Whether both replicas are on one host, as far as they tell."""
    hosts = [look(pair, "after", side).get("host") for side in ("prefill", "decode")]
    return hosts[0] is not None and hosts[0] == hosts[1]


def went_away(pair: Mapping[str, Any]) -> str | None:
    """The replica whose engine was there before the prompts and not after them, or is another one; None: none."""
    for side in ("prefill", "decode"):
        first, last = (look(pair, when, side).get("engine_pid") for when in ("before", "after"))
        if first is not None and first != last:
            return f"{side} replica {look(pair, 'before', side).get('replica')}"
    return None


def look(pair: Mapping[str, Any], when: str, side: str) -> Mapping[str, Any]:
    """One side's signals `before` or `after`; empty where there are none."""
    signals = (pair.get(when) or {}).get(side)
    return signals if isinstance(signals, Mapping) else {}


def workers(pair: Mapping[str, Any], when: str, side: str) -> list[Mapping[str, Any]]:
    """A side's engine workers."""
    return [one for one in look(pair, when, side).get("workers") or () if isinstance(one, Mapping)]


def moved(pair: Mapping[str, Any], side: str) -> Moved:
    """What a side's devices counted between the two looks."""
    total, kinds = _IN if side == "decode" else _OUT
    grown = _grown(pair, side)
    if grown is None:
        return Moved(None, 0, None)
    efa = {name.removeprefix(_EFA): each for name, each in grown.items() if name.startswith(_EFA)}
    net = {
        name.removeprefix(_NET): each
        for name, each in grown.items()
        if name.startswith(_NET) and (name != _LOOPBACK or is_on_one_host(pair))
    }
    return Moved(
        {name: _bytes(each, total, kinds) for name, each in efa.items()},
        sum(each.get(kind, 0) for each in efa.values() for kind in _BY_RDMA),
        {name: each.get(total, 0) for name, each in net.items()},
    )


def _bytes(counters: Mapping[str, int], total: str, kinds: tuple[str, ...]) -> int:
    return max(counters.get(total, 0), sum(counters.get(kind, 0) for kind in kinds))


def _grown(pair: Mapping[str, Any], side: str) -> dict[str, dict[str, int]] | None:
    """By device and counter, over all nodes of a side; None where the looks can't be compared."""
    earlier = {one.get("rank"): one for one in workers(pair, "before", side)}
    nodes: dict[str, dict[tuple[str, str], int]] = {}
    devices: dict[str, dict[str, int]] = {}
    for worker in workers(pair, "after", side):
        first = earlier.get(worker.get("rank"), {}).get("device_counters") or {}
        node = nodes.setdefault(_node(worker), {})
        for device, counters in (worker.get("device_counters") or {}).items():
            if device not in first:
                continue
            devices.setdefault(device, {})
            for counter, value in counters.items():
                growth = int(value - first[device].get(counter, value))
                if growth < 0:  # the device began anew: what it carried before is lost
                    return None
                node[device, counter] = max(growth, node.get((device, counter), 0))
    for node in nodes.values():
        for (device, counter), growth in node.items():
            devices[device][counter] = devices[device].get(counter, 0) + growth
    return devices or None


def _node(worker: Mapping[str, Any]) -> str:
    """Which node or pod a worker is in; where it does not tell, by where it listens."""
    return str(worker.get("host") or str(worker.get("side_channel") or "").rpartition(":")[0])
