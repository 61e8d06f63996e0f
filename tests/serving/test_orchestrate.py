"""A prompt's way through both phases, with engines that write down what they were asked."""

import asyncio
import contextlib
import gc
import logging
from collections.abc import Awaitable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray.serve.llm")

from ray.exceptions import TaskCancelledError
from ray.serve.exceptions import RequestCancelledError
from vllm import SamplingParams
from vllm.distributed.kv_events import BlockStored
from vllm.sampling_params import RequestOutputKind

from diptych.serving import arrival, orchestrate, prefilling
from diptych.serving.arrival import LeaseOverError
from diptych.serving.orchestrate import Orchestrator
from diptych.serving.prefix import GUESS_BLOCK, CacheFollower
from diptych.serving.record import Record, Refusal, Refused, current
from diptych.serving.settings import Queue, Queues, Settings
from diptych.serving.transfers import TAG, Ledger
from diptych.serving.whole import Whole
from fakes.phases import (
    ANSWER,
    PLACE,
    Client,
    LateAnswer,
    NotAssigned,
    PrefillHandle,
    prefill_peers,
    prompt,
)

NO_KV_CACHE = ANSWER | {"kv_transfer_params": None}


def split(client: Client, handle: PrefillHandle, *, ready: bool = True) -> Orchestrator:
    return Orchestrator(client, handle, prefill_peers("prefill-1") if ready else prefill_peers())


async def outputs_of(
    runner: Whole, asked: Any = None, request_id: str = "chatcmpl-1", /, *, params: Any = None, **more: Any
) -> list[Any]:
    generator = runner.generate(asked or prompt(), params or SamplingParams(), request_id, **more)
    return [output async for output in generator]


def run(work: Awaitable[Any]) -> tuple[Any, Record]:
    """The result of the work, done for a client's request, and the request's record."""

    async def within() -> tuple[Any, Record]:
        current.set(record := Record())
        return await work, record

    return asyncio.run(within())


async def until(said: Any) -> None:
    """Let the others go on until it is so."""
    for _ in range(100):
        if said():
            return
        await asyncio.sleep(0)
    raise AssertionError("it did not come to that")


@pytest.fixture
def ledger(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ledger]:
    own = Ledger()
    for module in (orchestrate, arrival):
        monkeypatch.setattr(module, "ledger", own)
    yield own


# The way


def test_a_prompt_goes_to_prefill_and_where_its_kv_cache_lies_to_decode() -> None:
    client, handle = Client(), PrefillHandle()
    outputs, record = run(outputs_of(split(client, handle), params=SamplingParams(max_tokens=9)))
    (leg,) = record.legs
    assert len(outputs) == 2
    assert (leg.path, leg.why, leg.prefill_replica, leg.queue_ms) == ("remote", None, "prefill-1", 0.5)
    assert leg.prefill_ms is not None
    assert handle.asked[0]["prompt"] == {"type": "token", "prompt_token_ids": [1, 2, 3]}
    assert handle.asked[0]["id"] == leg.id
    assert client.asked[0].kv_transfer_params == PLACE
    assert client.asked[0].params.max_tokens == 9
    assert client.asked[0].prompt == prompt()
    assert client.freed == []


def test_decodes_engine_knows_the_request_by_the_clients_id_and_ours() -> None:
    client = Client()
    _, record = run(outputs_of(split(client, PrefillHandle()), prompt(), "chatcmpl-mine"))
    assert client.asked[0].id == f"{TAG}{record.legs[0].id}-chatcmpl-mine"


def test_all_else_that_the_front_end_asks_for_reaches_decode() -> None:
    client, handle = Client(), PrefillHandle()
    more = {"priority": 3, "data_parallel_rank": 1, "session_id": "s", "reasoning_ended": True}
    more |= {"trace_headers": {"traceparent": "00-1-2-01"}}
    run(outputs_of(split(client, handle), **more))
    assert client.asked[0].more == more


def test_priority_and_trace_reach_prefill() -> None:
    handle = PrefillHandle()
    run(outputs_of(split(Client(), handle), priority=3, trace_headers={"traceparent": "00-1-2-01"}))
    assert (handle.asked[0]["priority"], handle.asked[0]["trace_headers"]) == (
        3,
        {"traceparent": "00-1-2-01"},
    )


@pytest.mark.parametrize(
    "answer",
    [
        ConnectionError("the replica is gone"),
        NotAssigned(RuntimeError("no replica took the request")),
        asyncio.CancelledError(),
        NO_KV_CACHE,
    ],
    ids=["gone", "not assigned", "cancelled by Serve", "no KV cache"],
)
def test_when_prefill_fails_decode_runs_the_request_whole_and_the_record_says_so(answer: Any) -> None:
    client = Client()
    outputs, record = run(outputs_of(split(client, PrefillHandle(answer))))
    (leg,) = record.legs
    assert len(outputs) == 2
    assert (leg.path, leg.why, leg.prefill_replica) == ("recovered", "prefill failed", None)
    assert client.asked[0].kv_transfer_params is None


