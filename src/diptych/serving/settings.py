"""What an operator may set about the orchestrator: the document's section of that name, as `build_app` gets it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

WORDS = ("auto", "always", "never")
PHASES = ("prefill", "decode")


@dataclass(frozen=True)
class Queue:
    """How much may wait for one phase, per decode replica.

    Args:
        requests: prompts, at most.
        tokens: tokens of prompts, at most; None: four times what the phase's KV cache holds.
    """

    requests: int
    tokens: int | None = None


@dataclass(frozen=True)
class Queues:
    """Both phases' queues: prompts that wait for prefill, and prompts that wait for decode's first token."""

    prefill: Queue = Queue(256)
    decode: Queue = Queue(512)


@dataclass(frozen=True)
class Settings:
    """The orchestrator's settings.

    Args:
        prefill: where prefill runs: `auto` (where it costs less), `always` on a prefill replica, `never` there, or
            the number of uncached tokens from which on it runs there.
        first_token: the phase whose first token a stream gets: `prefill`'s at once, or `decode`'s when the KV cache has
            come.
        local_prefill_share: most of a decode replica's time that prefill may take there in `auto`, from 0 to 1.
        recovery_backlog_s: seconds of prefill that a decode replica takes on at most when prefill or its KV transfer
            fails.
        prefill_deadline_s: seconds beyond four times what is expected after which a prefill leg has failed.
        kv_transfer_deadline_s: seconds after which a KV transfer has failed.
        canary_period_s: seconds after which a pair of replicas without a KV transfer is tried; 0: never.
    """

    prefill: str | int = "auto"
    first_token: str = "prefill"
    local_prefill_share: float = 0.25
    recovery_backlog_s: float = 10.0
    prefill_deadline_s: float = 30.0
    kv_transfer_deadline_s: float = 30.0
    canary_period_s: float = 60.0
    queues: Queues = field(default_factory=Queues)


def settings_of(given: Mapping[str, Any] | None) -> Settings:
    """Settings out of a configuration.

    Raises:
        ValueError: a name or value that there is none of.

    >>> settings_of({"prefill": 512}).prefill
    512
    """
    given = dict(given or {})
    queues = given.pop("queues", None) or {}
    _check_names("orchestrator", given, Settings)
    _check_names("orchestrator.queues", queues, Queues)
    own = {name: _queue(name, each) for name, each in queues.items()}
    settings = Settings(**given, queues=Queues(**own))
    _check(settings)
    return settings


def within_lease(settings: Settings, lease_s: float) -> Settings:
    """The settings, with a KV transfer that fails before prefill may give away what is still being fetched.

    Decode's heartbeats extend a lease, each by two thirds of it and six in a lease, so that half of it is left when a
    fetch begins. Nobody tells decode whether later ones arrive: a fetch that took more than half a lease may have read
    what another prompt wrote. `arrival` has the whole of it.

    >>> within_lease(Settings(kv_transfer_deadline_s=30), lease_s=20).kv_transfer_deadline_s
    10.0
    """
    return replace(settings, kv_transfer_deadline_s=min(settings.kv_transfer_deadline_s, lease_s / 2))


def _queue(phase: str, given: Mapping[str, Any]) -> Queue:
    _check_names(f"orchestrator.queues.{phase}", given, Queue)
    queue = Queue(**{"requests": getattr(Queues(), phase).requests, **given})
    for name, value in (("requests", queue.requests), ("tokens", queue.tokens)):
        if value is not None and not (_is_whole(value) and value >= 1):
            raise ValueError(
                f"orchestrator.queues.{phase}.{name} is {value!r}: give a whole number, 1 or more"
            )
    return queue


def _check(settings: Settings) -> None:
    prefill = settings.prefill
    if not (prefill in WORDS or (_is_whole(prefill) and int(prefill) >= 1)):
        raise ValueError(
            f"orchestrator.prefill is {prefill!r}: give auto, always, never or a number of tokens"
        )
    if settings.first_token not in PHASES:
        raise ValueError(f"orchestrator.first_token is {settings.first_token!r}: give {' or '.join(PHASES)}")
    if not (_is_number(settings.local_prefill_share) and 0 <= settings.local_prefill_share <= 1):
        raise ValueError(f"orchestrator.local_prefill_share is {settings.local_prefill_share!r}: give 0 to 1")
    for name in ("recovery_backlog_s", "canary_period_s"):
        if not (_is_number(getattr(settings, name)) and getattr(settings, name) >= 0):
            raise ValueError(f"orchestrator.{name} is {getattr(settings, name)!r}: give 0 or more seconds")
    for name in ("prefill_deadline_s", "kv_transfer_deadline_s"):
        if not (_is_number(getattr(settings, name)) and getattr(settings, name) > 0):
            raise ValueError(f"orchestrator.{name} is {getattr(settings, name)!r}: give more than 0 seconds")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_names(where: str, given: Mapping[str, Any], known: type) -> None:
    names = {each.name for each in fields(known)}
    for name in given:
        if name not in names:
            raise ValueError(f"{where} has no field {name!r}: its fields are {', '.join(sorted(names))}")
