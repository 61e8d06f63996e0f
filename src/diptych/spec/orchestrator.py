"""How each request finds its way: where its prefill runs, what may wait, and when something counts as failed.

`diptych.serving.settings` has the same fields with the same defaults; a test compares them.
"""

import re
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field

from diptych.spec.fields import Section
from diptych.spec.problems import nearest, refusal, shown

Mode = Literal["auto", "always", "never"]
"""Ways to place prefill by a word; the other way is a number of tokens."""


def _threshold(value: object) -> object:
    words = get_args(Mode)
    if (isinstance(value, str) and value in words) or (type(value) is int and value >= 1):
        return value
    what = f"is {shown(value)}, and can be {', '.join(words)} or a whole number of tokens, 1 or more"
    if isinstance(value, str) and re.fullmatch(r"[1-9]\d*", value.strip(), re.ASCII):
        raise refusal(what, "write it without quotes")
    like = nearest(value, words) if isinstance(value, str) else None
    raise refusal(what, f"did you mean {like}?" if like else "write one of them")


_Written = Mode | Annotated[int, Field(ge=1)]
Threshold = Annotated[Mode | int, BeforeValidator(_threshold, json_schema_input_type=_Written)]


class PrefillQueueSection(Section):
    """Prompts that wait for prefill, for each decode replica; beyond, requests get 429."""

    requests: int = Field(default=256, ge=1, description="Prompts that may wait.")
    tokens: int | None = Field(
        default=None,
        ge=1,
        description="Tokens of the prompts that may wait. Default: 4 times what a prefill replica's KV cache holds.",
    )


class DecodeQueueSection(Section):
    """Prompts that wait for their first token, those at prefill included, for each decode replica.

    Beyond, requests get 429.
    """

    requests: int = Field(default=512, ge=1, description="Prompts that may wait.")
    tokens: int | None = Field(
        default=None,
        ge=1,
        description="Tokens of the prompts that may wait. Default: 4 times what the replica's KV cache holds.",
    )


class QueuesSection(Section):
    """What may wait for each phase."""

    prefill: PrefillQueueSection = Field(
        default_factory=PrefillQueueSection, description="Prompts that wait for prefill."
    )
    decode: DecodeQueueSection = Field(
        default_factory=DecodeQueueSection,
        description="Prompts that wait for their first token, those at prefill included.",
    )


class OrchestratorSection(Section):
    """Where prefill runs, what may wait, and when something counts as failed. Times are in seconds."""

    prefill: Threshold = Field(
        default="auto",
        description="Where prefill runs: `auto` (where it costs less), `always` or `never` on a prefill replica, or "
        "from how many uncached tokens on.",
    )
    first_token: Literal["prefill", "decode"] = Field(
        default="prefill",
        description="The phase whose first token a stream gets: `prefill`'s at once, or `decode`'s when the KV cache "
        "has come.",
    )
    local_prefill_share: float = Field(
        default=0.25,
        ge=0,
        le=1,
        description="Most of a decode replica's time that prefill may take there, in `auto`.",
    )
    recovery_backlog_s: float = Field(
        default=10,
        ge=0,
        description="Seconds of prefill that a decode replica takes on at most when prefill fails; beyond, 503.",
    )
    prefill_deadline_s: float = Field(
        default=30,
        gt=0,
        description="Seconds beyond what was to be expected after which a prefill has failed.",
    )
    kv_transfer_deadline_s: float = Field(
        default=30, gt=0, description="Seconds after which a KV transfer has failed."
    )
    canary_period_s: float = Field(
        default=60,
        ge=0,
        description="Seconds without a KV transfer after which a pair of replicas is tried; 0: never.",
    )
    queues: QueuesSection = Field(
        default_factory=QueuesSection, description="What may wait for each phase; beyond, requests get 429."
    )

    def written(self, *, split: bool) -> dict[str, Any]:
        """What the document sets, as plain values; where one engine does both phases, what that one reads."""
        values = self.model_dump(exclude_unset=True)
        if not split:
            values = {"queues": {"decode": values.get("queues", {}).get("decode")}}
        return _without_empty(values)


def _without_empty(values: dict[str, Any]) -> dict[str, Any]:
    found = {name: _without_empty(each) if isinstance(each, dict) else each for name, each in values.items()}
    return {name: each for name, each in found.items() if each not in (None, {})}