@pytest.mark.parametrize(
    "error",
    [asyncio.CancelledError(), TaskCancelledError(), RequestCancelledError("serve-1")],
    ids=lambda error: type(error).__name__,
)
def test_a_replica_is_not_put_aside_for_a_call_that_serve_cancelled(error: BaseException) -> None:
    runner = split(Client(), PrefillHandle(error))
    _, record = run(outputs_of(runner))
    assert record.path == "recovered"
    assert [peer.is_aside() for peer in runner.peers] == [False]


def test_why_prefill_failed_is_logged_with_the_id_that_both_engines_know(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        _, record = run(outputs_of(split(Client(), PrefillHandle(ConnectionError("gone for good")))))
    assert record.legs[0].id in caplog.text
    assert "gone for good" in caplog.text


def test_a_prefill_that_does_not_answer_in_time_is_cancelled_and_has_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prefilling, "_UNKNOWN_COST_S", 0.05)
    handle = PrefillHandle(None)
    _, record = run(outputs_of(split(Client(), handle)))
    assert record.path == "recovered"
    assert handle.replicas[0].was_cancelled


def test_without_a_ready_prefill_replica_none_is_asked() -> None:
    handle = PrefillHandle()
    _, record = run(outputs_of(split(Client(), handle, ready=False)))
    assert (record.path, record.legs[0].why) == ("local-no-prefill", "no prefill replica is ready")
    assert handle.asked == []


def test_what_cannot_be_split_is_not_and_the_reason_is_kept() -> None:
    client, handle = Client(), PrefillHandle()
    _, record = run(outputs_of(split(client, handle), params=SamplingParams(n=2)))
    assert (record.path, record.legs[0].why) == ("local-whole", "n > 1")
    assert handle.asked == []
    assert client.asked[0].kv_transfer_params is None


def test_the_aggregated_engine_runs_everything_whole() -> None:
    client = Client()
    outputs, record = run(outputs_of(Whole(client)))
    assert len(outputs) == 2
    assert record.path == "aggregated"
    assert record.to_json()["kv_transfer_bytes"] is None


@pytest.mark.parametrize("name", ["kv_transfer_params", "ec_transfer_params"])
@pytest.mark.parametrize("with_record", [True, False], ids=["a client's", "nobody's"])
@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("aggregated", [True, False])
def test_transfer_settings_smuggled_in_reach_no_engine(
    name: str, with_record: bool, n: int, aggregated: bool
) -> None:
    client, handle = Client(), PrefillHandle()
    runner = Whole(client) if aggregated else split(client, handle)
    params = SamplingParams(n=n, extra_args={name: {"remote_host": "10.0.0.1"}, "mine": 1})
    work = outputs_of(runner, params=params)
    if with_record:
        run(work)
    else:
        asyncio.run(work)
    assert "10.0.0.1" not in f"{client.asked[0].params} {handle.asked}"
    assert (client.asked[0].params.extra_args or {})["mine"] == 1


# The record


def test_the_record_holds_the_transfer_when_the_first_output_is_there(ledger: Ledger) -> None:
    client = Client()
    runner = split(client, PrefillHandle())

    async def first() -> None:
        generator = runner.generate(prompt(), SamplingParams(), "chatcmpl-1")
        await anext(generator)

    async def arrives() -> None:
        await until(lambda: client.asked)
        # As the engine names it: vLLM puts a part of its own after our id.
        ledger.add(f"{client.asked[0].id}-a171821c", 5_898_240, 0.0042, 0.001, 30)

    async def both() -> None:
        await asyncio.gather(first(), arrives())

    _, record = run(both())
    told = record.to_json()
    assert (told["kv_transfer_bytes"], told["kv_transfer_ms"], told["kv_transfer_descriptors"]) == (
        5_898_240,
        4.2,
        30,
    )


def test_cached_tokens_are_those_that_nobody_computed_and_not_those_that_crossed() -> None:
    outputs, record = run(outputs_of(split(Client(cached=3), PrefillHandle(ANSWER | {"cached_tokens": 1}))))
    assert [output.num_cached_tokens for output in outputs] == [1, 1]
    assert record.to_json()["uncached_tokens"] == 2


