"""The engine that answers at once answers as a real one would, as far as vLLM's front end can tell."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

from diptych_instant import InstantCore

NIXL = SimpleNamespace(engine_id="prefill", kv_connector="NixlConnector", kv_connector_module_path=None)


def core() -> InstantCore:
    config = SimpleNamespace(
        cache_config=SimpleNamespace(block_size=16, num_gpu_blocks=None), kv_transfer_config=NIXL
    )
    return InstantCore(config)


def request(name: str, tokens: int, prompt: int = 20, transfer: dict[str, Any] | None = None) -> Any:
    params = SimpleNamespace(
        max_tokens=tokens, extra_args={"kv_transfer_params": transfer} if transfer else None
    )
    return SimpleNamespace(
        request_id=name, prompt_token_ids=[1] * prompt, sampling_params=params, abort_immediately=False
    )


async def steps(engine: InstantCore, count: int) -> list[Any]:
    return [await asyncio.wait_for(engine.get_output_async(), 1.0) for _ in range(count)]


def test_each_token_is_an_output_of_its_own_and_the_last_one_says_so() -> None:
    async def ask() -> list[Any]:
        engine = core()
        await engine.add_request_async(request("a", 3))
        return await steps(engine, 3)

    outputs = [one for step in asyncio.run(ask()) for one in step.outputs]
    assert [len(one.new_token_ids) for one in outputs] == [1, 1, 1]
    assert [str(one.finish_reason) for one in outputs] == ["None", "None", "length"]


def test_requests_that_run_together_share_a_step() -> None:
    async def ask() -> list[Any]:
        engine = core()
        await engine.add_request_async(request("a", 2))
        await engine.add_request_async(request("b", 1))
        return await steps(engine, 2)

    first, second = asyncio.run(ask())
    assert [one.request_id for one in first.outputs] == ["a", "b"]
    assert [one.request_id for one in second.outputs] == ["a"]


def test_a_prefill_leg_is_told_where_its_kv_cache_lies() -> None:
    async def ask() -> list[Any]:
        engine = core()
        await engine.add_request_async(request("a", 1, prompt=33, transfer={"do_remote_decode": True}))
        return await steps(engine, 1)

    place = asyncio.run(ask())[0].outputs[0].kv_transfer_params
    assert place["do_remote_prefill"] is True
    assert place["remote_engine_id"] == "prefill"
    assert place["remote_block_ids"] == [[1, 2, 3]]


def test_a_decode_leg_counts_its_prompt_as_fetched_and_tells_of_a_kv_transfer() -> None:
    async def ask() -> list[Any]:
        engine = core()
        await engine.add_request_async(request("a", 1, prompt=20, transfer={"do_remote_prefill": True}))
        return await steps(engine, 1)

    step = asyncio.run(ask())[0]
    assert step.outputs[0].prefill_stats.num_external_cached_tokens == 19
    assert len(step.scheduler_stats.kv_connector_stats["bytes_transferred"]) == 1


def test_an_aborted_request_gets_nothing_more() -> None:
    async def ask() -> list[Any]:
        engine = core()
        await engine.add_request_async(request("a", 9))
        await engine.add_request_async(request("b", 1))
        await engine.abort_requests_async(["a"])
        return await steps(engine, 1)

    assert [one.request_id for one in asyncio.run(ask())[0].outputs] == ["b"]
