"""All proofs in their order, one by one: once, or again and again while somebody watches."""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from diptych.endpoint import Endpoint
from diptych.verify import answers, idle, nccl, speed, split, transport
from diptych.verify.asking import Asking
from diptych.verify.proof import HOLDS, SKIPPED, Proof, Report

_FIRST_TOKENS = 17
_LONG_TOKENS = 1000
_LIGHT_TOKENS = 257
"""Long enough that a link shows its speed, short enough to be sent all day."""
_LONG_TRANSFERS = 3
_BLOCK_TOKENS = 16
_AGGREGATED = "One engine does both phases here (topology: aggregated): there is nothing to prove of two."

Step = str | Proof


class Verification:
    """The proofs of one endpoint.

    Args:
        endpoint: with a file that holds an admin key.
        allow_fallback: whether another transport than the one asked for is to be put up with.
        network: measure NCCL over the nodes as well, and hold it against this; None: don't.

    Raises:
        EndpointError: the key file can't be read.
    """

    def __init__(
        self, endpoint: Endpoint, *, allow_fallback: bool = False, network: nccl.Link | None = None
    ) -> None:
        self._asking = Asking(endpoint)
        self._network = network
        self._allow_fallback = allow_fallback
        self._told: Mapping[str, Any] = {}
        self._first_usage: dict[tuple[Any, Any], float] = {}
        self._topology = "split"
        self._proofs: list[Proof] = []

    def __enter__(self) -> "Verification":
        return self

    def __exit__(self, *_: object) -> None:
        self._asking.close()

    def steps(self, *, light: bool = False) -> Iterator[Step]:
        """Make all proofs; yields each one's name when it begins and the proof when it is made.

        Args:
            light: fewer and shorter prompts, for a service that is watched.

        Raises:
            EndpointError: the endpoint does not answer, refuses the key, or can't be probed.
        """
        self._proofs = []
        for name, make in self._plan(light):
            yield name
            began = time.monotonic()
            proof = make().in_time(time.monotonic() - began)
            self._proofs.append(proof)
            yield proof

    def report(self) -> Report:
        """What the proofs that were made so far came to."""
        endpoint = self._asking.endpoint
        versions = self._told.get("versions") or {}
        return Report(endpoint.url, endpoint.model, self._topology, versions, tuple(self._proofs))

    def _plan(self, light: bool) -> list[tuple[str, Callable[[], Proof]]]:
        sent = self._asking.sent
        before = self._as_at_first(self._asking.phases())
        if "aggregated" in before:
            self._topology = "aggregated"
            return [
                ("split", lambda: Proof("split", SKIPPED, _AGGREGATED)),
                ("transport", lambda: Proof("transport", SKIPPED, _AGGREGATED)),
                ("speed", lambda: self._with_nccl(Proof("speed", SKIPPED, _AGGREGATED), light)),
                ("answers", lambda: answers.prove_repeated(self._asking, _BLOCK_TOKENS, _LONG_TOKENS)),
                ("idle", lambda: idle.prove(self._asking, before, self._asking.sent - sent)),
            ]
        return [
            ("split", lambda: self._split(before, light)),
            ("transport", lambda: transport.prove(self._told, allow_fallback=self._allow_fallback)),
            ("speed", lambda: self._with_nccl(speed.prove(self._told), light)),
            ("answers", lambda: self._answers(light)),
            ("idle", lambda: idle.prove(self._asking, before, self._asking.sent - sent)),
        ]

    def _split(self, phases: idle.Phases, light: bool) -> Proof:
        pairs = math.prod(len(replicas) for replicas in phases.values())
        if light and self._told:
            self._told = self._asking.probe([max(self._block_tokens + 1, _LIGHT_TOKENS)], pairs=pairs)
            return split.prove(self._told)
        # The first prompt tells the size of a block; engines that never met exchange where their memory lies.
        self._told = self._asking.probe([_LIGHT_TOKENS if light else _FIRST_TOKENS], pairs=pairs)
        if not light and any(one.get("ok") for pair in self._told["pairs"] for one in pair["transfers"]):
            self._told = self._asking.probe(self._sizes(phases), pairs=pairs)
        return split.prove(self._told)

    def _with_nccl(self, proof: Proof, light: bool) -> Proof:
        """The proof of speed, with NCCL's all-reduce beside it where that is wanted; never in a light round."""
        if self._network is None or light:
            return proof
        return nccl.joined(proof, nccl.judge(self._asking.nccl(), self._network))

    def _sizes(self, phases: idle.Phases) -> list[int]:
        """Below, at and above a block, and long ones, as far as they fit."""
        block = self._block_tokens
        held = [one.get("kv_cache_tokens") for replicas in phases.values() for one in replicas]
        most = min([self._most_tokens, *(tokens - 1 for tokens in held if tokens)])
        long = min(most, max(_LONG_TOKENS, 4 * block))
        return [
            *(min(size, most) for size in (max(1, block - 1), block, block + 1)),
            *[long] * _LONG_TRANSFERS,
        ]

    def _answers(self, light: bool) -> Proof:
        return answers.prove(self._asking, self._block_tokens, self._most_tokens, light=light)

    @property
    def _block_tokens(self) -> int:
        return int(self._told.get("block_tokens") or _BLOCK_TOKENS)

    @property
    def _most_tokens(self) -> int:
        return int(self._told.get("max_model_len") or _LONG_TOKENS) - 2

    def _as_at_first(self, phases: dict[str, list[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
        """With each engine's KV cache in use as it was when first seen: a slow leak must show while it is watched."""
        for replicas in phases.values():
            for one in replicas:
                counters = one.get("counters") or {}
                key = one.get("replica"), one.get("engine_pid")
                first = self._first_usage.setdefault(key, float(counters.get("kv_cache_usage") or 0.0))
                one["counters"] = counters | {
                    "kv_cache_usage": min(first, counters.get("kv_cache_usage") or 0.0)
                }
        return phases


def changes(before: Report | None, now: Report) -> list[Proof]:
    """The proofs whose state is another than in the round before; in the first round those that don't hold."""
    known = {proof.name: proof.state for proof in before.proofs} if before else {}
    return [proof for proof in now.proofs if proof.state != known.get(proof.name, HOLDS)]
