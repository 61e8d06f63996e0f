"""Asks replicas themselves, past Serve's routing: all of a deployment, or one by its name."""

import asyncio
import contextlib
from typing import Any

from diptych.serving.ray_llm import call_every_replica


async def ask_replicas(
    handle: Any, method: str, *arguments: Any, within_s: float, only: str | None = None
) -> list[dict[str, Any]]:
    """What a method of a deployment's replicas returns; those that are gone or do not answer in time are left out.

    Args:
        handle: Ray Serve's, to the deployment.
        method: of the replicas; returns a dictionary.
        arguments: of the method.
        within_s: seconds for the calls to be made, and then for the answers.
        only: the name of the one replica to ask; None: all.
    """
    calling = asyncio.to_thread(call_every_replica, handle, method, *arguments, only=only)
    try:
        calls = await asyncio.wait_for(calling, within_s)
    except Exception:
        return []

    async def answer(call: Any) -> dict[str, Any] | None:
        with contextlib.suppress(Exception):
            told: dict[str, Any] = await asyncio.wait_for(call, within_s)
            return told
        return None

    return [told for told in await asyncio.gather(*map(answer, calls)) if told]
