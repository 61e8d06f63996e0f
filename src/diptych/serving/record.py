"""What one request took: its legs, and the words and numbers in which a client is told of them."""

import asyncio
import time
import uuid
from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from diptych.serving.transfers import Transfer

LOWEST_PRIORITY = 10**9
"""Beyond what any key or header can say: what has it comes after every client."""
PATHS = ("aggregated", "remote", "local-short", "local-busy", "local-no-prefill", "local-whole", "recovered")
"""Ways through the service, the most telling last: a request of several prompts is said to have gone that way."""


@dataclass(frozen=True)
class Refusal:
    """Why the service itself would not take a request, as the client is told.

    Args:
        status: HTTP status: 400 (can never fit), 429 (a queue is full), 503 (no way to serve it now), 504 (its
            time is up).
        message: what is wrong and what to do.
        kind: OpenAI's error type.
        retry_after_s: when to come back; None where that is no use.
    """

    status: int
    message: str
    kind: str
    retry_after_s: int | None = None


class Refused(Exception):  # noqa: N818 - a refusal is no mishap
    """A request that is not taken, and why."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


@dataclass
class Leg:
    """One prompt's way. Times in milliseconds as seen on the decode replica.

    Args:
        path: one of `PATHS`.
        why: the reason for a path other than `remote`.
        id: names the prompt's transfers in both engines.
        prefill_ms: from the (last) call to prefill to its answer.
        queue_ms: of that, waiting in the prefill engine's queue, as that engine tells it.
        compute_ms: of that, computing.
        prefill_replica: which replica of prefill computed it.
        kept_since: when its answer came, on `time.monotonic`'s clock: it keeps the KV cache for a lease from then on.
        transfer: its KV transfer.
        prompt_tokens: how many tokens its prompt has.
        uncached_here: how many of them decode would have had to compute when it was placed.
        cached_tokens: how many of them nobody had to compute.
        drawn: how prefill is to draw the first token; None: decode draws it.
        first_token: the one that prefill drew.
        answered: whether the client has it.
        begun: whether decode has put out a first token.
        attempts: calls to prefill replicas that were made for it.
        kv_transfer_failed: whether a KV transfer for it failed or took too long.
        here_s: seconds of prefill that decode is expected to need for it.
        handed_at: when decode's engine got it, on `time.monotonic`'s clock; None before.
        decode_queue_ms: from when decode's engine had it to its being scheduled, the wait for its KV transfer
            included; None where the engine does not tell.
        decode_compute_ms: from there to the first token: one step, or the whole prompt where decode computes it.
        first_token_at: when the first token was there, prefill's or decode's, on the same clock.
        decode_began_at: when decode's first token was there.
        output_tokens: tokens that decode put out.
        finish_reason: why it put out no more, as the engine says; None while it goes on or when it was cut short.
    """

    path: str = "aggregated"
    why: str | None = None
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    prefill_ms: float | None = None
    queue_ms: float | None = None
    compute_ms: float | None = None
    prefill_replica: str | None = None
    kept_since: float | None = None
    transfer: Transfer | None = None
    prompt_tokens: int | None = None
    uncached_here: int | None = None
    cached_tokens: int | None = None
    drawn: dict[str, Any] | None = None
    first_token: int | None = None
    answered: bool = False
    begun: bool = False
    attempts: int = 0
    kv_transfer_failed: bool = False
    here_s: float = 0.0
    handed_at: float | None = None
    decode_queue_ms: float | None = None
    decode_compute_ms: float | None = None
    first_token_at: float | None = None
    decode_began_at: float | None = None
    output_tokens: int = 0
    finish_reason: str | None = None

    def begin_anew(self) -> None:
        """Take another id, and forget what was seen of a way that failed."""
        self.id = uuid.uuid4().hex
        self.begun, self.kv_transfer_failed = False, False
        self.transfer = self.cached_tokens = self.kept_since = None


@dataclass
class Record:
    """One request of a client: the legs of its prompts (mostly one), and who answered it.

    Args:
        id: names the request in the log; a trace's spans carry it.
        route: the path of its URL.
        priority: of its API key, or lower (a greater number); an engine serves small numbers first.
        prefill_wish: what the client asks of the placement (`placement.Placement.decide`); None: nothing.
        only_peer: the one prefill replica that may compute it; None: any.
        began_at: when it came, on `time.monotonic`'s clock.
        refusal: why the service would not take it.
        workers: tasks that wait for an engine on its behalf.
    """

    decode_replica: str | None = None
    legs: list[Leg] = field(default_factory=list)
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    route: str = ""
    priority: int = 0
    prefill_wish: str | None = None
    only_peer: str | None = None
    began_at: float = field(default_factory=time.monotonic)
    refusal: Refusal | None = None
    workers: set["asyncio.Task[Any]"] = field(default_factory=set)

    def abandon(self) -> None:
        """End the work for it. vLLM's handlers go on in a task of their own when who called them is cancelled."""
        for task in self.workers - {asyncio.current_task()}:
            task.cancel()

    @property
    def path(self) -> str | None:
        """The most telling of the legs' paths; None while there is none (a request that needs no engine)."""
        return max((leg.path for leg in self.legs), key=PATHS.index, default=None)

    @property
    def begun(self) -> bool:
        """Whether an engine has begun to answer."""
        return any(leg.begun or leg.answered for leg in self.legs)

    @property
    def first_token_from(self) -> str | None:
        """The phase whose token a client got first; None while there is none."""
        first = next((leg for leg in self.legs if leg.first_token_at is not None), None)
        return None if first is None else "prefill" if first.answered else "decode"

    def to_json(self) -> dict[str, Any]:
        """The `diptych` object of a response. Everything in it is measured, so `computed` is empty."""
        moved = _together([leg.transfer for leg in self.legs if leg.transfer])
        return {
            "path": self.path,
            "why": next((leg.why for leg in self.legs if leg.path == self.path), None),
            "prefill_ms": most(leg.prefill_ms for leg in self.legs),
            "prefill_queue_ms": most(leg.queue_ms for leg in self.legs),
            "prefill_replica": next((leg.prefill_replica for leg in self.legs if leg.prefill_replica), None),
            "decode_replica": self.decode_replica,
            "kv_transfer_ms": round(moved.seconds * 1e3, 3) if moved else None,
            "kv_transfer_post_ms": round(moved.post_seconds * 1e3, 3) if moved else None,
            "kv_transfer_bytes": moved.bytes if moved else None,
            "kv_transfer_descriptors": moved.descriptors if moved else None,
            "uncached_tokens": _uncached(self.legs),
            "first_token_from": self.first_token_from,
            "computed": [],
        }

    def headers(self) -> dict[str, str]:
        """The same, in short, as response headers."""
        told = self.to_json()
        values = {
            "x-diptych-path": told["path"],
            "x-diptych-why": told["why"],
            "x-diptych-prefill-replica": told["prefill_replica"],
            "x-diptych-prefill-ms": told["prefill_ms"],
            "x-diptych-prefill-queue-ms": told["prefill_queue_ms"],
            "x-diptych-kv-transfer-ms": told["kv_transfer_ms"],
            "x-diptych-kv-transfer-bytes": told["kv_transfer_bytes"],
            "x-diptych-uncached-tokens": told["uncached_tokens"],
        }
        return {name: str(value) for name, value in values.items() if value is not None}


current: ContextVar[Record | None] = ContextVar("diptych_record", default=None)
"""The record of the client's request that is being answered, for the engine's calls made on its behalf."""


def most(values: Iterable[float | None]) -> float | None:
    """The greatest of those that are known; None: none is."""
    return max((value for value in values if value is not None), default=None)


def _uncached(legs: list[Leg]) -> int | None:
    known = [leg for leg in legs if leg.prompt_tokens is not None and leg.cached_tokens is not None]
    return sum((leg.prompt_tokens or 0) - (leg.cached_tokens or 0) for leg in known) if known else None


def _together(transfers: list[Transfer]) -> Transfer | None:
    if not transfers:
        return None
    return Transfer(
        sum(each.bytes for each in transfers),
        max(each.seconds for each in transfers),
        max(each.post_seconds for each in transfers),
        sum(each.descriptors for each in transfers),
    )
