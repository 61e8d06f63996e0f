"""What nccl-tests' `all_reduce_perf` and NCCL print over two nodes, in the shape of real runs, by kind of outcome.

`fakes/mpi` has programs that print it; `answer` is what `/diptych/v1/nccl` then tells.
"""

from collections.abc import Sequence
from typing import Any

KINDS = ("ok", "sockets", "wrong", "out of memory", "hanging")
SIZES = tuple(2**power * 2**20 for power in range(3, 8))
HOSTS = ("llm-prefill-worker-x2", "llm-decode-worker-k9")
G6_BUSBW = 2.74
"""10^9 bytes per second at the largest size, of the 3.1 that a g6.8xlarge's network has."""

_BEFORE = """\
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 1 minBytes 8388608 maxBytes 134217728 step: 2(factor) warmup iters: 1 iters: 10 agg iters: 1 \
validation: 1 graph: 0
#
# Using devices
"""
_HEAD = """\
#
#                                                              out-of-place                       in-place          
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong 
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)         
"""
OUT_OF_MEMORY = (
    "{host}: Test CUDA failure common.cu:1089 'out of memory'\n"
    " .. {host} pid 71: Test failure common.cu:899\n"
)


def before(hosts: Sequence[str] = HOSTS) -> str:
    """What is printed before anything is measured; a rank on each of the hosts, which may come twice."""
    ranks = (
        f"#  Rank {rank:2} Group  0 Pid {70 + rank:6} on {host:>10} device {hosts[:rank].count(host):2} "
        "[0000:31:00] NVIDIA L4\n"
        for rank, host in enumerate(hosts)
    )
    return _BEFORE + "".join(ranks)


def table(busbw: float = G6_BUSBW, wrong: int = 0, sizes: Sequence[int] = SIZES) -> str:
    """The rows and what follows, the largest size with that bus bandwidth and wrong values in place."""
    rows, speeds = [], [busbw * share for share in (0.8, 0.88, 0.93, 0.97, 1.0)]
    for size, speed in zip(sizes, speeds, strict=False):
        time_us, slower = size / speed / 1e3, size / speed / 1e3 * 1.01
        errors = wrong if size == SIZES[-1] else 0
        rows.append(
            f"{size:12}  {size // 4:12}  {'float':>8}  {'sum':>6}  {-1:6}  {time_us:7.2f}  {speed:6.2f}  {speed:6.2f}"
            f"  {0:6}  {slower:7.2f}  {speed / 1.01:6.2f}  {speed / 1.01:6.2f}  {errors:6}\n"
        )
    verdict = "FAILED" if wrong else "OK"
    average = sum(speeds) / len(speeds)
    return (
        _HEAD
        + "".join(rows)
        + f"# Out of bounds values : {wrong} {verdict}\n# Avg bus bandwidth    : {average:g} \n#\n"
    )


def log(kind: str = "ok", hosts: Sequence[str] = HOSTS) -> str:
    """NCCL's own lines."""
    efa = (
        "NET/OFI Initializing aws-ofi-nccl 1.19.0",
        "NET/OFI Selected provider is efa, fabric is efa (found 1 nics)",
        "Using network Libfabric",
        "Channel 00/0 : 0[0] -> 1[0] [send] via NET/Libfabric/0",
    )
    sockets = (
        "NET/Plugin: Could not find: libnccl-net.so",
        "NET/Socket : Using [0]eth0:10.0.0.1<0>",
        "Using network Socket",
        "Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0",
    )
    lines = (
        "Bootstrap: Using eth0:10.0.0.1<0>",
        *(sockets if kind == "sockets" else efa),
        "ncclCommInitRank comm 0x55e0 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 31000 - Init COMPLETE",
    )
    return "".join(f"{host}:{70}:{95} [0] NCCL INFO {line}\n" for host in hosts for line in lines)


def answer(kind: str = "ok", **fields: Any) -> dict[str, Any]:
    """What `/diptych/v1/nccl` tells of two nodes with a GPU each.

    Args:
        fields: of the answer, otherwise.
    """
    told: dict[str, Any] = {
        "nodes": [{"host": f"10.0.0.{n}", "node_id": str(n) * 8, "gpus": 1} for n in (1, 2)],
        "exit_code": 0,
        "deadline_s": 120.0,
        "took_s": 9.4,
        "output": before() + table(),
        "log": log(kind),
    }
    match kind:
        case "sockets":
            told["output"] = before() + table(0.31)
        case "wrong":
            told |= {"output": before() + table(wrong=512), "exit_code": 1}
        case "out of memory":
            told |= {
                "output": before(),
                "log": log() + OUT_OF_MEMORY.format(host=HOSTS[0]),
                "exit_code": 3,
            }
        case "hanging":
            told |= {"output": before(), "exit_code": None}
    return told | fields
