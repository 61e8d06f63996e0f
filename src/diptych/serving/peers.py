"""The prefill replicas as one decode replica knows them: which are there, how busy, and which it had trouble with."""

import asyncio
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from diptych.serving.costs import Line
from diptych.serving.prefix import Guess

_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 30.0
_QUIET_S, _SILENT_S = 6.0, 10.0
"""Without a word for so long a replica gets no more prompts, and then loses those that wait there."""


@dataclass
class Peer:
    """One prefill replica.

    Args:
        name: its name in Serve.
        generation: of the configuration and code it runs.
        ready: whether its engine was well when it was last heard of.
        draining: whether it is about to go: it finishes what it has.
        heard_at: when it last told of itself, on `time.monotonic`'s clock.
        told_tokens: tokens that it had to compute for all decode replicas together when it last told.
        kv_cache_tokens: what its engine's KV cache holds; None: unknown.
        beginnings: of prompts that it has computed for us.
        transferred_at: when a KV transfer from it last worked, on `time.monotonic`'s clock; None: never yet.
        transfer_failed_at: when one last failed.
    """

    name: str
    generation: str
    ready: bool = True
    draining: bool = False
    heard_at: float = field(default_factory=time.monotonic)
    told_tokens: int = 0
    kv_cache_tokens: int | None = None
    beginnings: Guess = field(default_factory=Guess)
    transferred_at: float | None = None
    transfer_failed_at: float | None = None
    _others_tokens: int = 0
    _own: dict[str, tuple[int, asyncio.Timeout | None]] = field(default_factory=dict)
    _moved_at: float = 0.0
    _failures: int = 0
    _aside_until: float = 0.0

    @property
    def own_tokens(self) -> int:
        """Tokens to be computed there for our prompts."""
        return sum(tokens for tokens, _ in self._own.values())

    def queue_s(self, cost: Line, now: float | None = None) -> float:
        """The seconds that what waits there takes; 0 while it is not known."""
        now = time.monotonic() if now is None else now
        ours = sum(cost.at(tokens) or 0.0 for tokens, _ in self._own.values())
        others = (cost.at(self._others_tokens) or 0.0) if self._others_tokens else 0.0
        return max(0.0, ours - (now - self._moved_at)) + others

    def sent(self, leg_id: str, tokens: int, timeout: asyncio.Timeout | None = None) -> None:
        """Note a prompt that goes there, with the tokens it has to compute and the timeout of who waits for it."""
        if not self._own:
            self._moved_at = time.monotonic()
        self._own[leg_id] = (tokens, timeout)

    def ended(self, leg_id: str) -> None:
        """Note that a prompt waits there no more."""
        if self._own.pop(leg_id, None) is not None:
            self._moved_at = time.monotonic()

    def told(self, tokens: int) -> None:
        """Take in how much waits there in all, as it says."""
        self.told_tokens = tokens
        self._others_tokens = max(0, tokens - self.own_tokens)

    def lost(self) -> None:
        """It is gone or its engine is dead: nobody needs to wait for it any longer."""
        self.ready = False
        for _, timeout in self._own.values():
            if timeout is not None and not timeout.expired():
                timeout.reschedule(asyncio.get_running_loop().time())

    def failed(self, now: float | None = None) -> None:
        """Put it aside, longer each time; what fails while it is aside is the same trouble."""
        now = time.monotonic() if now is None else now
        if self.is_aside(now):
            return
        pause_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0**self._failures)
        self._failures += 1
        self._aside_until = now + pause_s

    def worked(self) -> None:
        """Trust it again."""
        self._failures, self._aside_until = 0, 0.0

    def can_hold(self, prompt_tokens: int) -> bool:
        """Whether a prompt, and the one token after it, fit its KV cache."""
        return self.kv_cache_tokens is None or prompt_tokens < self.kv_cache_tokens

    def is_aside(self, now: float | None = None) -> bool:
        """Whether it failed a moment ago; afterwards it is tried again."""
        return (time.monotonic() if now is None else now) < self._aside_until


class Peers:
    """All prefill replicas of this replica's generation, and of others.

    Args:
        generation: ours; prefill and decode pair only within one.
    """

    def __init__(self, generation: str) -> None:
        self.generation = generation
        self._peers: dict[str, Peer] = {}
        self.has_transferred = False

    def __iter__(self) -> Iterator[Peer]:
        return iter(list(self._peers.values()))

    def get(self, name: str | None) -> Peer | None:
        """The peer of that name."""
        return self._peers.get(name or "")

    def update(self, vitals: Sequence[Mapping[str, Any]]) -> None:
        """Take in what the prefill replicas say of themselves; those that stay silent are not ready, and then lost."""
        told = {one["replica"]: one for one in vitals}
        for name, one in told.items():
            peer = self._peers.setdefault(name, Peer(name, one.get("generation", "")))
            peer.generation = one.get("generation", "")
            peer.heard_at = time.monotonic()
            peer.draining = bool(one.get("draining"))
            peer.ready = bool(one["ready"]) and not peer.draining
            if not one["ready"]:
                peer.lost()
            peer.kv_cache_tokens = one.get("kv_cache_tokens")
            peer.told(int(one.get("waiting_tokens", 0)))
        for name, peer in list(self._peers.items()):
            silent_s = time.monotonic() - peer.heard_at
            if name in told or silent_s < _QUIET_S:  # one answer that is late means a busy machine
                continue
            peer.ready = False
            if silent_s >= _SILENT_S:
                peer.lost()
                if not peer.own_tokens:
                    del self._peers[name]

    def transferred(self, peer: Peer) -> None:
        """Note that a KV transfer worked."""
        peer.transferred_at = time.monotonic()
        peer.worked()
        self.has_transferred = True

    @property
    def ready(self) -> list[Peer]:
        """Those whose engine is well, in our generation."""
        return [peer for peer in self._peers.values() if peer.ready and peer.generation == self.generation]

    @property
    def kv_cache_tokens(self) -> int | None:
        """What the KV caches of those that are ready hold in all; None: unknown."""
        told = [peer.kv_cache_tokens for peer in self.ready if peer.kv_cache_tokens]
        return sum(told) or None

    def best(
        self, prompt_tokens: int, hashes: Sequence[int], cost: Line, without: Iterable[str] = ()
    ) -> Peer | None:
        """The one that would be done with a prompt first: what waits there, and what of the prompt it has already.

        Args:
            prompt_tokens: of the prompt.
            hashes: of its blocks (`prefix.chain` by `prefix.GUESS_BLOCK`).
            cost: prefill's, over tokens to compute.
            without: names of those that have failed this prompt.
        """
        left = set(without)
        ready = [
            peer
            for peer in self.ready
            if peer.name not in left and not peer.is_aside() and peer.can_hold(prompt_tokens)
        ]

        def done_s(peer: Peer) -> tuple[float, int]:
            uncached = max(1, prompt_tokens - peer.beginnings.tokens(hashes))
            own = cost.at(uncached)
            return peer.queue_s(cost) + (uncached if own is None else own), peer.told_tokens

        return min(ready, key=done_s, default=None)
