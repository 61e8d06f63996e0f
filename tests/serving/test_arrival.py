"""How long decode waits for what prefill computed: as long as prefill keeps it."""

import asyncio
import time
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray.serve.llm")

from diptych.serving import arrival
from diptych.serving.arrival import Arrivals, KVTransferError, LeaseOverError
from diptych.serving.costs import Costs
from diptych.serving.record import Leg
from diptych.serving.transfers import TAG, Ledger
from fakes.phases import prefill_peers

LEASE_S, DEADLINE_S = 60.0, 20.0
NAMED = "chatcmpl-1"


@pytest.fixture
def ledger(monkeypatch: pytest.MonkeyPatch) -> Ledger:
    own = Ledger()
    monkeypatch.setattr(arrival, "ledger", own)
    return own


def arrivals(deadline_s: float = DEADLINE_S, lease_s: float = LEASE_S) -> Arrivals:
    return Arrivals(SimpleNamespace(), prefill_peers("one"), Costs(), deadline_s, lease_s)


def kept(seconds: float) -> Leg:
    """A prompt whose KV cache prefill has kept for so long."""
    return Leg(path="remote", prefill_replica="one", kept_since=time.monotonic() - seconds)


def renewed(ledger: Ledger, leg: Leg, *seconds_ago: float) -> None:
    for each in seconds_ago:
        ledger.renew(f"prefill-{TAG}{leg.id}-0", each)


def begun(ledger: Ledger, leg: Leg, seconds_ago: float) -> None:
    ledger.begin(f"{TAG}{leg.id}-{NAMED}")
    ledger.look(leg.id).began_at = time.monotonic() - seconds_ago


def left_s(leg: Leg) -> float | None:
    return arrivals()._left_s(NAMED, leg)


def lost(leg: Leg) -> str:
    """Why a prompt's KV cache is not waited for any longer."""
    with pytest.raises(KVTransferError) as raised:
        left_s(leg)
    assert leg.kv_transfer_failed
    return str(raised.value)


def test_a_request_waits_for_its_turn_as_long_as_heartbeats_keep_the_lease(ledger: Ledger) -> None:
    leg = kept(200.0)
    renewed(ledger, leg, *range(190, 0, -10))
    assert left_s(leg) == pytest.approx(DEADLINE_S, abs=1.0)


@pytest.mark.parametrize(
    ("kept_s", "renewed_s", "expected"),
    [(49.0, [], 1.0), (60.0, [29.0], 1.0), (75.0, [60.0, 29.0], 1.0)],
    ids=["the first lease", "prolonged", "prolonged twice"],
)
def test_the_last_sixth_of_a_lease_is_for_tidings_on_their_way(
    ledger: Ledger, kept_s: float, renewed_s: list[float], expected: float
) -> None:
    leg = kept(kept_s)
    renewed(ledger, leg, *renewed_s)
    assert left_s(leg) == pytest.approx(expected, abs=0.5)


@pytest.mark.parametrize(
    ("kept_s", "renewed_s"),
    [(51.0, []), (80.0, [31.0]), (100.0, [35.0, 5.0])],
    ids=["never prolonged", "not prolonged in time", "prolonged when it was over already"],
)
def test_a_request_that_still_waits_when_the_lease_is_over_is_taken_back_and_no_peer_blamed(
    ledger: Ledger, kept_s: float, renewed_s: list[float]
) -> None:
    leg = kept(kept_s)
    renewed(ledger, leg, *renewed_s)
    waiting = arrivals()
    with pytest.raises(LeaseOverError, match="lease"):
        waiting._left_s(NAMED, leg)
    assert leg.kv_transfer_failed
    assert [peer.is_aside() for peer in waiting._peers] == [False]


def test_a_fetch_ends_with_its_deadline_or_the_lease_whichever_is_first(ledger: Ledger) -> None:
    quick, late, over, slow = kept(10.0), kept(45.0), kept(52.0), kept(30.0)
    for leg, seconds_ago in ((quick, 5.0), (late, 1.0), (over, 5.0), (slow, 21.0)):
        begun(ledger, leg, seconds_ago)
    assert left_s(quick) == pytest.approx(15.0, abs=0.5)
    assert left_s(late) == pytest.approx(5.0, abs=0.5)
    assert "lease" in lost(over)
    assert "longer than 20 s" in lost(slow)


def test_what_has_arrived_is_waited_for_without_an_end(ledger: Ledger) -> None:
    leg = kept(1000.0)
    begun(ledger, leg, 900.0)
    ledger.add(f"{TAG}{leg.id}-{NAMED}", 100, 0.1, 0.1, 1)
    ledger.end(f"{TAG}{leg.id}-{NAMED}")
    assert left_s(leg) is None


def test_the_engine_is_told_to_forget_a_request_before_it_fetches_what_is_no_longer_kept(
    ledger: Ledger,
) -> None:
    aborted: list[bool] = []

    async def outputs() -> AsyncIterator[Any]:
        try:
            await asyncio.sleep(60)
            yield None
        finally:
            aborted.append(True)

    async def wait() -> None:
        await arrivals(0.05, 0.3).first(outputs(), NAMED, kept(0.0))

    with pytest.raises(KVTransferError, match="lease"):
        asyncio.run(asyncio.wait_for(wait(), 5))
    assert aborted == [True]
