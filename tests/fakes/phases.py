"""Both phases without an engine: vLLM's engine client on decode, and Ray Serve's handle to prefill.

The client takes what `AsyncLLM.generate` takes and no more, and yields vLLM's own outputs. The handle returns Ray's own
`DeploymentResponse`; only what a replica would have said is made up.
"""

import asyncio
import concurrent.futures
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from ray.serve.handle import DeploymentResponse
from vllm import SamplingParams
from vllm.outputs import RequestOutput

from diptych.serving.peers import Peers

PLACE = {"do_remote_prefill": True, "remote_engine_id": "prefill-1", "remote_block_ids": [[1, 2]]}
"""Where a KV cache lies, as a prefill engine tells."""

ANSWER = {"kv_transfer_params": PLACE, "cached_tokens": 1, "queue_ms": 0.5, "replica": "prefill-1"}
"""What `PrefillServer.prefill` returns."""


GENERATION = "5e771465a11c"


def prefill_peers(*names: str, **told: Any) -> Peers:
    """Prefill replicas that are well, as they tell of themselves."""
    peers = Peers(GENERATION)
    peers.update([{"replica": name, "generation": GENERATION, "ready": True} | told for name in names])
    return peers


def long_silent(peers: Peers) -> None:
    """Have all replicas be silent for so long that they count as lost unless they tell of themselves now."""
    for peer in peers:
        peer.heard_at -= 60.0


def prompt(*tokens: int, **fields: Any) -> dict[str, Any]:
    """A prompt as vLLM's renderer makes it."""
    return {"type": "token", "prompt_token_ids": list(tokens or (1, 2, 3)), "prompt": "its text", **fields}


@dataclass
class Asked:
    """One call of `generate`."""

    prompt: Any
    params: SamplingParams
    id: str
    more: dict[str, Any]

    @property
    def kv_transfer_params(self) -> Any:
        """Where this engine was told to fetch the KV cache."""
        return (self.params.extra_args or {}).get("kv_transfer_params")


@dataclass
class Client:
    """An engine client.

    Attributes:
        says: how many outputs each request gets; an exception among them is raised, `None` never comes.
        cached: tokens that the engine says it had already.
        freed: ids and places that decode gave up.
    """

    says: Sequence[Any] = (1, 2)
    cached: int | None = 3
    asked: list[Asked] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    freed: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    async def generate(
        self,
        prompt: Any,
        sampling_params: SamplingParams,
        request_id: str,
        *,
        prompt_text: str | None = None,
        lora_request: Any = None,
        tokenization_kwargs: dict[str, Any] | None = None,
        trace_headers: dict[str, str] | None = None,
        priority: int = 0,
        data_parallel_rank: int | None = None,
        session_id: str | None = None,
        reasoning_ended: bool | None = None,
        reasoning_parser_kwargs: dict[str, Any] | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        more = {"priority": priority, "data_parallel_rank": data_parallel_rank, "session_id": session_id}
        more |= {"trace_headers": trace_headers, "reasoning_ended": reasoning_ended}
        self.asked.append(Asked(prompt, sampling_params, request_id, more))
        try:
            for number, each in enumerate(self.says):
                if isinstance(each, BaseException):
                    raise each
                if each is None:
                    await asyncio.sleep(60)
                await asyncio.sleep(0)
                tokens, last = list(prompt["prompt_token_ids"]), number == len(self.says) - 1
                yield RequestOutput(request_id, None, tokens, None, [], last, num_cached_tokens=self.cached)
        except (asyncio.CancelledError, GeneratorExit):
            self.aborted.append(request_id)
            raise

    async def notify_kv_transfer_request_rejected(
        self, request_id: str, kv_transfer_params: dict[str, Any], *, data_parallel_rank: int | None = None
    ) -> None:
        await asyncio.sleep(0)
        self.freed.append((request_id, kv_transfer_params))


class Replica:
    """The prefill replica that has one call, as Ray's `DeploymentResponse` sees it.

    Args:
        answer: returned or raised; None: nothing is said until the call is cancelled.
        when_cancelled: returned or raised then; by default what Ray makes of its `TaskCancelledError`.
    """

    def __init__(self, answer: Any, *, when_cancelled: Any = None) -> None:
        self.was_cancelled = False
        self._answer = answer
        self._when_cancelled = when_cancelled or asyncio.CancelledError()
        self._answered = asyncio.Event()
        if answer is not None:
            self._answered.set()

    async def get_async(self) -> Any:
        await self._answered.wait()
        if isinstance(self._answer, BaseException):
            raise self._answer
        return self._answer

    def cancel(self) -> None:
        self.was_cancelled = True
        if not self._answered.is_set():
            self._answer = self._when_cancelled
            self._answered.set()


class PrefillHandle:
    """A handle to prefill replicas.

    Args:
        answers: what each call gets, the last one over and over: an answer or exception of the replica, None (it
            says nothing), a `LateAnswer`, or a `NotAssigned`.
    """

    def __init__(self, *answers: Any) -> None:
        self.asked: list[dict[str, Any]] = []
        self.replicas: list[Replica] = []
        self.streams: bool | None = None
        self.prefill = self
        self._answers = answers or (ANSWER,)

    def options(self, *, stream: bool) -> "PrefillHandle":
        self.streams = stream
        return self

    def remote(self, asked: dict[str, Any]) -> DeploymentResponse:
        if self.streams is not False:
            raise TypeError("a handle that streams returns no response that can be awaited")
        answer = self._answers[min(len(self.asked), len(self._answers) - 1)]
        self.asked.append(asked)
        assigned: concurrent.futures.Future[Any] = concurrent.futures.Future()
        if isinstance(answer, NotAssigned):
            assigned.set_exception(answer.error)
        else:
            late = isinstance(answer, LateAnswer)
            self.replicas.append(Replica(None, when_cancelled=answer.answer) if late else Replica(answer))
            assigned.set_result(self.replicas[-1])
        return DeploymentResponse(assigned, SimpleNamespace(request_id="serve-1"))


@dataclass
class NotAssigned:
    """Serve found no replica for a call."""

    error: Exception


@dataclass
class LateAnswer:
    """A replica was done just as its call was cancelled."""

    answer: Any
