"""A vLLM plugin that puts an engine in vLLM's place that answers at once: what is left is the way to it.

The cut is between vLLM's front end and its engine process: `AsyncLLM` asks an `InstantCore` where it would ask a
process of its own over ZeroMQ. So parsing, chat templates, tokenizing, output processing, detokenizing, statistics
and everything around them run as ever, on every side of a comparison alike, and nothing computes. With this folder
on PYTHONPATH vLLM finds the plugin by itself.

A request for N tokens gets N outputs, one a step, words of the embedded model's vocabulary. A prefill leg gets a
place of its KV cache, as vLLM's NIXL connector words it; a decode leg that brings one is taken to have fetched it,
with the statistics of a KV transfer.
"""

import asyncio
import os
import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.v1.engine import EngineCoreEvent, EngineCoreOutput, EngineCoreOutputs, FinishReason
from vllm.v1.engine import EngineCoreEventType as Kind
from vllm.v1.engine.core_client import EngineCoreClient
from vllm.v1.metrics.stats import PrefillStats, SchedulerStats

STEP_MS_ENV = "INSTANT_STEP_MS"
"""Milliseconds between two steps of the engine; 0, the default, is at once."""

_WORDS = (4626, 5692, 17559, 4962, 4081, 1941, 6249, 28899, 2654, 29880, 5700, 14510, 8499)
_BLOCKS = 4096
_TRANSFER = {
    "bytes_transferred": 2**20,
    "transfer_duration": 1e-3,
    "post_duration": 1e-4,
    "num_descriptors": 60,
}


def install() -> None:
    """Called by vLLM when it loads its plugins."""
    EngineCoreClient.make_async_mp_client = staticmethod(InstantCore)


@dataclass
class _Running:
    """A request that is being answered; `left` tokens are to come."""

    request: Any
    left: int
    given: int = 0
    transfer: dict[str, Any] = field(default_factory=dict)


class InstantCore:
    """What `AsyncLLM` takes for its client to the engine process."""

    def __init__(self, vllm_config: Any, *_: Any, **__: Any) -> None:
        self._config = vllm_config
        self._block_size = vllm_config.cache_config.block_size or 16
        self._step_s = float(os.environ.get(STEP_MS_ENV, "0")) / 1e3
        self._connector = _connector_class(vllm_config)
        self._running: dict[str, _Running] = {}
        self._arrived = asyncio.Event()
        self.engine_ranks_managed = [0]
        self.resources = SimpleNamespace(engine_dead=False, engine_manager=None)
        vllm_config.cache_config.num_gpu_blocks = _BLOCKS

    async def get_supported_tasks_async(self) -> tuple[str, ...]:
        return ("generate",)

    async def add_request_async(self, request: Any) -> None:
        if request.abort_immediately:
            return
        params = request.sampling_params
        transfer = (params.extra_args or {}).get("kv_transfer_params") or {}
        self._running[request.request_id] = _Running(request, params.max_tokens, transfer=transfer)
        self._arrived.set()

    async def abort_requests_async(self, request_ids: list[str]) -> None:
        for request_id in request_ids:
            self._running.pop(request_id, None)

    async def reset_mm_cache_async(self) -> None:
        """There is none."""

    async def get_output_async(self) -> Any:
        """The next step: a token for every request."""
        if self._running:
            await asyncio.sleep(self._step_s)
        while not self._running:
            self._arrived.clear()
            await self._arrived.wait()
        fetched: list[str] = []
        outputs = [self._token(one, fetched) for one in list(self._running.values())]
        stats = SchedulerStats(num_running_reqs=len(self._running))
        if fetched and self._connector:
            stats.kv_connector_stats = self._transfers(fetched)
        return EngineCoreOutputs(outputs=outputs, scheduler_stats=stats)

    def shutdown(self, timeout: float | None = None) -> None:
        self.resources.engine_dead = True

    def _token(self, one: _Running, fetched: list[str]) -> Any:
        request_id = one.request.request_id
        output = EngineCoreOutput(request_id, [_WORDS[one.given % len(_WORDS)]])
        if not one.given:
            self._begin(output, one, fetched)
        one.given += 1
        one.left -= 1
        if one.left <= 0:
            output.finish_reason = FinishReason.LENGTH
            if one.transfer.get("do_remote_decode"):
                output.kv_transfer_params = self._place(one.request)
            del self._running[request_id]
        return output

    def _begin(self, output: Any, one: _Running, fetched: list[str]) -> None:
        """What an engine tells with a request's first token."""
        now = time.monotonic()
        output.events = [EngineCoreEvent.new_event(kind, now) for kind in (Kind.QUEUED, Kind.SCHEDULED)]
        tokens = len(one.request.prompt_token_ids)
        comes = tokens if one.transfer.get("do_remote_prefill") else 0
        if comes:
            fetched.append(one.request.request_id)
        output.prefill_stats = PrefillStats()
        output.prefill_stats.set(tokens, 0, max(comes - 1, 0))

    def _place(self, request: Any) -> dict[str, Any]:
        blocks = -(-len(request.prompt_token_ids) // self._block_size)
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [list(range(1, blocks + 1))],
            "remote_engine_id": self._config.kv_transfer_config.engine_id,
            "remote_request_id": request.request_id,
            "remote_host": "127.0.0.1",
            "remote_port": 5600,
            "tp_size": 1,
            "remote_num_tokens": len(request.prompt_token_ids),
        }

    def _transfers(self, request_ids: list[str]) -> dict[str, Any]:
        stats = self._connector.build_kv_connector_stats()
        for request_id in request_ids:
            first = len(stats.data["bytes_transferred"])
            for column, value in _TRANSFER.items():
                stats.data[column].append(value)
            if hasattr(stats, "attribute"):
                stats.attribute(request_id, first)
        data: dict[str, Any] = stats.data
        return data


def _connector_class(vllm_config: Any) -> Any:
    config = vllm_config.kv_transfer_config
    return KVConnectorFactory.get_connector_class(config) if config else None
