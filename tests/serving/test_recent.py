"""The newest records of a replica, for whoever measures."""

import time

from diptych.serving.recent import Recent


def test_records_that_ended_after_a_moment_are_told() -> None:
    recent = Recent()
    recent.add({"request": "old"})
    moment = time.time()
    recent.add({"request": "new"})
    told = recent.since(moment)
    assert [entry["request"] for entry in told["requests"]] == ["new"]
    assert told["forgotten"] is False


def test_a_full_store_forgets_the_oldest_and_says_so() -> None:
    recent = Recent(kept=2)
    moment = time.time()
    for number in range(3):
        recent.add({"request": number})
    told = recent.since(moment)
    assert [entry["request"] for entry in told["requests"]] == [1, 2]
    assert told["forgotten"] is True
