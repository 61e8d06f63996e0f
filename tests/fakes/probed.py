"""What `/diptych/v1/probe` tells of a pair, in the shapes of the kinds that are known: EFA with and without GPUDirect
RDMA, the ways it falls back in silence, and engines on one machine.

Sizes are one KV transfer of 12.6 MB (17 + 1000 tokens); devices counted other bytes before.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

KV_BYTES = 12_582_912
TOKENS = (17, 1000)
Json = dict[str, Any]

EFA_ON_P5: Json = {
    "backend": "LIBFABRIC",
    "provider": "efa",
    "rdma_counters": True,
    "rails": 4,
    "bandwidth_bytes_per_s": 50e9,
    "flow_bytes_per_s": None,
    "allow_fallback": False,
    "device": "cuda",
}
EFA_ON_G6: Json = EFA_ON_P5 | {"rdma_counters": False, "rails": 1, "bandwidth_bytes_per_s": 3.125e9}
UCX_HERE: Json = dict.fromkeys(EFA_ON_P5) | {"backend": "UCX", "allow_fallback": False, "device": "cpu"}
NOTHING: Json = dict.fromkeys(EFA_ON_P5) | {"allow_fallback": False, "device": "cuda"}

_LIBFABRIC = ["libnixl.so", "libplugin_LIBFABRIC.so", "libfabric.so.1", "libefa.so.1"]
_UCX = ["libnixl.so", "libplugin_UCX.so", "libucp.so.0", "libuct.so.0"]
_VERBS = [f"/dev/infiniband/uverbs{number}" for number in range(4)]
_RAILS = [f"rdmap{number}s0" for number in range(4)]
_EXPECTED = {
    "kind": "cuda-not-registered",
    "line": "Failed to register CUDA buffer with the EFA device, FI_HMEM transfers that require peer to peer support "
    "will fail.",
}


def worker(**fields: Any) -> Json:
    """One engine worker that tells nothing but what is given."""
    told: Json = {"rank": 0, "pid": 30, "backends": [], "libraries": [], "devices": [], "rails": None}
    return told | {"side_channel": None, "warnings": [], "device_counters": {}} | fields


def libfabric(provider: str, count: int, **fields: Any) -> Json:
    """A worker whose agent made LIBFABRIC, over rails of a provider."""
    opened = _VERBS[:count] if provider == "efa" else []
    rails = {"provider": provider, "count": count}
    return (
        worker(backends=["LIBFABRIC"], libraries=_LIBRARIES_OF[provider], devices=opened, rails=rails)
        | fields
    )


_LIBRARIES_OF = {"efa": _LIBFABRIC, "tcp": [name for name in _LIBFABRIC if "efa" not in name]}


def ucx(**fields: Any) -> Json:
    """A worker whose agent made UCX."""
    return worker(backends=["UCX"], libraries=_UCX) | fields


def counted(efa: Mapping[str, int] | None = None, net: int = 0, devices: Sequence[str] = _RAILS) -> Json:
    """What the devices of a side counted: bytes of all rails together by kind of operation, and over eth0."""
    found: Json = {"net:eth0": {"tx_bytes": 90_000 + net, "rx_bytes": 70_000 + net}}
    for device in devices if efa is not None else ():
        share = {kind: 5_000_000 + size // len(devices) for kind, size in (efa or {}).items()}
        found[f"efa:{device}"] = share
    return found


def signals(phase: str, told: Json, counters: Mapping[str, float], host: str, **fields: Any) -> Json:
    """One replica at one moment."""
    number = 1 if phase == "prefill" else 2
    return {
        "phase": phase,
        "replica": f"{phase}-1",
        "generation": "5e771465a11c",
        "model": "tiny",
        "pid": 10 * number,
        "engine_pid": 10 * number + 1,
        "host": host,
        "node_id": f"node-of-{host}",
        "node_name": None,
        "pod": None,
        "zone": "us-east-2a",
        "asked": {"backends": told["backends"], "provider": None, "kv_buffer_device": "cuda"},
        "workers": [told | {"pid": 10 * number + 1}],
        "counters": {"requests_running": 0.0, **counters},
    } | fields


def pair(
    prefill: Json,
    decode: Json,
    moved: Mapping[str, tuple[Json, Json]],
    *,
    tokens: Sequence[int] = TOKENS,
    hosts: tuple[str, str] = ("10.0.0.1", "10.0.0.2"),
    ms: float = 3.2,
) -> Json:
    """A pair through which prompts of these sizes went.

    Args:
        prefill, decode: their workers.
        moved: by side, what its devices had counted before and after.
    """
    count, total = len(tokens), sum(tokens)
    engines = {
        "prefill": ("prompt_tokens", {"generation_tokens": count}),
        "decode": ("external_kv_tokens", {"generation_tokens": count}),
    }
    moments: Json = {"before": {}, "after": {}}
    for side, told, host in (("prefill", prefill, hosts[0]), ("decode", decode, hosts[1])):
        name, grown = engines[side]
        first = {name: 100.0, "requests_finished": 7.0, "generation_tokens": 50.0}
        last = {name: 100.0 + total, "requests_finished": 7.0 + count}
        last |= {key: first[key] + value for key, value in grown.items()}
        before, after = moved.get(side, ({}, {}))
        early = told | {"device_counters": before, "warnings": told["warnings"]}
        moments["before"][side] = signals(side, early, first, host)
        moments["after"][side] = signals(side, told | {"device_counters": after}, last, host)
    return {
        "prefill_replica": "prefill-1",
        "decode_replica": "decode-1",
        **moments,
        "transfers": transfers(tokens, ms),
        "loopback_bytes_per_s": None,
        "memory_bytes_per_s": None,
    }


def transfers(tokens: Sequence[int], ms: float = 3.2) -> list[Json]:
    """KV transfers that arrived, of 12.6 MB together."""
    total, left = sum(tokens), KV_BYTES
    made = []
    for number, size in enumerate(tokens):
        share = left if number == len(tokens) - 1 else KV_BYTES * size // total
        left -= share
        fields = {"tokens": size, "ok": True, "path": "remote", "error": None, "why": None, "bytes": share}
        made.append(fields | {"ms": ms, "descriptors": 60, "prefill_ms": 80.0, "queue_ms": 0.1})
    return made


def _moved(
    sent: Mapping[str, int] | None, received: Mapping[str, int] | None, net: int = 0, devices: int = 4
) -> dict[str, tuple[Json, Json]]:
    """Devices before and after, of both sides."""

    def side(grown: Mapping[str, int] | None) -> tuple[Json, Json]:
        zero = None if grown is None else dict.fromkeys(grown, 0)
        names = _RAILS[:devices]
        return counted(zero, devices=names), counted(grown, net, names)

    return {"prefill": side(sent), "decode": side(received)}


def _read(size: int = KV_BYTES) -> dict[str, tuple[Json, Json]]:
    return _moved(
        {"tx_bytes": size, "rx_bytes": 4_000, "rdma_read_resp_bytes": size, "send_bytes": 2_000},
        {"tx_bytes": 4_000, "rx_bytes": size, "rdma_read_bytes": size, "recv_bytes": 2_000},
    )


def proven_on_p5() -> tuple[Json, Json]:
    """EFA with GPUDirect RDMA: decode reads over four rails."""
    return EFA_ON_P5, pair(libfabric("efa", 4), libfabric("efa", 4), _read(), ms=2.6)


def proven_on_g6() -> tuple[Json, Json]:
    """EFA without GPUDirect RDMA: reads become sends, RDMA counters stay, and a warning is expected."""
    still = {"rdma_read_bytes": 0, "rdma_read_resp_bytes": 0}
    moved = _moved(
        {"tx_bytes": KV_BYTES, "rx_bytes": 9_000, "send_bytes": KV_BYTES, "recv_bytes": 2_000} | still,
        {"tx_bytes": 9_000, "rx_bytes": KV_BYTES, "send_bytes": 2_000, "recv_bytes": KV_BYTES} | still,
        devices=1,
    )
    told = libfabric("efa", 1, warnings=[_EXPECTED])
    return EFA_ON_G6, pair(told, told, moved, ms=7.1)


def tcp_for_efa() -> tuple[Json, Json]:
    """EFA asked for, none visible, FI_PROVIDER not set: libfabric takes TCP in silence."""
    told = libfabric(
        "tcp", 1, warnings=[{"kind": "tcp-fallback", "line": "Discovered 1 tcp devices (TCP fallback)"}]
    )
    return EFA_ON_G6, pair(told, told, _moved(None, None, KV_BYTES), ms=45.0)


def ucx_for_libfabric() -> tuple[Json, Json]:
    """LIBFABRIC asked for, its plugin not to be loaded: UCX is in use."""
    line = "Skipping backend registration LIBFABRIC due to the missing plugin."
    told = ucx(warnings=[{"kind": "missing-plugin", "line": line}])
    asked = EFA_ON_G6 | {"provider": None, "rails": None, "rdma_counters": None}
    probed = pair(told, told, _moved(None, None, KV_BYTES), ms=45.0)
    for moment in ("before", "after"):
        for side in ("prefill", "decode"):
            probed[moment][side]["asked"]["backends"] = ["LIBFABRIC"]
    return asked, probed


def ucx_on_efa() -> tuple[Json, Json]:
    """EFA asked for, the backend left to vLLM: UCX, which can't drive EFA, over TCP."""
    line = (
        "1 Amazon EFA(s) were detected, but the UCX backend was configured. For best performance, it's recommended to "
        "use the LIBFABRIC backend instead."
    )
    told = ucx(warnings=[{"kind": "ucx-on-efa", "line": line}])
    none = {"tx_bytes": 0, "rx_bytes": 0}
    return EFA_ON_G6, pair(told, told, _moved(none, none, KV_BYTES, devices=1), ms=42.0)


