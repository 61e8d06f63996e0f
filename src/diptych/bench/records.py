"""The service's own records of the requests that it answered, and how full its KV caches got meanwhile."""

import threading
from collections.abc import Mapping
from typing import Any

import httpx

from diptych.endpoint import Endpoint, failures
from diptych.endpoint.http import open_client
from diptych.endpoint.metrics import fetch_status
from diptych.errors import EndpointError

REQUESTS = "/diptych/v1/requests"
_TIMEOUT_S = 30.0
_EVERY_S = 2.0


def fetch_records(endpoint: Endpoint, since: float) -> tuple[tuple[Mapping[str, Any], ...], bool]:
    """Records of the requests that ended after `since` (Unix seconds), of all replicas; whether some are missing.

    Args:
        endpoint: with a file that holds an admin key.

    Raises:
        EndpointError: the endpoint does not answer, refuses the key, or keeps no records.
    """
    key = endpoint.read_key()
    try:
        with open_client(endpoint, key, httpx.Timeout(_TIMEOUT_S)) as client:
            response = client.get(REQUESTS, params={"since": since})
    except httpx.TransportError as error:
        raise failures.unreachable(endpoint, error) from error
    if response.status_code == 404:
        raise EndpointError(
            f"The endpoint at {endpoint.url} keeps no records: it runs a version of Diptych without {REQUESTS}.",
            "Take it down and up again with this version.",
        )
    if response.status_code != 200:
        raise failures.refused(endpoint, response, response.content, key=key, models=None)
    told = response.json()
    return tuple(told["requests"]), bool(told["forgotten"])


class KvUse:
    """The highest share of KV cache in use per phase, looked at every two seconds while the block runs."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="kv-use", daemon=True)
        self.highest: dict[str, float] = {}

    def __enter__(self) -> "KvUse":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(timeout=2 * _EVERY_S)

    def _watch(self) -> None:
        while not self._over.wait(_EVERY_S):
            for phase, replicas in ((fetch_status(self._endpoint) or {}).get("phases") or {}).items():
                uses = [each["counters"]["kv_cache_usage"] for each in replicas if each.get("counters")]
                self.highest[phase] = max([self.highest.get(phase, 0.0), *uses])
