"""The first requests of a service: ready only after a real KV transfer carried a prompt."""

import random
import time
from pathlib import Path
from typing import Any

import httpx

from diptych.errors import StartError
from diptych.local.events import EventLog
from diptych.local.plan import Plan

_WORDS = ("river", "stone", "lamp", "seven", "north", "paper", "cloud", "harbour", "green", "violin")
_REQUEST_TIMEOUT_S = 180.0
_PREFILL_SEEN_WITHIN_S = 30.0


def prove(plan: Plan, events: EventLog) -> None:
    """Send the first requests and look at what they did.

    Raises:
        StartError: the prompt's KV cache did not cross from prefill to decode; the message says what happened instead.
    """
    key = Path(plan.admin_key_file).read_text().split()[0]
    headers = {"authorization": f"Bearer {key}", "x-diptych-timing": "include", "x-diptych-prefill": "remote"}
    with httpx.Client(
        base_url=plan.url, headers=headers, timeout=_REQUEST_TIMEOUT_S, trust_env=False
    ) as client:
        if plan.topology == "aggregated":
            _stage(events, "first answer", lambda: _ask(client, plan.model, words=8))
            return
        _stage(events, "handshake", lambda: _first_handshake(client, plan))
        _stage(events, "first KV transfer", lambda: _transferred(client, plan))


def _stage(events: EventLog, stage: str, work: Any) -> None:
    events.append("start", stage)
    text = work()
    events.append("done", stage, text if isinstance(text, str) else "")


def _first_handshake(client: httpx.Client, plan: Plan) -> str:
    """The first prompt that goes through both phases: the engines meet and exchange where their memory lies."""
    deadline = time.monotonic() + _PREFILL_SEEN_WITHIN_S
    while not any(replica["ready"] for replica in _phases(client).get("prefill", [])):
        if time.monotonic() > deadline:
            raise StartError(
                "The decode engine does not see a prefill replica.", "`diptych logs decode` shows why."
            )
        time.sleep(0.2)
    _remote(_ask(client, plan.model, words=4))
    return "prefill and decode met"


def _transferred(client: httpx.Client, plan: Plan) -> str:
    before = _counters_of_decode(client)
    answer = _ask(client, plan.model, words=160)
    took = _remote(answer)
    prompt_tokens, replica = answer["usage"]["prompt_tokens"], took["decode_replica"]
    after = _counters_of_decode(client)
    received = (
        after[replica]["external_kv_tokens"] - before.get(replica, after[replica])["external_kv_tokens"]
    )
    if not took["kv_transfer_bytes"] or received < prompt_tokens:
        raise StartError(
            f"The prompt's KV cache did not cross: decode received {received:.0f} of {prompt_tokens} tokens "
            f"in {took['kv_transfer_bytes'] or 0} bytes.",
            "`diptych logs decode` shows the KV transfer's messages.",
        )
    size = took["kv_transfer_bytes"] / 2**20
    return f"{prompt_tokens} tokens, {size:.1f} MiB in {took['kv_transfer_ms']:.1f} ms"


def _ask(client: httpx.Client, model: str, words: int) -> dict[str, Any]:
    """One prompt that no cache knows."""
    prompt = " ".join(random.choice(_WORDS) for _ in range(words))
    body = {"model": model, "prompt": prompt, "max_tokens": 2, "temperature": 0}
    try:
        response = client.post("/v1/completions", json=body)
    except httpx.HTTPError as error:
        raise StartError(f"The endpoint did not answer the first request: {error!r}.") from None
    if response.status_code != 200:
        raise StartError(f"The first request was refused with {response.status_code}: {response.text[:500]}")
    answer: dict[str, Any] = response.json()
    return answer


def _remote(answer: dict[str, Any]) -> dict[str, Any]:
    took: dict[str, Any] = answer["diptych"]
    if took["path"] != "remote":
        raise StartError(
            f"The first prompt did not go through prefill ({took['path']}: {took['why']}).",
            "`diptych logs prefill` shows why.",
        )
    return took


def _phases(client: httpx.Client) -> dict[str, list[dict[str, Any]]]:
    response = client.get("/diptych/v1/status")
    phases: dict[str, list[dict[str, Any]]] = response.json()["phases"] if response.status_code == 200 else {}
    return phases


def _counters_of_decode(client: httpx.Client) -> dict[str, dict[str, float]]:
    """The decode replicas' counters by the replica's name."""
    return {one["replica"]: one["counters"] for one in _phases(client).get("decode", [])}