def still_efa() -> tuple[Json, Json]:
    """All names say EFA, and the bytes went over eth0."""
    none = {"tx_bytes": 0, "rx_bytes": 0, "send_bytes": 0, "recv_bytes": 0}
    told = libfabric("efa", 1)
    return EFA_ON_G6, pair(told, told, _moved(none, none, KV_BYTES, devices=1), ms=42.0)


def one_rail() -> tuple[Json, Json]:
    """One rail of four carries everything."""
    asked, told = proven_on_p5()
    told = deepcopy(told)
    for side in ("prefill", "decode"):
        told["after"][side]["workers"][0] |= {
            "rails": {"provider": "efa", "count": 1},
            "devices": _VERBS[:1],
        }
    return asked, told


def nothing_asked() -> tuple[Json, Json]:
    """No backend was chosen: vLLM takes UCX."""
    return NOTHING, pair(ucx(), ucx(), _moved(None, None, KV_BYTES), ms=42.0)


def ucx_over_tcp() -> tuple[Json, Json]:
    """UCX between two nodes of a known type without EFA, as fast as it is known to be there: half of one TCP flow."""
    asked = UCX_HERE | {"device": "cuda", "bandwidth_bytes_per_s": 3.125e9, "flow_bytes_per_s": 0.625e9}
    return asked, pair(ucx(), ucx(), _moved(None, None, KV_BYTES), ms=41.0)


