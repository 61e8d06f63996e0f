"""Work that goes on beside the requests for as long as a replica lives: no single failure ends it."""

import asyncio
import logging
import traceback
from collections.abc import Awaitable, Callable

logger = logging.getLogger(__name__)

_AGAIN_AFTER_S = 1.0


def keep_going(what: str, work: Callable[[], Awaitable[None]]) -> "asyncio.Task[None]":
    """Do work in a task of its own, until it returns; where it raises it is begun again a second later.

    Args:
        what: names the work in the log. A failure is told there the first time that it comes from its place.
        work: mostly an endless loop.
    """
    return asyncio.create_task(_begun_again(what, work), name=what)


async def _begun_again(what: str, work: Callable[[], Awaitable[None]]) -> None:
    told = set()
    while True:
        try:
            await work()
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            kind = type(error), place.filename, place.lineno
            if kind not in told:
                told.add(kind)
                logger.exception("%s failed; it goes on, and this failure is not told again.", what)
        else:
            return
        await asyncio.sleep(_AGAIN_AFTER_S)