@pytest.mark.parametrize("aggregated", [True, False])
def test_of_a_prompt_that_ran_whole_the_engines_own_word_counts(aggregated: bool) -> None:
    client = Client(cached=2)
    runner = Whole(client) if aggregated else split(client, PrefillHandle(ConnectionError("gone")))
    outputs, record = run(outputs_of(runner))
    assert [output.num_cached_tokens for output in outputs] == [2, 2]
    assert record.to_json()["uncached_tokens"] == 1


def test_an_engine_that_says_nothing_of_cached_tokens_leaves_them_unknown() -> None:
    _, record = run(outputs_of(Whole(Client(cached=None))))
    assert record.to_json()["uncached_tokens"] is None


def test_several_prompts_of_one_request_are_several_legs_of_one_record() -> None:
    client, handle = Client(), PrefillHandle(ANSWER, ConnectionError("gone"))
    runner = split(client, handle)

    async def both() -> None:
        await asyncio.gather(
            outputs_of(runner, prompt(1, 2), "cmpl-1-0"), outputs_of(runner, prompt(3), "cmpl-1-1")
        )

    _, record = run(both())
    assert [leg.path for leg in record.legs] == ["remote", "recovered"]
    assert record.path == "recovered"
    assert len({leg.id for leg in record.legs}) == 2
    assert [asked["prompt"]["prompt_token_ids"] for asked in handle.asked] == [[1, 2], [3]]
    places = {asked.id.split("-", 1)[1]: asked.kv_transfer_params for asked in client.asked}
    assert places == {"cmpl-1-0": PLACE, "cmpl-1-1": None}


def test_prompts_that_wait_for_their_first_token_are_bounded_and_one_more_is_refused_before_prefill() -> None:
    settings = Settings(queues=Queues(decode=Queue(2)))

    async def ask() -> list[Refused]:
        client, handle = Client(says=(None,)), PrefillHandle(ANSWER, None)
        runner = Orchestrator(client, handle, prefill_peers("prefill-1"), settings=settings)
        in_decode = asyncio.create_task(outputs_of(runner))
        await until(lambda: client.asked)
        at_prefill = asyncio.create_task(outputs_of(runner))
        await until(lambda: len(handle.asked) == 2)
        with pytest.raises(Refused) as one_more:
            await outputs_of(runner)
        assert len(handle.asked) == 2
        at_prefill.cancel()
        await asyncio.wait([at_prefill])
        following = asyncio.create_task(outputs_of(runner))
        await until(lambda: len(handle.asked) == 3)
        for task in (in_decode, following):
            task.cancel()
            await asyncio.wait([task])
        return [one_more.value]

    (refused,), record = run(ask())
    assert (refused.refusal.status, record.refusal) == (429, refused.refusal)
    assert "queue of decode" in refused.refusal.message


def test_what_a_prompt_is_computed_for_here_is_what_the_prefix_cache_lacks() -> None:
    cached = CacheFollower()
    cached.take([BlockStored([b"a"], None, [1, 2], 2, None, "CPU", None)])
    runner = Orchestrator(
        Client(), PrefillHandle(ConnectionError("gone")), prefill_peers("prefill-1"), cached=cached
    )
    runner.costs.here.add(100, 1.0)
    _, record = run(outputs_of(runner, prompt(1, 2, 3)))
    assert record.legs[0].uncached_here == 1
    assert record.legs[0].here_s == pytest.approx(0.01)
    assert runner.share.taken() == pytest.approx(0.001)


def test_prefill_is_told_how_much_of_a_prompt_it_will_have_to_compute() -> None:
    handle, tokens = PrefillHandle(), list(range(2 * GUESS_BLOCK))
    runner = split(Client(), handle)
    run(outputs_of(runner, prompt(*tokens)))
    run(outputs_of(runner, prompt(*tokens, 1, 2)))
    assert [asked["uncached_tokens"] for asked in handle.asked] == [128, 2]


def test_the_record_is_found_from_any_task_that_works_for_the_request() -> None:
    runner = split(Client(), PrefillHandle())

    async def in_another_task() -> None:
        generator = runner.generate(prompt(), SamplingParams(), "chatcmpl-1")
        await asyncio.create_task(anext(generator))
        await asyncio.create_task(generator.aclose())

    _, record = run(in_another_task())
    assert record.path == "remote"


def test_requests_at_the_same_time_keep_to_their_own_records() -> None:
    runner = split(Client(), PrefillHandle(ANSWER, ConnectionError("gone")))

    async def one(n: int) -> Record:
        current.set(record := Record())
        await outputs_of(runner, prompt(n), f"chatcmpl-{n}")
        return record

    async def both() -> list[Record]:
        return await asyncio.gather(one(1), one(2))

    records = asyncio.run(both())
    assert [[leg.path for leg in record.legs] for record in records] == [["remote"], ["recovered"]]