def ucx_here() -> tuple[Json, Json]:
    """Both engines on one machine: shared memory, which no device counts."""
    quiet = ({"net:lo": {"tx_bytes": 10, "rx_bytes": 10}}, {"net:lo": {"tx_bytes": 5_010, "rx_bytes": 5_010}})
    told = pair(ucx(), ucx(), {"prefill": quiet, "decode": quiet}, hosts=("127.0.0.1", "127.0.0.1"), ms=4.0)
    return UCX_HERE, told | {"loopback_bytes_per_s": 2.1e9, "memory_bytes_per_s": 9.5e9}


def recomputed() -> tuple[Json, Json]:
    """The side channel's address is another host's: decode computes every prompt, and answers right."""
    asked, told = proven_on_g6()
    told = deepcopy(told)
    why = "the KV transfer failed"
    for one in told["transfers"]:
        one |= {"ok": False, "path": "recovered", "why": why, "bytes": None, "ms": None, "descriptors": None}
    for side in ("prefill", "decode"):
        worker_ = told["after"][side]["workers"][0]
        worker_["device_counters"] = told["before"][side]["workers"][0]["device_counters"]
    line = "NIXL handshake failed for engine prefill-1: Remote NIXL agent engine ID mismatch."
    decode = told["after"]["decode"]["workers"][0]
    decode["warnings"] = [*decode["warnings"], {"kind": "handshake-failed", "line": line}]
    told["after"]["decode"]["counters"]["external_kv_tokens"] = 100.0
    return asked, told


def answer(asked: Json, *pairs: Json, **fields: Any) -> Json:
    """The route's whole answer."""
    return {
        "asked": asked,
        "versions": {"ray": "2.60.0", "vllm": "0.29.0", "nixl": "1.3.2"},
        "block_tokens": 16,
        "recurrent": False,
        "max_model_len": 8192,
        "model": "tiny",
        "pairs": list(pairs),
        "problems": [],
    } | fields


KINDS = {
    "proven": (proven_on_p5, proven_on_g6, ucx_here, one_rail),
    "contradicted": (tcp_for_efa, ucx_for_libfabric, ucx_on_efa, still_efa),
    "unproven": (recomputed,),
    "not-asked": (nothing_asked,),
}
