"""The speed of a KV transfer, against what its link should need."""

from typing import Any

import pytest

from diptych.verify import speed
from fakes import probed
from fakes.probed import answer


def on_link(ms: float, gb_per_s: float = 3.125) -> Any:
    asked, pair = probed.proven_on_g6()
    for one in pair["transfers"]:
        one["ms"] = ms
    return answer(asked | {"bandwidth_bytes_per_s": gb_per_s * 1e9, "rdma_counters": True}, pair)


# 12.4 MB over 3.125 GB/s need 2 ms and 3.96 ms.
@pytest.mark.parametrize(
    ("ms", "state"), [(5.9, "holds"), (11.9, "holds"), (12.0, "warns"), (29.0, "warns"), (31.0, "fails")]
)
def test_a_link_warns_below_half_of_its_speed_and_fails_far_below(ms: float, state: str) -> None:
    assert speed.prove(on_link(ms)).state == state


def test_tcp_beside_efa_fails() -> None:
    seconds = probed.KV_BYTES / 0.3e9
    proof = speed.prove(on_link(seconds * 1e3))
    assert proof.state == "fails"
    assert proof.says == "0.29 GB/s, 41.9 ms per 1000 tokens: 14% of what the link allows."
    assert "It warns below 50% and fails below 20%." in proof.do


def test_where_bytes_are_copied_through_the_host_a_slow_link_warns_and_fails_nothing() -> None:
    told = on_link(31.0)
    told["asked"] |= {"rdma_counters": False}
    assert speed.prove(told).state == "warns"
    told["asked"] |= {"rdma_counters": None}
    assert speed.prove(told).state == "fails"


def test_a_fast_link_is_not_blamed_for_what_a_transfer_of_any_size_takes() -> None:
    assert speed.prove(on_link(3.0, gb_per_s=50)).state == "holds"


def test_the_fastest_of_the_largest_transfers_counts() -> None:
    told = on_link(80.0)
    fast = told["pairs"][0]["transfers"][-1] | {"ms": 6.0}
    told["pairs"][0]["transfers"].append(fast)
    assert speed.prove(told).state == "holds"


def over_tcp(ms: float, workers: int = 1, gb_per_s: float = 3.125) -> Any:
    asked, pair = probed.ucx_over_tcp()
    for one in pair["transfers"]:
        one["ms"] = ms
    for side in ("prefill", "decode"):
        (worker,) = pair["after"][side]["workers"]
        pair["after"][side]["workers"] = [worker | {"rank": rank} for rank in range(workers)]
    return answer(asked | {"bandwidth_bytes_per_s": gb_per_s * 1e9}, pair)


# 12.4 MB over one flow's 0.625 GB/s need 2 ms and 19.8 ms; UCX is known to take about 41 ms.
@pytest.mark.parametrize(
    ("ms", "state"), [(20.0, "holds"), (41.0, "holds"), (54.0, "holds"), (55.0, "warns"), (220.0, "fails")]
)
def test_over_tcp_a_link_is_held_against_what_ec2_gives_a_flow(ms: float, state: str) -> None:
    proof = speed.prove(over_tcp(ms))
    assert proof.state == state
    assert "of what the TCP link allows" in proof.says
    assert "by the TCP link's 0.6 GB/s" in proof.evidence[0].value
    assert "5 Gbps" in proof.otherwise
    assert ("It warns below 40% and fails below 10%." in proof.do) is (state != "holds")


def test_over_tcp_each_worker_of_a_replica_has_a_flow() -> None:
    assert speed.prove(over_tcp(41.0, workers=4)).state == "warns"  # 2.5 GB/s need 7 ms
    assert "by the TCP link's 2.5 GB/s" in speed.prove(over_tcp(41.0, workers=4)).evidence[0].value
    assert "by the TCP link's 3.1 GB/s" in speed.prove(over_tcp(41.0, workers=8)).evidence[0].value
    uneven = over_tcp(41.0, workers=4)
    del uneven["pairs"][0]["after"]["prefill"]["workers"][1:]
    assert speed.prove(uneven).state == "holds"


def test_over_tcp_a_small_instance_gives_less_than_a_flow() -> None:
    assert "by the TCP link's 0.2 GB/s" in speed.prove(over_tcp(100.0, gb_per_s=0.2)).evidence[0].value


def test_on_one_machine_a_copy_of_the_same_run_is_the_measure() -> None:
    asked, pair = probed.ucx_here()
    proof = speed.prove(answer(asked, pair))
    assert proof.state == "holds"
    assert proof.says.endswith("of what the loopback copy allows.")
    pair["loopback_bytes_per_s"] = None
    assert "memory copy" in speed.prove(answer(asked, pair)).says
    pair["memory_bytes_per_s"] = None
    assert speed.prove(answer(asked, pair)).state == "skipped"


def test_a_copy_within_a_node_says_nothing_of_the_way_to_another() -> None:
    asked, pair = probed.nothing_asked()
    pair |= {"loopback_bytes_per_s": 2e9}
    proof = speed.prove(answer(asked, pair))
    assert proof.state == "skipped"
    assert proof.says.startswith("Nothing is known of the link's bandwidth; measured 0.29 GB/s")


def test_transfers_that_are_too_small_to_tell_are_not_judged() -> None:
    told = on_link(500.0)
    told["pairs"][0]["transfers"] = [told["pairs"][0]["transfers"][0] | {"bytes": 10_000}]
    assert speed.prove(told).state == "skipped"


def test_of_several_pairs_the_slowest_is_named() -> None:
    asked, pair = probed.proven_on_g6()
    asked = asked | {"rdma_counters": True}
    slow = pair | {"prefill_replica": "prefill-2", "transfers": probed.transfers((1000,), 90.0)}
    proof = speed.prove(answer(asked, pair, slow))
    assert proof.state == "fails"
    assert "on the slowest pair, prefill-2 → decode-1" in proof.says