def test_what_nobody_asked_for_runs_whole_under_its_own_name_and_leaves_no_record() -> None:
    client, handle = Client(), PrefillHandle()
    outputs = asyncio.run(outputs_of(split(client, handle), prompt(), "warm-up"))
    assert len(outputs) == 2
    assert client.asked[0].id == "warm-up"
    assert handle.asked == []


def test_the_steps_of_a_beam_search_leave_one_leg_and_each_reaches_the_engine() -> None:
    client, handle = Client(), PrefillHandle()
    runner = split(client, handle)

    async def search() -> None:
        for step in range(3):
            ids = [f"chatcmpl-1-{step:016x}-beam-{beam}" for beam in range(2)]
            await asyncio.gather(*(outputs_of(runner, prompt(), each) for each in ids))

    _, record = run(search())
    assert [(leg.path, leg.why) for leg in record.legs] == [("local-whole", "beam search")]
    assert len(client.asked) == 6
    assert handle.asked == []


# KV transfers that fail


class LossyClient(Client):
    """An engine whose first fetches of a KV cache fail."""

    def __init__(self, ledger: Ledger, fails: int) -> None:
        super().__init__()
        self._ledger, self._fails = ledger, fails

    async def generate(self, prompt: Any, sampling_params: Any, request_id: str, **more: Any) -> Any:
        outputs = super().generate(prompt, sampling_params, request_id, **more)
        async with contextlib.aclosing(outputs):
            async for output in outputs:
                if self.asked[-1].kv_transfer_params and self._fails:
                    self._fails -= 1
                    self._ledger.fail(f"{request_id}-a171821c")
                yield output


TWO = (ANSWER, ANSWER | {"replica": "prefill-2"})
BACKLOG = Settings(recovery_backlog_s=1.0)


def lossy(
    ledger: Ledger, handle: PrefillHandle, *, fails: int = 1, names: Any = ("prefill-1", "prefill-2")
) -> Any:
    """An orchestrator whose engine can't tell the blocks of a fetch that failed: such a prompt begins anew."""
    client = LossyClient(ledger, fails)
    return Orchestrator(client, handle, prefill_peers(*names), settings=BACKLOG, own_salt=True)


def overburdened(runner: Orchestrator) -> None:
    """Have the engine do more prefill of its own than it should."""
    runner.costs.here.add(100, 1.0)
    runner._burden.inside = SimpleNamespace(backlog_s=5.0)  # type: ignore[assignment]


@pytest.mark.parametrize("burdened", [False, True])
def test_a_prompt_whose_kv_transfer_failed_goes_to_another_prefill_replica_once(
    ledger: Ledger, burdened: bool
) -> None:
    handle = PrefillHandle(*TWO)
    runner = lossy(ledger, handle)
    if burdened:
        overburdened(runner)
    outputs, record = run(outputs_of(runner))
    (leg,) = record.legs
    assert len(outputs) == 2
    assert (leg.path, leg.why, leg.prefill_replica, leg.attempts) == ("remote", None, "prefill-2", 2)
    assert leg.kv_transfer_failed
    assert [asked["replica"] for asked in handle.asked] == ["prefill-1", "prefill-2"]
    assert handle.asked[1]["only"]
    first, second = (asked["id"] for asked in handle.asked)
    assert first != second == leg.id
    names = [asked.id for asked in runner._client.asked]
    assert names == [f"{TAG}{first}-chatcmpl-1", f"{TAG}{second}-again-{TAG}{first}-chatcmpl-1"]


def test_what_is_still_heard_of_the_first_kv_transfer_does_not_fail_the_second(ledger: Ledger) -> None:
    runner = lossy(ledger, PrefillHandle(*TWO))
    outputs = runner.generate(prompt(), SamplingParams(), "chatcmpl-1")

    async def ask() -> int:
        first = await anext(outputs)
        ledger.fail(f"{runner._client.asked[0].id}-a171821c")
        return len([first, *[output async for output in outputs]])

    count, record = run(ask())
    assert (count, record.path) == (2, "remote")


def test_when_the_second_kv_transfer_fails_too_decode_computes_the_prompt(ledger: Ledger) -> None:
    handle = PrefillHandle(*TWO)
    runner = lossy(ledger, handle, fails=2, names=("prefill-1", "prefill-2", "prefill-3"))
    outputs, record = run(outputs_of(runner))
    (leg,) = record.legs
    assert len(outputs) == 2
    assert (leg.path, leg.why, len(handle.asked)) == ("recovered", "the KV transfer failed", 2)
    assert runner._client.asked[-1].kv_transfer_params is None


