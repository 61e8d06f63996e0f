"""What was asked of the KV transfer: by the document (`build_app`'s `transport`), and by the engines' settings."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

EFA, LIBFABRIC = "efa", "LIBFABRIC"
_DEFAULT_BACKEND = "UCX"
_PROVIDERS = (EFA, "tcp")
_FIELDS: Mapping[str, tuple[type, ...]] = {
    "backend": (str,),
    "provider": (str,),
    "rdma_counters": (bool,),
    "rails": (int,),
    "bandwidth_bytes_per_s": (int, float),
    "flow_bytes_per_s": (int, float),
    "allow_fallback": (bool,),
}


@dataclass(frozen=True)
class Wanted:
    """What was asked for. `backend` is NIXL's, `provider` libfabric's; `rdma` whether RDMA counters should move."""

    backend: str | None
    provider: str | None
    rails: int | None
    rdma: bool | None

    @classmethod
    def of(cls, asked: Mapping[str, Any]) -> "Wanted":
        provider = asked.get("provider")
        backend = LIBFABRIC if provider == EFA else asked.get("backend")  # UCX can't drive EFA
        return cls(backend, provider, asked.get("rails"), asked.get("rdma_counters"))

    @property
    def words(self) -> str:
        """As a sentence names it."""
        if self.provider == EFA:
            return "EFA"
        if self.provider:
            return f"{self.backend or LIBFABRIC} over {self.provider}"
        return self.backend or "No transport"

    @property
    def is_efa(self) -> bool:
        return self.provider == EFA

    @property
    def required(self) -> tuple[tuple[str, ...], ...]:
        """Signals that have to agree; of each group one."""
        needed: list[tuple[str, ...]] = [("transfers",), ("failures",)]
        if self.backend:
            needed += [("backend",), ("plugin",)]
        if self.provider:
            needed += [("provider", "device") if self.is_efa else ("provider", "net")]
        if self.is_efa:
            needed += [("counters",)]
        return tuple(needed)


def transport_of(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """`transport` out of a configuration; what is not given is None.

    `backend` is NIXL's, `provider` libfabric's (`efa`, `tcp`), `rdma_counters` whether a device's RDMA counters move
    with KV transfers on these nodes, `rails` the EFA interfaces of a node, `bandwidth_bytes_per_s` what a replica has
    of its network, `flow_bytes_per_s` what of that a single TCP flow may take, where KV transfers go over TCP,
    `allow_fallback` whether the service may be ready on another transport.

    Raises:
        ValueError: a name or value that there is none of.

    >>> transport_of({"backend": "LIBFABRIC"})["backend"], transport_of(None)["allow_fallback"]
    ('LIBFABRIC', False)
    """
    given = dict(given or {})
    for name, value in given.items():
        if name not in _FIELDS:
            raise ValueError(f"transport has no field {name!r}: its fields are {', '.join(sorted(_FIELDS))}")
        fits = isinstance(value, _FIELDS[name]) and (bool in _FIELDS[name] or not isinstance(value, bool))
        if value is not None and not fits:
            raise ValueError(f"transport.{name} is {value!r}: give {_FIELDS[name][-1].__name__}")
    if given.get("provider") not in (None, *_PROVIDERS):
        raise ValueError(f"transport.provider is {given['provider']!r}: give efa or tcp")
    transport: dict[str, Any] = dict.fromkeys(_FIELDS) | given
    return transport | {"allow_fallback": bool(transport["allow_fallback"])}


def engine_asks(client: Any) -> dict[str, Any]:
    """What an engine's own settings ask for: `backends`, `provider` (FI_PROVIDER), `kv_buffer_device`."""
    config = client.vllm_config.kv_transfer_config
    backends = config.get_from_extra_config("backends", None) if config else None
    return {
        "backends": list(backends or [_DEFAULT_BACKEND]) if config else [],
        "provider": os.environ.get("FI_PROVIDER"),
        "kv_buffer_device": config.kv_buffer_device if config else None,
    }


def asked_of(transport: Mapping[str, Any], engine: Mapping[str, Any]) -> dict[str, Any]:
    """The two together; the document goes before the engine's settings.

    Args:
        transport: as `transport_of` returns it.
        engine: as `engine_asks` returns it. Its provider counts only where libfabric is asked: images set it anyway.
    """
    backend = transport["backend"] or next(iter(engine["backends"]), None)
    provider = transport["provider"]
    if provider is None and backend == LIBFABRIC and engine["provider"] in _PROVIDERS:
        provider = engine["provider"]
    device = engine["kv_buffer_device"]
    return {**transport, "backend": backend, "provider": provider, "device": device}
