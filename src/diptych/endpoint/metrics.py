"""What a running endpoint says about itself. Nothing here raises: no answer is an answer too."""

from typing import Any

import httpx

from diptych.endpoint.address import Endpoint
from diptych.endpoint.http import open_client
from diptych.errors import EndpointError


def fetch_status(endpoint: Endpoint, timeout_s: float = 3.0) -> dict[str, Any] | None:
    """The object at `/diptych/v1/status`; None when the endpoint does not answer, or not with one.

    Args:
        timeout_s: seconds to wait for the connection, and for each further byte.
    """
    return _fetch(endpoint, "/diptych/v1/status", timeout_s)


def fetch_models(endpoint: Endpoint, timeout_s: float = 3.0) -> list[str] | None:
    """The names of the models that the endpoint serves (`/v1/models`); None when it does not tell.

    Args:
        timeout_s: seconds to wait for the connection, and for each further byte.
    """
    listing = _fetch(endpoint, "/v1/models", timeout_s)
    data = None if listing is None else listing.get("data")
    if not isinstance(data, list):
        return None
    return [model["id"] for model in data if isinstance(model, dict) and isinstance(model.get("id"), str)]


def _fetch(endpoint: Endpoint, path: str, timeout_s: float) -> dict[str, Any] | None:
    try:
        with open_client(endpoint, endpoint.read_key(), httpx.Timeout(timeout_s)) as client:
            response = client.get(path)
        body = response.json() if response.status_code == 200 else None
    except (EndpointError, httpx.HTTPError, ValueError):
        return None
    return body if isinstance(body, dict) else None
