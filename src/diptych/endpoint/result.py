"""What a chat completion brought: its text, its tokens and what each phase took."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Usage:
    """Tokens, as the server counted them; None where it did not say.

    `cached_tokens` are the prompt tokens whose KV cache was already there.
    """

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    cached_tokens: int | None = None


@dataclass(frozen=True)
class Timing:
    """What the request took; None where it was neither measured nor told.

    Attributes:
        ttft_ms: milliseconds from sending the request to the first token, measured by this client.
        prefill_ms: milliseconds of prefill, told by the server.
        kv_transfer_ms: milliseconds of the KV transfer, told by the server.
        kv_transfer_bytes: bytes of KV cache that it moved, told by the server.
        tokens_per_s: completion tokens after the first, over the seconds from first to last token, measured
            by this client; None with fewer than two tokens.
    """

    ttft_ms: float | None = None
    prefill_ms: float | None = None
    kv_transfer_ms: float | None = None
    kv_transfer_bytes: int | None = None
    tokens_per_s: float | None = None


@dataclass(frozen=True)
class ChatResult:
    """One answer, whole.

    Attributes:
        finish_reason: why it ended, in OpenAI's words (`stop`, `length`, ...).
        model: the name under which the endpoint served it.
        path: the way it took, in the server's words: `remote` (prefill and decode apart), `local-whole`
            (decode did both), ...; None when not told.
        prefill_replica: the replica that read the prompt; None when not told.
        computed: names of the values of `timing` that the server computed and did not measure.
    """

    text: str
    model: str
    finish_reason: str | None = None
    usage: Usage = field(default_factory=Usage)
    timing: Timing = field(default_factory=Timing)
    path: str | None = None
    prefill_replica: str | None = None
    computed: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The shape `diptych chat --json` prints. Stable: every key is always there, null when unknown."""
        return {
            "text": self.text,
            "usage": {
                "prompt_tokens": self.usage.prompt_tokens,
                "completion_tokens": self.usage.completion_tokens,
                "total_tokens": self.usage.total_tokens,
                "cached_tokens": self.usage.cached_tokens,
            },
            "timing": {
                "ttft_ms": self.timing.ttft_ms,
                "prefill_ms": self.timing.prefill_ms,
                "kv_transfer_ms": self.timing.kv_transfer_ms,
                "kv_transfer_bytes": self.timing.kv_transfer_bytes,
                "tokens_per_s": self.timing.tokens_per_s,
            },
            "finish_reason": self.finish_reason,
            "model": self.model,
            "path": self.path,
            "computed": list(self.computed),
        }


@dataclass(frozen=True)
class Delta:
    """A piece of an answer while it streams. The last one of a stream, and only it, carries the `result`."""

    text: str
    result: ChatResult | None = None