def test_when_the_other_prefill_replica_fails_decode_computes_the_prompt(ledger: Ledger) -> None:
    handle = PrefillHandle(ANSWER, ConnectionError("gone"))
    outputs, record = run(outputs_of(lossy(ledger, handle)))
    (leg,) = record.legs
    assert len(outputs) == 2
    assert (leg.path, leg.why, leg.prefill_replica) == ("recovered", "the KV transfer failed", "prefill-1")
    assert leg.kv_transfer_failed


@pytest.mark.parametrize("fails", [1, 2], ids=["no other replica", "another one's fails too"])
def test_when_decode_has_too_much_prefill_already_the_prompt_is_refused(ledger: Ledger, fails: int) -> None:
    runner = lossy(ledger, PrefillHandle(*TWO), fails=fails, names=("prefill-1", "prefill-2")[:fails])
    overburdened(runner)

    async def ask() -> Refused:
        with pytest.raises(Refused) as refused:
            await outputs_of(runner)
        return refused.value

    refused, record = run(ask())
    assert refused.refusal.status == 503
    assert refused.refusal.retry_after_s is not None
    assert record.legs[0].kv_transfer_failed


def test_another_replica_whose_kv_transfer_failed_a_moment_ago_is_not_tried(ledger: Ledger) -> None:
    handle = PrefillHandle(*TWO)
    runner = lossy(ledger, handle)
    runner.peers.get("prefill-2").failed()
    _, record = run(outputs_of(runner))
    assert (record.path, len(handle.asked)) == ("recovered", 1)


def test_no_other_replica_is_asked_when_prefills_queue_is_full(ledger: Ledger) -> None:
    handle = PrefillHandle(*TWO)
    runner = lossy(ledger, handle)

    async def ask() -> list[Any]:
        generator = runner.generate(prompt(), SamplingParams(), "chatcmpl-1")
        runner._prefill_bound.refusal = lambda *_: (
            Refusal(429, "full", "overloaded") if handle.asked else None
        )
        return [output async for output in generator]

    outputs, record = run(ask())
    assert (len(outputs), record.path, len(handle.asked)) == (2, "recovered", 1)


def test_no_other_replica_is_asked_for_what_decode_was_too_late_to_fetch(ledger: Ledger) -> None:
    handle = PrefillHandle(*TWO)
    runner = lossy(ledger, handle, fails=0)

    async def late(outputs: Any, request_id: str, leg: Any) -> Any:
        await outputs.aclose()
        leg.kv_transfer_failed = True
        raise LeaseOverError("prefill's lease was over before it had arrived")

    runner._arrivals.first = late
    outputs, record = run(outputs_of(runner))
    (leg,) = record.legs
    assert (len(outputs), leg.path, leg.why) == (2, "recovered", "the KV transfer failed")
    assert (len(handle.asked), leg.kv_transfer_failed) == (1, True)


def test_a_prompt_of_our_own_is_for_one_replica_only(ledger: Ledger) -> None:
    handle = PrefillHandle(*TWO)
    runner = lossy(ledger, handle)

    async def ask() -> Record:
        current.set(record := Record(prefill_wish="remote", only_peer="prefill-1"))
        await outputs_of(runner)
        return record

    record = asyncio.run(ask())
    assert (record.path, len(handle.asked)) == ("recovered", 1)


def test_what_the_engine_computed_by_itself_after_a_kv_transfer_failed_in_part_stays(ledger: Ledger) -> None:
    handle, client = PrefillHandle(*TWO), LossyClient(ledger, 1)
    runner = Orchestrator(client, handle, prefill_peers("prefill-1", "prefill-2"))
    outputs, record = run(outputs_of(runner))
    assert (len(outputs), record.path, len(handle.asked)) == (2, "recovered", 1)


# A stream's first token


class Given:
    """Stands for `FirstTokens`: writes down which token it is to give, and whether the client has it."""

    def __init__(self) -> None:
        self.tokens: list[tuple[str, int, bool]] = []
        self.ended = 0

    @contextlib.contextmanager
    def given(self, request_id: str, token: int, *, is_known: bool) -> Iterator[None]:
        self.tokens.append((request_id, token, is_known))
        try:
            yield
        finally:
            self.ended += 1


STREAM = SamplingParams(output_kind=RequestOutputKind.DELTA, max_tokens=8, temperature=0.5)
WITH_TOKEN = ANSWER | {"first_token": 7}


def begins_at_prefill(client: Client, handle: PrefillHandle, *names: str, **more: Any) -> tuple[Any, Given]:
    given: Any = Given()
    peers = prefill_peers(*(names or ("prefill-1",)))
    return Orchestrator(client, handle, peers, first_tokens=given, **more), given


