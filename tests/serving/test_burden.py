"""The prefill that decode takes on itself: only what its prefix cache lacks counts."""

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray.serve.llm")

from vllm import SamplingParams
from vllm.distributed.kv_events import BlockStored

from diptych.serving.burden import Burden
from diptych.serving.costs import Costs
from diptych.serving.inside import Inside
from diptych.serving.placement import Share
from diptych.serving.prefix import CacheFollower
from diptych.serving.record import Leg
from diptych.serving.settings import Settings
from fakes.phases import prompt

CACHED = list(range(40))


def cache_of(tokens: list[int]) -> CacheFollower:
    """A prefix cache that holds the blocks of ten tokens of one prompt."""
    follower = CacheFollower()
    names = [bytes([at]) for at in range(len(tokens) // 10)]
    follower.take([BlockStored(names, None, tokens, 10, None, "CPU", None)])
    return follower


def burden(**settings: Any) -> Burden:
    """A decode replica that computes a hundred tokens in a second."""
    costs = Costs()
    costs.here.add(100, 1.0)
    told = Settings(**settings)
    inside = Inside(SimpleNamespace())
    return Burden(told, costs, Share(told.local_prefill_share), cache_of(CACHED), inside)


def uncached(asked: dict[str, Any], lora: Any = None, **params: Any) -> int:
    return burden().uncached_tokens(asked, SamplingParams(**params), lora)


def leg(uncached_here: int) -> Leg:
    return Leg(prompt_tokens=1000, uncached_here=uncached_here)


def test_what_is_in_the_prefix_cache_is_not_computed_but_for_the_last_token() -> None:
    assert uncached(prompt(*CACHED, 98, 99)) == 2
    assert uncached(prompt(*CACHED[:25])) == 5
    assert uncached(prompt(*CACHED)) == 1
    assert uncached(prompt(7, 7, 7)) == 3


def test_what_the_engine_would_not_take_from_its_cache_counts_whole() -> None:
    assert uncached(prompt(*CACHED, cache_salt="mine")) == 40
    assert uncached(prompt(*CACHED), lora=SimpleNamespace(lora_int_id=1)) == 40
    assert uncached(prompt(*CACHED), prompt_logprobs=1) == 40


def test_an_image_counts_with_all_the_tokens_that_stand_for_it() -> None:
    assert uncached({"type": "multimodal", "prompt_token_ids": CACHED, "mm_kwargs": {"image": 1}}) == 40
    assert uncached({"prompt_embeds": "a tensor"}) == 1


def test_the_share_is_charged_with_what_is_computed() -> None:
    taken = burden()
    assert taken.take(leg(uncached_here=50)) == pytest.approx(0.5)
    assert taken.share.taken() == pytest.approx(0.05)
    assert taken.has_room(leg(uncached_here=199))
    assert not taken.has_room(leg(uncached_here=201))


@pytest.mark.parametrize("mode", ["always", "never", 512])
def test_only_the_placement_itself_moves_prompts_here_for_want_of_room_elsewhere(mode: str | int) -> None:
    assert not burden(prefill=mode).has_room(leg(uncached_here=1))


def test_the_backlog_is_bounded_by_what_is_yet_to_be_computed() -> None:
    taken = burden(recovery_backlog_s=3.0)
    assert taken.refusal(leg(uncached_here=10_000), "prefill failed") is None  # nothing waits: one always may
    waits = leg(uncached_here=200)
    waits.here_s = taken.take(waits)
    with taken.inside.holding("one", waits):
        assert taken.refusal(leg(uncached_here=100), "prefill failed") is None
        refusal = taken.refusal(leg(uncached_here=101), "prefill failed")
        assert refusal is not None
        assert (refusal.status, refusal.retry_after_s) == (503, 2)
        assert refusal.message.startswith("Prefill failed, and decode has 2 s of prefill")
        waits.begun = True
        assert taken.refusal(leg(uncached_here=10_000), "prefill failed") is None
