"""The verdict on a transport: what is proven, what is contradicted by whom, and that nothing can talk it into more."""

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diptych.serving.transport import judge
from fakes import probed

WORDS = {
    "proven_on_p5": "EFA was asked for, and carried the KV cache: LIBFABRIC over efa, 12.6 MB in 2 KV transfers.",
    "proven_on_g6": "EFA was asked for, and carried the KV cache: LIBFABRIC over efa, 12.6 MB in 2 KV transfers.",
    "ucx_here": "UCX was asked for, and carried the KV cache: UCX over shared memory, 12.6 MB in 2 KV transfers.",
    "tcp_for_efa": "EFA was asked for, and LIBFABRIC over tcp is in use (rails made by prefill rank 0: 1 over tcp, "
    "and 9 more of the signals contradict it).",
    "ucx_for_libfabric": "LIBFABRIC was asked for, and UCX over tcp is in use (backend made by prefill rank 0: UCX, "
    "and 5 more of the signals contradict it).",
    "ucx_on_efa": "EFA was asked for, and UCX over tcp is in use (backend set for prefill: UCX, and 13 more of the "
    "signals contradict it).",
    "still_efa": "EFA was asked for, and LIBFABRIC over tcp is in use (EFA's counters, out of prefill: 0 B of "
    "12.6 MB over rdmap0s0, and 3 more of the signals contradict it).",
    "one_rail": "EFA was asked for, and carried the KV cache: LIBFABRIC over efa, 12.6 MB in 2 KV transfers.",
    "recomputed": "EFA was asked for, and LIBFABRIC over efa is not proven to carry the KV cache (KV transfers: 0 of "
    "2 arrived: the KV transfer failed).",
    "nothing_asked": "No transport was asked for; UCX over tcp carried the KV cache, 12.6 MB in 2 KV transfers.",
}
KINDS = [(state, kind) for state, kinds in probed.KINDS.items() for kind in kinds]
EFA_KINDS = [probed.proven_on_p5, probed.proven_on_g6]


@pytest.mark.parametrize(("state", "kind"), KINDS, ids=lambda value: getattr(value, "__name__", value))
def test_each_known_kind_gets_its_exact_verdict(state: str, kind: Any) -> None:
    verdict = judge(*kind())
    assert verdict.state == state
    assert verdict.says == WORDS[kind.__name__]


def test_the_warning_that_g6_always_gives_tells_of_lost_speed_on_p5_and_contradicts_nothing() -> None:
    asked, pair = probed.proven_on_g6()
    line = next(one for one in judge(asked, pair).evidence if "cuda-not-registered" in one.what)
    assert line.verdict == "silent"
    assert judge(asked, pair).slower == ()
    _, with_gpudirect = probed.proven_on_p5()
    for side in ("prefill", "decode"):
        with_gpudirect["after"][side]["workers"][0]["warnings"] = [probed._EXPECTED]
    verdict = judge(probed.EFA_ON_P5, with_gpudirect)
    assert verdict.state == "proven"
    assert [one.what for one in verdict.slower] == [
        "log of prefill, cuda-not-registered",
        "log of decode, cuda-not-registered",
    ]


def test_fewer_rails_than_the_node_has_are_slower_and_still_efa() -> None:
    verdict = judge(*probed.one_rail())
    assert [(one.what, one.value, one.verdict) for one in verdict.slower] == [
        ("rails in use by prefill", "1 of 4 interfaces", "silent"),
        ("rails in use by decode", "1 of 4 interfaces", "silent"),
    ]
    assert judge(*probed.proven_on_p5()).slower == ()


@pytest.mark.parametrize(
    ("setting", "state"), [("efa,shm", "proven"), ("^tcp", "proven"), ("tcp", "contradicted")]
)
def test_libfabrics_setting_may_be_a_list(setting: str, state: str) -> None:
    asked, pair = probed.proven_on_p5()
    for side in ("prefill", "decode"):
        pair["after"][side]["asked"] = {"backends": ["LIBFABRIC"], "provider": setting}
    assert judge(asked, pair).state == state


def test_rails_without_gpu_memory_are_slower_and_still_efa() -> None:
    asked, pair = probed.proven_on_g6()
    line = {"kind": "no-fi-hmem", "line": "No provider found with FI_HMEM capability for rail 0, retrying"}
    for side in ("prefill", "decode"):
        pair["after"][side]["workers"][0]["warnings"] = [line]
    assert judge(asked, pair).state == "proven"