def test_a_stream_has_begun_with_prefills_token_before_its_kv_cache_has_come(ledger: Ledger) -> None:
    client, handle = Client(says=(1, None)), PrefillHandle(WITH_TOKEN)
    runner, given = begins_at_prefill(client, handle)

    async def first() -> Any:
        outputs = runner.generate(prompt(), STREAM, "chatcmpl-1")
        async with contextlib.aclosing(outputs):
            return await anext(outputs)

    output, record = run(first())
    (leg,) = record.legs
    assert handle.asked[0]["drawn"]["temperature"] == 0.5
    assert given.tokens == [(client.asked[0].id, 7, False)]
    assert given.ended == 1
    assert (leg.answered, leg.begun, record.begun, record.first_token_from) == (True, False, True, "prefill")
    assert output.num_cached_tokens == ANSWER["cached_tokens"]


def test_when_the_kv_cache_has_come_decode_goes_on(ledger: Ledger) -> None:
    client = Client(says=(1, 2, 3))
    runner, _ = begins_at_prefill(client, PrefillHandle(WITH_TOKEN))
    outputs, record = run(outputs_of(runner, params=STREAM))
    (leg,) = record.legs
    assert (len(outputs), leg.begun, client.freed) == (3, True, [])
    assert leg.first_token_at is not None and leg.decode_began_at is not None
    assert leg.first_token_at <= leg.decode_began_at


@pytest.mark.parametrize("params", [SamplingParams(max_tokens=8), None])
def test_an_answer_in_one_piece_waits_for_decode(ledger: Ledger, params: Any) -> None:
    handle = PrefillHandle()
    runner, given = begins_at_prefill(Client(), handle)
    _, record = run(outputs_of(runner, params=params))
    assert (handle.asked[0]["drawn"], given.tokens, record.first_token_from) == (None, [], "decode")


def test_where_the_operator_wants_decodes_token_prefills_is_not_asked_for(ledger: Ledger) -> None:
    handle = PrefillHandle()
    run(outputs_of(split(Client(), handle), params=STREAM))
    assert handle.asked[0]["drawn"] is None


def test_when_the_answer_ends_with_it_prefill_lets_the_kv_cache_go(ledger: Ledger) -> None:
    client = Client(says=(1,))
    runner, _ = begins_at_prefill(client, PrefillHandle(WITH_TOKEN))

    async def ask() -> list[Any]:
        outputs = await outputs_of(runner, params=STREAM)
        await until(lambda: client.freed)
        return outputs

    outputs, record = run(ask())
    assert (len(outputs), client.freed) == (1, [(f"freed-{record.legs[0].id}", PLACE)])


def test_after_a_kv_transfer_that_failed_the_stream_goes_on_from_the_token_it_has(ledger: Ledger) -> None:
    client = LossyClient(ledger, 1)
    client.says = (1, 2, 3)
    handle = PrefillHandle(WITH_TOKEN, WITH_TOKEN | {"replica": "prefill-2", "first_token": 8})
    runner, given = begins_at_prefill(client, handle, "prefill-1", "prefill-2", own_salt=True)
    outputs, record = run(outputs_of(runner, params=STREAM))
    (leg,) = record.legs
    assert [(token, known) for _, token, known in given.tokens] == [(7, False), (7, True)]
    assert [name for name, _, _ in given.tokens] == [asked.id for asked in client.asked]
    assert len(outputs) == 1 + 3  # the second engine request gives no token that the client has
    assert (leg.path, leg.prefill_replica, leg.kv_transfer_failed) == ("remote", "prefill-2", True)
    assert (leg.begun, record.first_token_from) == (True, "prefill")


def test_computed_here_the_stream_goes_on_from_the_token_it_has(ledger: Ledger) -> None:
    client = LossyClient(ledger, 1)
    runner, given = begins_at_prefill(client, PrefillHandle(WITH_TOKEN), own_salt=True)
    outputs, record = run(outputs_of(runner, params=STREAM))
    assert [(token, known) for _, token, known in given.tokens] == [(7, False), (7, True)]
    assert client.asked[1].kv_transfer_params is None
    assert (len(outputs), record.path) == (1 + 2, "recovered")


# Deadlines


def deadline_s(runner: Orchestrator) -> float:
    (peer,) = runner.peers
    return runner._prefilling._deadline_s(peer, 1000)


def test_before_a_kv_transfer_is_proven_a_prefill_may_load_its_kernels() -> None:
    runner = split(Client(), PrefillHandle())
    runner.costs.here.add(100, 0.1)
    assert deadline_s(runner) == 300.0


