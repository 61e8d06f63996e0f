"""Which prompts begin with what is in a prefix cache.

A prompt's tokens are hashed block by block, each with the hash of those before it, so that equal hashes mean equal
beginnings. Decode's own cache is followed exactly, through the events that vLLM's engine publishes; of a prefill
replica's cache the prompts that were sent there give a good guess.
"""

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import zmq
import zmq.asyncio
from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVEventBatch

logger = logging.getLogger(__name__)

GUESS_BLOCK = 64
"""Tokens per block where the engine's own block size does not matter."""
_MOST_BLOCKS = 1 << 16


def chain(tokens: Sequence[int], block: int) -> Iterator[int]:
    """The hashes of a prompt's whole blocks, each standing for all up to its end."""
    parent = 0
    for end in range(block, len(tokens) + 1, block):
        parent = hash((parent, *tokens[end - block : end]))
        yield parent


class Guess:
    """Beginnings of prompts that a replica has computed lately, the newest `_MOST_BLOCKS` blocks of them."""

    def __init__(self) -> None:
        self._known: OrderedDict[int, None] = OrderedDict()

    def add(self, hashes: Sequence[int]) -> None:
        """Note a prompt's blocks, hashed by `GUESS_BLOCK`."""
        for each in hashes:
            self._known[each] = None
            self._known.move_to_end(each)
        while len(self._known) > _MOST_BLOCKS:
            self._known.popitem(last=False)

    def tokens(self, hashes: Sequence[int]) -> int:
        """How many of the prompt's first tokens it has."""
        count = 0
        for each in hashes:
            if each not in self._known:
                break
            count += GUESS_BLOCK
        return count


class CacheFollower:
    """Decode's own prefix cache, followed through its engine's KV events.

    What is not known counts as uncached: blocks with more to them than tokens (a salt, an adapter, images), those
    whose beginning was not seen, and whole models that keep caches of several kinds.
    """

    def __init__(self) -> None:
        self._block = 0
        self._ours: dict[Any, int] = {}  # the engine's name of a block: our hash
        self._held: dict[int, int] = {}  # our hash: how many blocks of the engine have it
        self._gives_up = False

    def cached_tokens(self, tokens: Sequence[int]) -> int:
        """How many of the prompt's first tokens are cached."""
        if not self._held or self._gives_up:
            return 0
        count = 0
        for each in chain(tokens, self._block):
            if each not in self._held:
                break
            count += self._block
        return count

    def take(self, events: Sequence[Any]) -> None:
        """Take a batch of the engine's events in, in order."""
        for event in events:
            if getattr(event, "group_idx", None):
                self._gives_up = True
            if isinstance(event, BlockStored):
                self._stored(event)
            elif isinstance(event, BlockRemoved):
                for name in event.block_hashes:
                    self._removed(name)
            elif isinstance(event, AllBlocksCleared):
                self.forget()

    def forget(self) -> None:
        """Know nothing any more: events were lost."""
        self._ours.clear()
        self._held.clear()

    def _stored(self, event: BlockStored) -> None:
        parent = 0 if event.parent_block_hash is None else self._ours.get(event.parent_block_hash)
        if parent is None or event.lora_name or any(event.extra_keys or ()):
            return
        self._block = size = event.block_size
        for at, name in enumerate(event.block_hashes):
            parent = hash((parent, *event.token_ids[at * size : (at + 1) * size]))
            if name not in self._ours:
                self._ours[name] = parent
                self._held[parent] = self._held.get(parent, 0) + 1

    def _removed(self, name: Any) -> None:
        ours = self._ours.pop(name, None)
        if ours is not None:
            self._held[ours] -= 1
            if not self._held[ours]:
                del self._held[ours]


async def follow(endpoint: str, follower: CacheFollower) -> None:
    """Feed a follower from an engine's publisher, for ever.

    Args:
        endpoint: where the engine publishes (a ZeroMQ address).
        follower: is told; after a gap in the events' numbers it starts anew.
    """
    context = zmq.asyncio.Context()
    socket = context.socket(zmq.SUB)
    socket.connect(endpoint)
    socket.subscribe(b"")
    decoder = msgspec.msgpack.Decoder(KVEventBatch)
    last = -1
    with contextlib.closing(socket):
        while True:
            _, number, payload = await socket.recv_multipart()
            now = int.from_bytes(number, "big")
            if now != last + 1:
                follower.forget()
            last = now
            try:
                follower.take(decoder.decode(payload).events)
            except (msgspec.DecodeError, msgspec.ValidationError) as error:
                logger.warning(
                    "The engine's KV events can't be read, its prefix cache counts as empty: %s", error
                )
                follower.forget()
                return
            await asyncio.sleep(0)