@pytest.mark.parametrize("rdma_counters", [True, False, None])
def test_rdma_that_is_emulated_contradicts_nothing(rdma_counters: bool | None) -> None:
    asked, pair = probed.proven_on_g6()
    verdict = judge(asked | {"rdma_counters": rdma_counters}, pair)
    assert verdict.state == "proven"
    told = [(one.value, one.verdict) for one in verdict.evidence if one.what == "RDMA counters, into decode"]
    silent = ("0 B of 12.6 MB; the rest was sent and received instead", "silent")
    assert told == ([silent] if rdma_counters else [])


def test_efa_that_carried_it_is_proven_beside_other_traffic_on_the_network() -> None:
    asked, pair = probed.proven_on_g6()
    for side in ("prefill", "decode"):
        counters = pair["after"][side]["workers"][0]["device_counters"]["net:eth0"]
        for name in counters:
            counters[name] += 10 * probed.KV_BYTES
    assert judge(asked, pair).state == "proven"


def test_replicas_on_one_host_may_take_shared_memory_which_proves_no_efa_and_contradicts_none() -> None:
    told = probed.libfabric("efa", 1)
    none = {"tx_bytes": 0, "rx_bytes": 0}
    moved = probed._moved(none, none, devices=1)
    pair = probed.pair(told, told, moved, hosts=("10.0.0.1", "10.0.0.1"))
    assert judge(probed.EFA_ON_G6, pair).state == "unproven"


def test_other_traffic_over_the_network_of_one_host_contradicts_nothing_there() -> None:
    told = probed.libfabric("efa", 1)
    none = {"tx_bytes": 0, "rx_bytes": 0}
    moved = probed._moved(none, none, 10 * probed.KV_BYTES, devices=1)
    beside = probed.pair(told, told, moved, hosts=("10.0.0.1", "10.0.0.1"))
    assert judge(probed.EFA_ON_G6, beside).state == "unproven"
    assert judge(probed.EFA_ON_G6, probed.pair(told, told, moved)).state == "contradicted"


def test_bytes_that_nothing_counted_between_two_hosts_contradict_efa() -> None:
    told = probed.libfabric("efa", 1)
    none = {"tx_bytes": 0, "rx_bytes": 0}
    assert judge(probed.EFA_ON_G6, probed.pair(told, told, probed._moved(none, none, devices=1))).state == (
        "contradicted"
    )


