"""The ledger of KV transfers: by request, summed over parts, taken once, bounded."""

import uuid

import pytest

from diptych.serving.transfers import TAG, Ledger, Transfer


def an_id() -> str:
    return uuid.uuid4().hex


def named(ours: str) -> str:
    """The id of an engine's request that is ours."""
    return f"{TAG}{ours}-chatcmpl-1-a171821c"


@pytest.mark.parametrize(
    "engines",
    ["{tag}{ours}", "{tag}{ours}-cmpl-1-0-a171821c", "0_{tag}{ours}-chatcmpl-1", "prefill-{tag}{ours}"],
)
def test_a_transfer_is_found_by_our_id_inside_the_engines(engines: str) -> None:
    ledger, ours = Ledger(), an_id()
    ledger.add(engines.format(tag=TAG, ours=ours), 100, 0.5, 0.1, 3)
    assert ledger.take(ours).transfer == Transfer(100, 0.5, 0.1, 3)


def test_an_id_of_our_kind_that_a_client_gave_is_not_taken_for_ours() -> None:
    ledger, ours, theirs = Ledger(), an_id(), an_id()
    ledger.add(f"{TAG}{ours}-chatcmpl-{TAG}{theirs}", 100, 0.5, 0.1, 3)
    assert ledger.take(theirs).transfer is None
    assert ledger.take(ours).transfer is not None


def test_the_parts_of_one_request_are_one_transfer_as_long_as_its_longest() -> None:
    ledger, ours = Ledger(), an_id()
    ledger.add(named(ours), 100, 0.5, 0.1, 3)
    ledger.add(named(ours), 60, 0.7, 0.05, 2)
    assert ledger.take(ours).transfer == Transfer(160, 0.7, 0.1, 5)


def test_a_transfer_is_over_when_each_worker_that_began_has_its_part() -> None:
    ledger, ours = Ledger(), an_id()
    for _ in range(2):
        ledger.begin(named(ours))
    assert not ledger.look(ours).is_over
    ledger.add(named(ours), 100, 0.5, 0.1, 3)
    ledger.end(named(ours))
    assert not ledger.look(ours).is_over
    ledger.add(named(ours), 60, 0.7, 0.05, 2)
    ledger.end(named(ours))
    assert ledger.look(ours).is_over


def test_a_transfer_of_which_a_part_failed_is_over() -> None:
    ledger, ours = Ledger(), an_id()
    ledger.begin(named(ours))
    ledger.fail(named(ours))
    assert ledger.look(ours).is_over


def test_a_transfer_began_when_its_first_worker_did(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger, ours, now = Ledger(), an_id(), iter([10.0, 14.0])
    monkeypatch.setattr("diptych.serving.transfers.time.monotonic", lambda: next(now))
    for _ in range(2):
        ledger.begin(named(ours))
    assert ledger.look(ours).began_at == 10.0


def test_a_transfer_is_told_once() -> None:
    ledger, ours = Ledger(), an_id()
    ledger.add(named(ours), 1, 1.0, 1.0, 1)
    assert ledger.take(ours).transfer is not None
    assert ledger.take(ours).transfer is None


def test_requests_do_not_get_each_others_transfers() -> None:
    ledger, one, two = Ledger(), an_id(), an_id()
    ledger.add(named(one), 1, 1.0, 1.0, 1)
    assert ledger.take(two).transfer is None
    assert ledger.take(one).transfer is not None


def test_an_id_that_is_not_ours_is_left_out() -> None:
    ledger = Ledger(capacity=1)
    ours = an_id()
    ledger.add(named(ours), 1, 1.0, 1.0, 1)
    for bare in ("cmpl-benchmark-7", an_id(), f"cmpl-{an_id()}", f"{TAG}{ours[:-1]}", ""):
        ledger.add(bare, 1, 1.0, 1.0, 1)
    assert ledger.take(ours).transfer is not None


def test_what_nobody_asks_for_is_forgotten_oldest_first() -> None:
    ledger, ids = Ledger(capacity=2), [an_id() for _ in range(3)]
    for one in ids:
        ledger.add(named(one), 1, 1.0, 1.0, 1)
    assert [ledger.take(one).transfer is not None for one in ids] == [False, True, True]