@pytest.mark.parametrize(
    ("here", "elsewhere", "expected_s"),
    [(None, None, 60.0), (0.1, None, 30.0 + 4 * 1.0), (0.1, 0.05, 30.0 + 4 * 0.5)],
    ids=["nothing measured", "measured here", "measured on prefill"],
)
def test_a_prefill_that_clients_wait_for_has_a_deadline_of_what_is_known(
    here: float | None, elsewhere: float | None, expected_s: float
) -> None:
    runner = split(Client(), PrefillHandle())
    runner.peers.has_transferred = True
    for line, seconds in ((runner.costs.here, here), (runner.costs.prefill, elsewhere)):
        if seconds is not None:
            line.add(100, seconds)
    assert deadline_s(runner) == pytest.approx(expected_s)


def test_what_waits_on_a_replica_before_the_prompt_counts_for_its_deadline() -> None:
    runner = split(Client(), PrefillHandle())
    runner.peers.has_transferred = True
    runner.costs.here.add(100, 0.1)
    (peer,) = runner.peers
    peer.told(2000)
    assert deadline_s(runner) == pytest.approx(30.0 + 4 * 3.0)


# Clients that leave, and engines that refuse


def test_a_client_who_leaves_during_prefill_has_it_cancelled_and_decode_is_not_asked() -> None:
    client, handle = Client(), PrefillHandle(None)

    async def leave() -> None:
        asking = asyncio.create_task(outputs_of(split(client, handle)))
        await until(lambda: handle.asked)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking

    _, record = run(leave())
    assert handle.replicas[0].was_cancelled
    assert client.asked == []
    assert record.legs[0].path == "remote"


@pytest.mark.parametrize("answer", [ANSWER, NO_KV_CACHE], ids=["a KV cache", "none"])
def test_when_prefill_was_done_just_as_the_client_left_its_kv_cache_is_let_go(answer: dict[str, Any]) -> None:
    client = Client()

    async def leave() -> None:
        handle = PrefillHandle(LateAnswer(answer))
        runner = split(client, handle)
        asking = asyncio.create_task(outputs_of(runner))
        await until(lambda: handle.asked)
        asking.cancel()
        await asyncio.wait([asking])
        await until(lambda: not runner._prefilling._tasks)

    _, record = run(leave())
    assert client.freed == ([(f"freed-{record.legs[0].id}", PLACE)] if answer is ANSWER else [])
    assert client.asked == []


def test_when_prefill_was_done_after_its_deadline_its_kv_cache_is_let_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = Client()

    async def late() -> None:
        await outputs_of(split(client, PrefillHandle(LateAnswer(ANSWER))))
        await until(lambda: client.freed)

    monkeypatch.setattr(prefilling, "_UNKNOWN_COST_S", 0.05)
    _, record = run(late())
    assert record.path == "recovered"
    assert client.freed == [(f"freed-{record.legs[0].id}", PLACE)]


def test_a_client_who_leaves_while_decode_works_has_it_aborted() -> None:
    client = Client(says=(1, None))

    async def leave() -> None:
        asking = asyncio.create_task(outputs_of(split(client, PrefillHandle())))
        await until(lambda: client.asked)
        for _ in range(5):
            await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait([asking])

    run(leave())
    assert client.aborted == [client.asked[0].id]


def test_a_request_that_is_abandoned_is_aborted_in_whatever_task_its_handler_runs() -> None:
    client = Client(says=(1, None))

    async def abandon() -> None:
        handler = asyncio.create_task(outputs_of(split(client, PrefillHandle())))
        await until(lambda: client.asked)
        record = current.get()
        assert record
        record.abandon()
        await asyncio.wait([handler])
        assert handler.cancelled()

    run(abandon())
    assert client.aborted == [client.asked[0].id]


@pytest.mark.parametrize("with_record", [True, False], ids=["a client's", "nobody's"])
def test_an_answer_that_is_closed_in_the_middle_is_aborted_before_closing_returns(with_record: bool) -> None:
    client = Client(says=(1, 2, 3))

    async def close() -> None:
        generator = split(client, PrefillHandle()).generate(prompt(), SamplingParams(), "chatcmpl-1")
        await anext(generator)
        await generator.aclose()
        assert client.aborted == [client.asked[0].id]

    if with_record:
        run(close())
    else:
        asyncio.run(close())


def test_an_answer_that_is_forgotten_in_the_middle_is_aborted() -> None:
    client = Client(says=(1, 2, 3))

    async def forget() -> None:
        generator = split(client, PrefillHandle()).generate(prompt(), SamplingParams(), "chatcmpl-1")
        await anext(generator)
        del generator
        gc.collect()
        await until(lambda: client.aborted)

    run(forget())


@pytest.mark.parametrize("error", [ValueError("the grammar is wrong"), RuntimeError("the queue is full")])
def test_when_decode_refuses_a_prompt_its_kv_cache_is_let_go_and_the_error_is_the_engines(
    error: Exception,
) -> None:
    client = Client(says=(error,))

    async def ask() -> None:
        with pytest.raises(type(error), match=str(error)):
            await outputs_of(split(client, PrefillHandle()))
        await until(lambda: client.freed)

    _, record = run(ask())
    assert client.freed == [(f"freed-{record.legs[0].id}", PLACE)]


