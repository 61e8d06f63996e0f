"""The ledger of KV transfers: by request, summed over parts, taken once, bounded."""

import uuid

from diptych.serving.transfers import Ledger, Transfer


def an_id() -> str:
    return uuid.uuid4().hex


def test_a_transfer_is_found_by_our_id_inside_the_engines() -> None:
    ledger, ours = Ledger(), an_id()
    ledger.add(f"chatcmpl-{ours}-0-a171821c", 100, 0.5, 0.1, 3)
    assert ledger.take(ours) == Transfer(100, 0.5, 0.1, 3)


def test_the_parts_of_one_request_are_one_transfer_as_long_as_its_longest() -> None:
    ledger, ours = Ledger(), an_id()
    ledger.add(f"cmpl-{ours}", 100, 0.5, 0.1, 3)
    ledger.add(f"cmpl-{ours}", 60, 0.7, 0.05, 2)
    assert ledger.take(ours) == Transfer(160, 0.7, 0.1, 5)


def test_a_transfer_is_told_once() -> None:
    ledger, ours = Ledger(), an_id()
    ledger.add(ours, 1, 1.0, 1.0, 1)
    assert ledger.take(ours) is not None
    assert ledger.take(ours) is None


def test_requests_do_not_get_each_others_transfers() -> None:
    ledger, one, two = Ledger(), an_id(), an_id()
    ledger.add(one, 1, 1.0, 1.0, 1)
    assert ledger.take(two) is None
    assert ledger.take(one) is not None


def test_an_id_that_is_not_ours_is_left_out() -> None:
    ledger = Ledger(capacity=1)
    ours = an_id()
    ledger.add(ours, 1, 1.0, 1.0, 1)
    ledger.add("cmpl-benchmark-7", 1, 1.0, 1.0, 1)
    assert ledger.take(ours) is not None


def test_what_nobody_asks_for_is_forgotten_oldest_first() -> None:
    ledger, ids = Ledger(capacity=2), [an_id() for _ in range(3)]
    for one in ids:
        ledger.add(one, 1, 1.0, 1.0, 1)
    assert [ledger.take(one) is not None for one in ids] == [False, True, True]