def test_half_of_the_bytes_on_efa_is_no_proof() -> None:
    told = probed.libfabric("efa", 1)
    half = {"tx_bytes": probed.KV_BYTES // 2, "rx_bytes": probed.KV_BYTES // 2}
    verdict = judge(probed.EFA_ON_G6, probed.pair(told, told, probed._moved(half, half, devices=1)))
    assert verdict.state == "unproven"
    assert "6.3 MB of 12.6 MB" in verdict.says


def test_a_device_that_began_anew_tells_nothing() -> None:
    asked, pair = probed.proven_on_g6()
    pair["before"]["decode"]["workers"][0]["device_counters"]["efa:rdmap0s0"]["rx_bytes"] = 10**12
    assert judge(asked, pair).state == "unproven"


def test_workers_of_one_node_tell_the_same_counters_and_count_once() -> None:
    asked, pair = probed.proven_on_g6()
    for when in ("before", "after"):
        for side in ("prefill", "decode"):
            own = pair[when][side]["workers"][0]
            pair[when][side]["workers"] = [own | {"rank": rank} for rank in range(4)]
    for side in ("prefill", "decode"):
        for one in pair["after"][side]["workers"]:
            device = one["device_counters"]["efa:rdmap0s0"]
            grown = {name: (value - 5_000_000) // 4 + 5_000_000 for name, value in device.items()}
            one["device_counters"] = one["device_counters"] | {"efa:rdmap0s0": grown}
    assert judge(asked, pair).state == "unproven"  # a quarter of the bytes, told four times


def test_both_backends_made_leave_open_which_one_carries() -> None:
    asked, pair = probed.proven_on_g6()
    pair["after"]["decode"]["workers"][0]["backends"] = ["UCX", "LIBFABRIC"]
    assert judge(asked, pair).state == "unproven"


def test_several_backends_are_proven_where_the_engines_settings_list_them_and_no_provider_was_asked_for() -> (
    None
):
    asked, pair = probed.ucx_here()
    for side in ("prefill", "decode"):
        pair["after"][side]["workers"][0]["backends"] = ["GDS", "UCX"]
        pair["after"][side]["asked"]["backends"] = ["UCX", "GDS"]
    assert judge(asked, pair).state == "proven"
    assert judge(asked | {"provider": "tcp", "backend": "UCX"}, pair).state == "unproven"
    pair["after"]["decode"]["asked"]["backends"] = ["UCX"]
    assert judge(asked, pair).state == "unproven"  # nobody asked for GDS there


def test_settings_of_the_engine_that_differ_from_what_was_asked_are_named() -> None:
    asked, pair = probed.proven_on_g6()
    pair["after"]["prefill"]["asked"]["provider"] = "tcp"
    verdict = judge(asked, pair)
    assert verdict.state == "contradicted"
    assert "FI_PROVIDER of prefill: tcp" in verdict.says


def test_an_old_failure_in_the_logs_is_told_and_a_new_one_leaves_the_transport_unproven() -> None:
    asked, pair = probed.proven_on_g6()
    failed = {"kind": "transfer-failed", "line": "NIXL transfer failed"}
    pair["after"]["decode"]["workers"][0]["warnings"] = [failed]
    assert judge(asked, pair).state == "unproven"
    pair["before"]["decode"]["workers"][0]["warnings"] = [failed]
    assert judge(asked, pair).state == "proven"


def test_a_side_that_tells_nothing_leaves_the_transport_unproven() -> None:
    for side in ("prefill", "decode"):
        asked, pair = probed.proven_on_p5()
        pair["after"][side]["workers"] = []
        assert judge(asked, pair).state == "unproven"
        assert judge(asked, {"transfers": pair["transfers"]}).state == "unproven"


def test_without_a_kv_transfer_nothing_is_proven() -> None:
    for kind in (*EFA_KINDS, probed.ucx_here, probed.nothing_asked):
        asked, pair = kind()
        assert judge(asked, pair | {"transfers": []}).state in ("unproven", "contradicted")


BACKENDS = st.sampled_from([["UCX"], [], ["UCX", "LIBFABRIC"]])
AGAINST = {
    "backends": BACKENDS,
    "libraries": st.sampled_from([["libplugin_UCX.so"], [], ["libnixl.so"]]),
    "devices+rails": st.sampled_from([([], {"provider": "tcp", "count": 1}), ([], None)]),
    "counters": st.sampled_from([0.0, 0.3, 0.85]),
    "warnings": st.sampled_from(["ucx-on-efa", "tcp-fallback", "handshake-failed"]),
    "transfers": st.sampled_from(["none", "one failed"]),
}


@settings(deadline=None)  # machines that run tests are busy
@given(kind=st.sampled_from(EFA_KINDS), data=st.data())
def test_no_combination_of_signals_that_contradict_or_fail_to_agree_yields_proven(
    kind: Any, data: Any
) -> None:
    asked, pair = deepcopy(kind())
    for wrong in data.draw(st.sets(st.sampled_from(sorted(AGAINST)), min_size=1)):
        _spoil(pair, wrong, data.draw(AGAINST[wrong]), data.draw(st.sampled_from(["prefill", "decode"])))
    verdict = judge(asked, pair)
    assert verdict.state in ("unproven", "contradicted")
    assert verdict.says.startswith("EFA was asked for, and ")


def _spoil(pair: Any, what: str, how: Any, side: str) -> None:
    worker = pair["after"][side]["workers"][0]
    if what == "devices+rails":
        worker["devices"], worker["rails"] = how
    elif what == "counters":
        before = pair["before"][side]["workers"][0]["device_counters"]
        worker["device_counters"] = {
            device: {name: first + int((value[name] - first) * how) for name, first in before[device].items()}
            for device, value in worker["device_counters"].items()
        }
    elif what == "warnings":
        worker["warnings"] = [*worker["warnings"], {"kind": how, "line": how}]
    elif what == "transfers":
        if how == "none":
            pair["transfers"] = []
        else:
            pair["transfers"][0] |= {"ok": False, "path": "recovered", "bytes": None}
    else:
        worker[what] = how


@settings(deadline=None)  # machines that run tests are busy
@given(
    st.fixed_dictionaries(
        {}, optional={"backend": st.sampled_from(["UCX", "LIBFABRIC"]), "provider": st.just("efa")}
    ),
    st.lists(st.sampled_from(["before", "after", "transfers", "prefill", "decode", "workers"]), min_size=1),
)
def test_a_probe_of_another_version_that_lacks_parts_is_unproven_not_an_error(
    asked: Any, lacking: Any
) -> None:
    _, pair = probed.proven_on_p5()
    for name in lacking:
        pair.pop(name, None)
        for when in ("before", "after"):
            (pair.get(when) or {}).pop(name, None)
            for side in (pair.get(when) or {}).values():
                side.pop(name, None)
    judge(asked, pair)
    assert judge({"provider": "efa"}, pair).state != "proven"
