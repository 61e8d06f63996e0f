"""Lines that Ray's workers and vLLM's engines write, made readable; and the exception with which one died."""

import re
from collections.abc import Iterable

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_NOISE = re.compile(r"^:(job_id|actor_name|task_name):")
_ENGINE_PREFIX = re.compile(r"^\((EngineCore|Worker)[^)]*\)\s*")
_LOG_PREFIX = re.compile(r"^(ERROR|CRITICAL)\s+\d\d-\d\d \d\d:\d\d:\d\d \[[^]]*\]\s?")
_EXCEPTION = re.compile(r"^([A-Za-z_][\w.]*(Error|Exception|Exit|Interrupt|Killed)\b.*)")
_SECONDARY = ("Engine core initialization failed", "EngineDeadError", "RayTaskError", "DEPLOY_FAILED")


def clean(line: str) -> str | None:
    """A log line as a person reads it, or None for Ray's bookkeeping lines."""
    text = _ANSI.sub("", line.rstrip("\n"))
    return None if not text.strip() or _NOISE.match(text) else text


def last_exception(lines: Iterable[str]) -> str | None:
    """The last exception in lines of a log or a traceback; one that only points to another one if there is no other."""
    causes: list[str] = []
    echoes: list[str] = []
    for line in lines:
        text = clean(line) or ""
        text = _LOG_PREFIX.sub("", _ENGINE_PREFIX.sub("", text)).strip()
        found = _EXCEPTION.match(text)
        if found:
            (echoes if any(word in text for word in _SECONDARY) else causes).append(found[1])
    found_words = causes or echoes
    return found_words[-1] if found_words else None
