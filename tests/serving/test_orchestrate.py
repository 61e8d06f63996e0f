"""A request's way through both phases, with engines that write down what they were asked."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

pytest.importorskip("ray.serve.llm")

from diptych.serving import orchestrate
from diptych.serving.orchestrate import Orchestrator, Record, Whole
from diptych.serving.ray_llm import CompletionRequest, ErrorResponse, RawRequestInfo
from diptych.serving.transfers import Ledger

PLACE = {"remote_engine_id": "prefill-1", "remote_block_ids": [1], "do_remote_prefill": True}


class Answer:
    def __init__(self, kv_transfer_params: dict[str, Any] | None) -> None:
        self.kv_transfer_params = kv_transfer_params


class Decode:
    """The engine here: yields two items, and says that a transfer came in before the first."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.moved: Callable[[str], None] = lambda request_id: None

    async def completions(self, request: Any, raw: Any) -> AsyncIterator[str]:
        self.asked.append(request)
        self.moved(request.request_id)
        yield "first"
        yield "second"


class Prefill:
    """A handle to prefill replicas, whose next answer the test chooses."""

    def __init__(self, answer: Any) -> None:
        self.asked: list[Any] = []
        self.headers: list[dict[str, str]] = []
        self._answer = answer
        self.completions = self

    async def _answers(self) -> AsyncIterator[Any]:
        if isinstance(self._answer, Exception):
            raise self._answer
        if self._answer == "silence":
            await asyncio.sleep(60)
        yield self._answer

    def remote(self, leg: Any, raw: Any) -> AsyncIterator[Any]:
        self.asked.append(leg)
        self.headers.append(dict(raw.headers))
        return self._answers()


def request(**fields: Any) -> Any:
    return CompletionRequest(**({"model": "m", "prompt": "Hello"} | fields))


def run(runner: Whole, asked: Any, headers: dict[str, str] | None = None) -> tuple[list[Any], Record]:
    record = Record()

    async def collect() -> list[Any]:
        return [item async for item in await runner.run(asked, RawRequestInfo(headers=headers or {}), record)]

    return asyncio.run(collect()), record


def test_a_prompt_goes_to_prefill_and_where_its_kv_cache_lies_to_decode() -> None:
    decode, prefill = Decode(), Prefill(Answer(PLACE))
    items, record = run(Orchestrator(decode, prefill, lambda: True), request(max_tokens=9))
    assert items == ["first", "second"]
    assert (record.path, record.why, record.prefill_replica) == ("remote", None, "prefill-1")
    assert record.prefill_ms is not None
    assert decode.asked[0].kv_transfer_params == PLACE
    assert decode.asked[0].max_tokens == 9
    assert prefill.asked[0].max_tokens == 1
    assert decode.asked[0].request_id == prefill.asked[0].request_id == record.request_id


@pytest.mark.parametrize(
    "answer",
    [
        ConnectionError("the replica is gone"),
        ErrorResponse(error={"message": "out of memory", "type": "x", "code": 500}),
        Answer(None),
    ],
    ids=["gone", "error", "no KV cache"],
)
def test_when_prefill_fails_decode_runs_the_request_whole_and_the_record_says_so(answer: Any) -> None:
    decode = Decode()
    items, record = run(Orchestrator(decode, Prefill(answer), lambda: True), request())
    assert items == ["first", "second"]
    assert (record.path, record.why) == ("recovered", "prefill failed")
    assert decode.asked[0].kv_transfer_params is None


def test_a_prefill_that_does_not_answer_in_time_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orchestrate, "PREFILL_DEADLINE_S", 0.05)
    _, record = run(Orchestrator(Decode(), Prefill("silence"), lambda: True), request())
    assert record.path == "recovered"


def test_without_a_ready_prefill_replica_none_is_asked() -> None:
    prefill = Prefill(Answer(PLACE))
    _, record = run(Orchestrator(Decode(), prefill, lambda: False), request())
    assert record.path == "local-no-prefill"
    assert prefill.asked == []


def test_what_cannot_be_split_is_not_and_the_reason_is_kept() -> None:
    prefill = Prefill(Answer(PLACE))
    _, record = run(Orchestrator(Decode(), prefill, lambda: True), request(n=2))
    assert (record.path, record.why) == ("local-whole", "n > 1")
    assert prefill.asked == []


def test_trace_headers_reach_prefill_and_keys_do_not() -> None:
    prefill = Prefill(Answer(PLACE))
    headers = {"authorization": "Bearer dk-x", "traceparent": "00-1-2-01", "cookie": "c"}
    run(Orchestrator(Decode(), prefill, lambda: True), request(), headers)
    assert prefill.headers == [{"traceparent": "00-1-2-01"}]


def test_the_record_holds_the_transfer_when_the_first_item_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger, decode = Ledger(), Decode()
    monkeypatch.setattr(orchestrate, "ledger", ledger)
    decode.moved = lambda request_id: ledger.add(f"cmpl-{request_id}-0", 5_898_240, 0.0042, 0.001, 30)
    record = Record()

    async def first() -> Any:
        items = await Orchestrator(decode, Prefill(Answer(PLACE)), lambda: True).run(
            request(), RawRequestInfo(headers={}), record
        )
        return await anext(items)

    assert asyncio.run(first()) == "first"
    told = record.to_json()
    assert (told["kv_transfer_bytes"], told["kv_transfer_ms"], told["kv_transfer_descriptors"]) == (
        5_898_240,
        4.2,
        30,
    )


def test_the_aggregated_engine_runs_everything_whole() -> None:
    engine = Decode()
    _, record = run(Whole(engine), request(kv_transfer_params={"remote_host": "x"}))
    assert record.path == "aggregated"
    assert engine.asked[0].kv_transfer_params is None
    assert record.to_json()["kv_transfer_bytes"] is None
