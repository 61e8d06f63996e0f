"""What speaks against trusting a run."""

from diptych.bench.doubts import doubts, doubts_of_queues, doubts_of_records
from diptych.bench.load import Load
from diptych.bench.results import Parts, Sample

FAILED = Sample(0.0, 8, 0, None, (), "HTTP 503")
REMOTE = {"path": "remote"}


def sample(sent_s: float = 0.0, ttft_ms: float = 100.0) -> Sample:
    return Sample(sent_s, 8, 3, ttft_ms, (10.0, 20.0))


def test_a_good_run_leaves_no_doubts() -> None:
    good = [sample(float(number)) for number in range(100)]
    assert doubts(Load(rate=1.0), good, 100.0) == []
    assert doubts_of_records("split", good, Parts((REMOTE,) * 100), False) == []


def test_runs_that_are_short_few_or_failing_are_marked() -> None:
    found = " ".join(doubts(Load(rate=2.0), [sample(), FAILED], 3.0))
    assert "only 1 answers" in found
    assert "it lasted 3 s" in found
    assert "1 of 2 requests failed" in found


def test_a_queue_that_grew_to_the_end_is_called_oversubscribed() -> None:
    growing = [sample(float(number), 100.0 + 20 * number) for number in range(100)]
    assert "oversubscribed" in " ".join(doubts(Load(rate=1.0), growing, 100.0))
    (told,) = doubts(Load(rate=None, concurrency=8), growing, 100.0)
    assert told.startswith("oversubscribed: with 8 at once the queue grew")
    steady = [sample(float(number), 500.0) for number in range(100)]
    assert doubts(Load(rate=None, concurrency=8), steady, 300.0) == []


def queued(share: float) -> dict[str, object]:
    return {"path": "remote", "ttft_ms": 100.0, "prefill_ms": 95.0, "queue_ms": 100.0 * share}


def test_so_are_more_at_once_than_the_engines_take() -> None:
    waiting, working = Parts((queued(0.9),) * 3), Parts((queued(0.9), queued(0.1), queued(0.0)))
    (told,) = doubts_of_queues(Load(rate=None, concurrency=64), waiting)
    assert told.startswith("oversubscribed: with 64 at once most requests waited")
    assert doubts_of_queues(Load(rate=None, concurrency=64), working) == []
    assert doubts_of_queues(Load(rate=1.0), waiting) == []  # there a queue that grows is told
    assert doubts_of_queues(Load(rate=None, concurrency=64), Parts()) == []


def test_so_is_a_load_whose_answers_came_long_after_its_last_request() -> None:
    few = [sample(float(number)) for number in range(10)]
    assert "oversubscribed" in " ".join(doubts(Load(rate=1.0), few, 30.0))
    assert "oversubscribed" not in " ".join(doubts(Load(rate=1.0), few, 10.0))


def test_requests_that_the_service_has_forgotten_are_told() -> None:
    told = doubts_of_records("split", [sample()] * 3, Parts((REMOTE,) * 2), False)
    assert told == ["the service has records of 2 requests only: its parts are theirs"]


def test_requests_of_others_are_told() -> None:
    told = doubts_of_records("split", [sample()], Parts((REMOTE,) * 3), False)
    assert told == ["2 requests of others came meanwhile, and are among its parts"]


def test_a_split_whose_prompts_never_went_to_prefill_is_none() -> None:
    parts = Parts(({"path": "local-short"},))
    assert "decode alone" in " ".join(doubts_of_records("split", [sample()], parts, False))
    assert doubts_of_records("aggregated", [sample()], parts, False) == []
