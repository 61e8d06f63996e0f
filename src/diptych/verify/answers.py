"""The proof of the answers: through prefill and decode apart the model says what it says on one engine alone.

Each canary prompt goes both ways, greedy. No way may profit from the other's KV cache: every request has a salt of its
own, which prefix caches take for another prompt; only the two turns of the conversation share one per way.
"""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from diptych.serving.comparison import compare
from diptych.serving.transport import Evidence
from diptych.verify import canary
from diptych.verify.asking import Asking, Way
from diptych.verify.proof import FAILS, HOLDS, Proof, State, worst

OTHERWISE = (
    "A KV cache that arrives in other blocks, halves or layers than it left changes the first tokens of the answer, "
    "first around the size of a block; log-probabilities move by whole numbers."
)
_DO = "docs/proof.md#answers: other weights, settings or versions on one side, or a fault of the KV transfer."
_COMPLETIONS, _CHAT = "/v1/completions", "/v1/chat/completions"
_PATHS: Mapping[str, str] = {"remote": "remote", "local": "local-whole"}
_Found = tuple[State, Evidence]


def prove(asking: Asking, block_tokens: int, most: int, *, light: bool = False) -> Proof:
    """Send the canaries both ways and compare.

    Args:
        block_tokens: of the KV cache.
        most: the longest prompt.
        light: one prompt, a block and a token long, only.
    """
    most = max(1, most - canary.NEW_TOKENS)
    lengths = [min(block_tokens + 1, most)] if light else canary.around_a_block(block_tokens, most)
    found: list[_Found] = []
    for prompt in canary.of_lengths(asking.tokens_of(canary.TEXT), lengths):
        ways: tuple[Way, Way] = ("local", "remote")
        answers = [_completed(asking, prompt, way, _salt()) for way in ways]
        found += _compared(_counted(len(prompt)), answers[0], answers[1])
    if not light:
        found += _conversation(asking, most)
    return _proof(found, f"{len(lengths)} prompts of {lengths[0]} to {lengths[-1]} tokens")


def prove_repeated(asking: Asking, block_tokens: int, most: int) -> Proof:
    """With one engine for both phases there is no second way: the same prompts again, from its prefix cache.

    Args:
        block_tokens, most: as for `prove`.
    """
    lengths = canary.around_a_block(block_tokens, max(1, most - canary.NEW_TOKENS))
    found: list[_Found] = []
    for prompt in canary.of_lengths(asking.tokens_of(canary.TEXT), lengths):
        salt = _salt()
        answers = [_completed(asking, prompt, None, salt) for _ in range(2)]
        found += _compared(f"{_counted(len(prompt))}, twice", answers[0], answers[1])
    proof = _proof(found, f"{len(lengths)} prompts of {lengths[0]} to {lengths[-1]} tokens")
    if proof.state != HOLDS:
        return proof
    says = f"{len(lengths)} prompts answered the same twice; one engine does both phases, so there is no second way."
    return Proof(proof.name, proof.state, says, proof.evidence, OTHERWISE)


def _proof(found: list[_Found], prompts: str) -> Proof:
    state = worst(each for each, _ in found)
    evidence = tuple(one for _, one in found)
    if state == HOLDS:
        conversation = ", and a conversation" if any("turn" in one.what for one in evidence) else ""
        says = f"Both ways answer the same: {prompts}{conversation}."
        return Proof("answers", HOLDS, says, evidence, OTHERWISE)
    first = next(one for each, one in found if each == FAILS)
    return Proof(
        "answers", FAILS, f"The answers differ: {first.what}: {first.value}.", evidence, OTHERWISE, _DO
    )


def _conversation(asking: Asking, most: int) -> Iterator[_Found]:
    """Two turns that begin alike: the second finds the first's KV cache, on whichever engine computes."""
    told: dict[Way, list[dict[str, Any]]] = {}
    ways: tuple[Way, Way] = ("local", "remote")
    for way in ways:
        salt = _salt()
        told[way] = [_chatted(asking, turn, way, salt, most) for turn in canary.TURNS]
    for number, (local, remote) in enumerate(zip(told["local"], told["remote"], strict=True), start=1):
        yield from _compared(f"turn {number} of a conversation", local, remote)
    prompt, cached = _prompt_tokens(told["remote"][1]), _cached_tokens(told["remote"][1])
    if cached is None:
        value, verdict = "not told", "silent"
    else:
        value = f"{cached} of {prompt} prompt tokens" + ("" if cached else "; nothing is kept between turns")
        verdict = "agrees" if cached else "silent"
    yield HOLDS, Evidence("turn 2 of a conversation, cached", value, verdict)  # type: ignore[arg-type]


def _completed(asking: Asking, prompt: Sequence[int], way: Way | None, salt: str) -> dict[str, Any]:
    body = _greedy(salt) | {"prompt": list(prompt), "logprobs": 5}
    return asking.complete(_COMPLETIONS, body, way)


def _chatted(asking: Asking, turn: str, way: Way, salt: str, most: int) -> dict[str, Any]:
    # The system prompt is about 220 tokens; a shorter context gets the turn alone.
    system = [{"role": "system", "content": canary.SYSTEM}] if most > 512 else []
    messages = [*system, {"role": "user", "content": turn}]
    body = _greedy(salt) | {"messages": messages, "logprobs": True, "top_logprobs": 5}
    return asking.complete(_CHAT, body, way)


def _greedy(salt: str) -> dict[str, Any]:
    return {
        "max_tokens": canary.NEW_TOKENS,
        "temperature": 0,
        "cache_salt": salt,
        "return_tokens_as_token_ids": True,
    }


def _salt() -> str:
    return uuid.uuid4().hex


def _compared(what: str, first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[_Found]:
    """What came of one prompt: whether each answer came its way, and whether they are the same."""
    for way, answer in (("local", first), ("remote", second)):
        record = answer.get("diptych") or {}
        path = record.get("path")
        if path not in (_PATHS[way], "aggregated"):
            value = f"path {path or 'unknown'}: {record.get('why') or 'no reason told'}"
            yield FAILS, Evidence(f"{what}, {way}", value, "contradicts")
            return
        # Of a single token a model with recurrent state computes all there is by itself.
        must_cross = path == "remote" and _prompt_tokens(answer) > 1
        if must_cross and not record.get("kv_transfer_bytes"):
            yield FAILS, Evidence(f"{what}, {way}", "no KV cache crossed", "contradicts")
            return
    difference = compare(canary.tokens_of(first), canary.tokens_of(second))
    if difference.is_right:
        yield HOLDS, Evidence(what, difference.text, "agrees")
    else:
        yield FAILS, Evidence(what, difference.text, "contradicts")


def _counted(tokens: int) -> str:
    return f"{tokens} token{'' if tokens == 1 else 's'}"


def _prompt_tokens(answer: Mapping[str, Any]) -> int:
    return int((answer.get("usage") or {}).get("prompt_tokens") or 0)


def _cached_tokens(answer: Mapping[str, Any]) -> int | None:
    """Prompt tokens that nobody had to compute, as the usage tells, else the record."""
    details = (answer.get("usage") or {}).get("prompt_tokens_details") or {}
    told = details.get("cached_tokens")
    if isinstance(told, int):
        return told
    uncached = (answer.get("diptych") or {}).get("uncached_tokens")
    return None if uncached is None else _prompt_tokens(answer) - int(uncached)