@pytest.mark.parametrize(
    ("says", "answer"),
    [((1, RuntimeError("died")), ANSWER), ((RuntimeError("died"),), NO_KV_CACHE)],
    ids=["after its first token", "without a KV cache elsewhere"],
)
def test_when_there_is_nothing_to_let_go_nothing_is(says: Any, answer: Any) -> None:
    client = Client(says=says)

    async def ask() -> None:
        with pytest.raises(RuntimeError):
            await outputs_of(split(client, PrefillHandle(answer)))
        for _ in range(10):
            await asyncio.sleep(0)

    run(ask())
    assert client.freed == []


class DeadClient(Client):
    async def notify_kv_transfer_request_rejected(self, *args: Any, **more: Any) -> None:
        raise RuntimeError("EngineDeadError")


def test_that_letting_go_fails_disturbs_nobody_and_nothing_of_it_stays() -> None:
    unhandled: list[Any] = []

    async def ask() -> Orchestrator:
        asyncio.get_running_loop().set_exception_handler(lambda _, told: unhandled.append(told))
        runner = split(DeadClient(says=(RuntimeError("EngineDeadError"),)), PrefillHandle())
        with contextlib.suppress(RuntimeError):
            await outputs_of(runner)
        await until(lambda: not runner._prefilling._tasks)
        gc.collect()
        return runner

    run(ask())
    assert unhandled == []


def test_nothing_of_a_request_stays_with_the_orchestrator() -> None:
    async def leave_and_fail() -> Orchestrator:
        handle = PrefillHandle(None, ConnectionError("gone"), ANSWER)
        runner = split(Client(), handle)
        leaving = asyncio.create_task(outputs_of(runner))
        await until(lambda: handle.asked)
        leaving.cancel()
        await asyncio.wait([leaving])
        await outputs_of(runner)
        await outputs_of(runner)
        await until(lambda: not runner._prefilling._tasks)
        return runner

    runner, _ = run(leave_and_fail())
    assert runner._prefilling._tasks == set()


class EmptyDeployment(PrefillHandle):
    """No prefill replica is up; `started` returns when Serve has started one."""

    def __init__(self) -> None:
        super().__init__()
        self.starts: list[dict[str, Any]] = []
        self.is_up = asyncio.Event()
        self.gave_up = 0

    @property
    def started(self) -> Any:
        return SimpleNamespace(remote=self._start)

    def _start(self, asked: dict[str, Any]) -> Any:
        self.starts.append(asked)
        return self

    def __await__(self) -> Any:
        return self.is_up.wait().__await__()

    def cancel(self) -> None:
        self.gave_up += 1


def test_without_any_prefill_replica_serve_is_asked_to_start_one_while_decode_answers() -> None:
    async def ask() -> tuple[list[Any], EmptyDeployment]:
        handle = EmptyDeployment()
        runner = split(Client(), handle, ready=False)
        for _ in range(3):
            assert len(await outputs_of(runner)) == 2
        assert handle.starts == [{"waits": True}]
        handle.is_up.set()
        await until(lambda: not runner._prefilling._tasks)
        await outputs_of(runner)
        await until(lambda: len(handle.starts) == 2)
        return [leg.path for leg in current.get().legs], handle  # type: ignore[union-attr]

    (paths, handle), _ = run(ask())
    assert paths == ["local-no-prefill"] * 4
    assert handle.asked == []


def test_serve_is_not_asked_to_start_a_replica_where_one_is_known_or_none_is_needed() -> None:
    async def ask() -> EmptyDeployment:
        handle = EmptyDeployment()
        for runner in (
            Orchestrator(Client(), handle, prefill_peers("prefill-1", ready=False)),
            Orchestrator(Client(), handle, prefill_peers(), settings=Settings(prefill="never")),
            Orchestrator(Client(), handle, prefill_peers(), settings=Settings(prefill=64)),
        ):
            await outputs_of(runner)
        return handle

    handle, _ = run(ask())
    assert handle.starts == []


def test_serve_is_asked_to_start_a_replica_for_so_long_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefilling, "_STARTS_WITHIN_S", 0.05)

    async def ask() -> EmptyDeployment:
        handle = EmptyDeployment()
        runner = split(Client(), handle, ready=False)
        await outputs_of(runner)
        await asyncio.sleep(0.2)
        assert not runner._prefilling._tasks
        return handle

    handle, _ = run(ask())
    assert (len(handle.starts), handle.gave_up) == (1, 1)
