"""Ray Serve's log of a replica, kept open.

vLLM sets logging up when it is imported, and Python closes every handler there is on that occasion. Serve's has a
buffer before its file: closed, it keeps all that comes from then on in memory, for ever, and writes none of it.
"""

import logging
from logging.handlers import MemoryHandler
from typing import Any

from diptych.serving.ray_llm import set_up_replica_log

_serve_logger = logging.getLogger("ray.serve")


def reopen_serve_log(context: Any) -> None:
    """Have Serve set its log up again where it was closed, and write what was said meanwhile.

    Args:
        context: of the replica, as Serve gives it (`serve.get_replica_context()`).
    """
    closed = [
        each for each in _serve_logger.handlers if isinstance(each, MemoryHandler) and each.target is None
    ]
    if not closed:
        return
    set_up_replica_log(context)
    for handler in closed:
        for record in handler.buffer:
            _serve_logger.handle(record)
        handler.buffer.clear()
