"""An answer that many may want: asked for anew when it is too old, and once for all who wait."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Cached(Generic[T]):
    """What `ask` returns, asked for at most `for_s` seconds ago, unless it is being waited for."""

    def __init__(self, ask: Callable[[], Coroutine[Any, Any, T]], for_s: float) -> None:
        self._ask = ask
        self._for_s = for_s
        self._asked: asyncio.Task[T] | None = None
        self._asked_at = 0.0

    async def get(self) -> T:
        """The answer. One who stops waiting takes it from nobody else."""
        now = time.monotonic()
        if self._asked is None or (self._asked.done() and now - self._asked_at > self._for_s):
            self._asked, self._asked_at = asyncio.create_task(self._ask()), now
        return await asyncio.shield(self._asked)
