"""The light proofs of answers and idleness: prompts both ways, and engines that have to be as they were."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from typing import Any

import pytest

pytest.importorskip("ray.serve.llm")

from vllm.logprobs import Logprob
from vllm.outputs import CompletionOutput, RequestOutput

from diptych.serving import beside, canary
from diptych.serving.beside import Beside
from diptych.serving.canary import Canary
from diptych.serving.comparison import Difference
from diptych.serving.orchestrate import Orchestrator
from diptych.serving.transfers import ledger
from fakes.phases import Client, PrefillHandle, prefill_peers

RIGHT, WRONG = Difference(None, 0.01, "4 tokens the same"), Difference(2, 7.0, "token 2 is 5 and 6")
BEFORE = {"prefill": 0, "decode": 0}


def looked(usage: float = 0.0) -> dict[str, Any]:
    counters = {"kv_cache_usage": usage, "requests_finished": 3.0}
    return {
        side: {"replica": f"{side}-1", "engine_pid": 7, "counters": dict(counters)}
        for side in ("prefill", "decode")
    }


class Probe:
    """Looks that are given, the last one over and over."""

    def __init__(self, *looks: Any) -> None:
        self.turn = asyncio.Lock()
        self.looks = list(looks or (looked(),))
        self.taken = 0

    async def look(self, _: str) -> Any:
        await asyncio.sleep(0)
        self.taken += 1
        return self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]


class Prompts:
    """A canary whose prompts are answered as given, and that looks whether it is alone meanwhile."""

    def __init__(self, probe: Probe, *differences: Difference | None) -> None:
        self.sent: Counter[str] = Counter()
        self._probe = probe
        self._differences = list(differences)

    async def both_ways(self, name: str) -> Difference | None:
        assert self._probe.turn.locked()
        self.sent[name] += 1
        self.sent[""] += 1
        return self._differences.pop(0)


def proofs(*differences: Difference | None, looks: Any = (), carries: bool = True) -> tuple[Any, Any, Probe]:
    probe = Probe(*looks)
    own: Any = Beside(probe, Prompts(probe, *differences))  # type: ignore[arg-type]
    told = asyncio.run(own.look("prefill-1", looked(), BEFORE, carries=carries))
    return told["answers"], told["idle"], probe


def test_the_same_answers_hold() -> None:
    answers, idle, _ = proofs(RIGHT)
    assert (answers.holds, answers.says, idle.holds) == (True, "4 tokens the same", True)


def test_other_answers_count_when_a_second_prompt_is_answered_differently_too() -> None:
    assert proofs(WRONG, RIGHT)[0].holds is True
    answers, _, _ = proofs(WRONG, WRONG)
    assert (answers.holds, answers.says) == (False, "token 2 is 5 and 6")


def test_answers_that_hold_are_not_asked_for_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    probe = Probe(looked())
    own: Any = Beside(probe, Prompts(probe, WRONG, WRONG, RIGHT, RIGHT, RIGHT))  # type: ignore[arg-type]

    def looks(*, carries: bool = True) -> bool | None:
        told = asyncio.run(own.look("prefill-1", looked(), BEFORE, carries=carries))
        return told["answers"].holds if "answers" in told else None

    assert [looks(), looks(), looks()] == [False, True, None]
    looks(carries=False)
    assert [looks(), looks()] == [True, None]
    monkeypatch.setattr(beside, "ANSWERS_EVERY_S", 0.0)
    assert looks() is True


def test_answers_that_did_not_come_both_ways_say_nothing() -> None:
    assert proofs(None)[0].holds is None
    assert proofs(WRONG, None)[0].holds is None


def test_of_a_pair_that_carries_nothing_nothing_is_asked() -> None:
    answers, idle, probe = proofs(carries=False)
    assert (answers.holds, idle.holds, probe.taken) == (None, None, 0)


def test_kv_cache_is_waited_for_and_told_when_it_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside, "_POLL_S", 0.01)
    _, idle, probe = proofs(RIGHT, looks=[looked(0.1), looked(0.1), looked()])
    assert (idle.holds, probe.taken) == (True, 3)
    monkeypatch.setattr(beside, "SETTLED_WITHIN_S", 0.05)
    _, idle, probe = proofs(RIGHT, looks=[looked(0.1)])
    assert idle.holds is False
    assert probe.taken > 1


def test_a_pair_that_is_gone_is_forgotten() -> None:
    probe = Probe()
    own: Any = Beside(probe, Prompts(probe, RIGHT))  # type: ignore[arg-type]
    asyncio.run(own.look("prefill-1", looked(), BEFORE, carries=True))
    own.forget("prefill-1")
    assert own._idle == {}


# A prompt both ways


class Speaking(Client):
    """An engine that writes tokens: those given, or others where a KV cache came from elsewhere."""

    here: tuple[int, ...] = (5, 6)
    fetched: tuple[int, ...] = (5, 6)
    crosses = True

    async def generate(  # type: ignore[override]
        self, prompt: Any, sampling_params: Any, request_id: str, **more: Any
    ) -> AsyncGenerator[RequestOutput, None]:
        async for output in super().generate(prompt, sampling_params, request_id, **more):
            is_fetched = self.asked[-1].kv_transfer_params is not None
            if is_fetched and self.crosses:
                ledger.begin(request_id)
                ledger.add(request_id, 700, 0.001, 0.0, 1)
                ledger.end(request_id)
            words = self.fetched if is_fetched else self.here
            logprobs = [{word: Logprob(-0.5), 9: Logprob(-8.0)} for word in words]
            output.outputs = [CompletionOutput(0, "", list(words), None, logprobs)]
            yield output


def asked_both_ways(client: Speaking, *answers: Any) -> Difference | None:
    runner = Orchestrator(client, PrefillHandle(*answers), prefill_peers("prefill-1"))
    runner.__class__ = type("Own", (Orchestrator,), {"block_tokens": 16})
    return asyncio.run(Canary(runner, 60.0).both_ways("prefill-1"))


def test_one_prompt_is_answered_with_prefills_kv_cache_and_without() -> None:
    client = Speaking()
    difference = asked_both_ways(client)
    assert difference is not None and difference.is_right
    fetched, here = client.asked
    assert (fetched.kv_transfer_params is not None, here.kv_transfer_params) == (True, None)
    assert fetched.prompt["prompt_token_ids"] == here.prompt["prompt_token_ids"]
    assert len(here.prompt["prompt_token_ids"]) == 17
    assert fetched.prompt["cache_salt"] != here.prompt["cache_salt"]
    assert (here.params.temperature, here.params.max_tokens) == (0, 4)


def test_another_token_is_a_difference() -> None:
    client = Speaking()
    client.fetched = (5, 7)
    difference = asked_both_ways(client)
    assert difference is not None and not difference.is_right
    assert difference.at == 2


def test_a_prompt_that_prefill_or_its_transfer_failed_is_no_comparison() -> None:
    assert asked_both_ways(Speaking(), RuntimeError("gone")) is None
    still = Speaking()
    still.crosses = False
    assert asked_both_ways(still) is None


def test_an_engine_that_is_late_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canary, "_ANSWERED_WITHIN_S", 0.05)
    client = Speaking(says=(None,))
    assert asked_both_ways(client) is None
    assert client.aborted
