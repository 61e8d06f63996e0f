"""How HTTP is spoken to an endpoint: headers, proxies, timeouts."""

import httpx

from diptych.endpoint.address import Endpoint
from diptych.errors import EndpointError


def open_client(endpoint: Endpoint, key: str | None, timeout: httpx.Timeout) -> httpx.Client:
    """A client for `endpoint`, to be closed by the caller.

    On loopback the environment's proxies are left out: they would be sent the key, and could not reach it.

    Raises:
        EndpointError: httpx finds the URL's host or path malformed.
    """
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    try:
        return httpx.Client(
            base_url=endpoint.url,
            headers=headers,
            timeout=timeout,
            trust_env=not endpoint.is_loopback,
            # Loading the certificates takes longer than a short request; plain HTTP has no use for them.
            verify=endpoint.url.startswith("https:"),
        )
    except httpx.InvalidURL as error:
        raise EndpointError(
            f"The endpoint's URL is malformed: {error}.", "Write it like http://127.0.0.1:8000."
        ) from error
