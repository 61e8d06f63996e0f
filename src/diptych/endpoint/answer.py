"""An answer while it arrives: chunks of `chat.completion.chunk` in, a `ChatResult` out.

Beside OpenAI's fields, Diptych's endpoint sends one chunk with a top-level `diptych` object when asked by the
header `x-diptych-timing: include`. Fields that another server leaves out, or fills with something else, count
as not told.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from diptych.endpoint.result import ChatResult, Timing, Usage

# Models that think first stream it under these names: generated tokens, though no part of the answer's text.
_THINKING = ("reasoning_content", "reasoning")


@dataclass
class Answer:
    """What has arrived so far of one answer.

    Attributes:
        model: the model asked for, until a chunk names the one that answers.
        sent_s: when the request was sent, in seconds of the clock that `add` is given.
        tokens: chunks that carried generated text. A chunk holds one token or more: at least so many came.
    """

    model: str
    sent_s: float
    tokens: int = 0
    finish_reason: str | None = None
    first_s: float | None = None
    last_s: float | None = None
    _texts: list[str] = field(default_factory=list)
    _usage: Usage = field(default_factory=Usage)
    _told: Mapping[str, Any] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether the model has said its last word; only numbers may still follow."""
        return self.finish_reason is not None

    def add(self, chunk: Mapping[str, Any], now_s: float) -> str:
        """Take a chunk in; returns the text it adds to the answer, often none."""
        self.model = _text(chunk.get("model")) or self.model
        if usage := _mapping(chunk.get("usage")):
            self._usage = _usage(usage)
        self._told = _mapping(chunk.get("diptych")) or self._told
        choices = chunk.get("choices")
        choice = _mapping(choices[0]) if isinstance(choices, list) and choices else {}
        self.finish_reason = _text(choice.get("finish_reason")) or self.finish_reason
        return self._add_delta(_mapping(choice.get("delta")), now_s)

    def _add_delta(self, delta: Mapping[str, Any], now_s: float) -> str:
        text = _encodable(_text(delta.get("content")))
        if text or any(_text(delta.get(name)) for name in _THINKING):
            self.tokens += 1
            self.first_s = now_s if self.first_s is None else self.first_s
            self.last_s = now_s
        self._texts.append(text)
        return text

    def result(self) -> ChatResult:
        """The answer as it stands."""
        computed = self._told.get("computed")
        return ChatResult(
            text="".join(self._texts),
            model=self.model,
            finish_reason=self.finish_reason,
            usage=self._usage,
            timing=self._timing(),
            path=_text(self._told.get("path")) or None,
            prefill_replica=_text(self._told.get("prefill_replica")) or None,
            computed=tuple(filter(None, map(_text, computed))) if isinstance(computed, list) else (),
        )

    def _timing(self) -> Timing:
        return Timing(
            ttft_ms=None if self.first_s is None else round((self.first_s - self.sent_s) * 1000, 3),
            prefill_ms=_number(self._told.get("prefill_ms")),
            kv_transfer_ms=_number(self._told.get("kv_transfer_ms")),
            kv_transfer_bytes=_count(self._told.get("kv_transfer_bytes")),
            tokens_per_s=self._tokens_per_s(),
        )

    def _tokens_per_s(self) -> float | None:
        count = self._usage.completion_tokens
        if count is None or count < 2 or self.first_s is None or self.last_s is None:
            return None
        took_s = self.last_s - self.first_s
        # All tokens in one chunk: there is no time between them to measure.
        return round((count - 1) / took_s, 3) if took_s > 0 else None


def _usage(told: Mapping[str, Any]) -> Usage:
    details = _mapping(told.get("prompt_tokens_details"))
    return Usage(
        prompt_tokens=_count(told.get("prompt_tokens")),
        completion_tokens=_count(told.get("completion_tokens")),
        total_tokens=_count(told.get("total_tokens")),
        cached_tokens=_count(details.get("cached_tokens")),
    )


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _encodable(text: str) -> str:
    """`text` with U+FFFD for lone surrogates, which JSON can escape and UTF-8 cannot hold."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
