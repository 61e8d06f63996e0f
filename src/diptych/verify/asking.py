"""The endpoint's routes as the proofs ask them: its status, the probe, and completions on a way of our choice."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import httpx

from diptych.endpoint import Endpoint, failures
from diptych.endpoint.http import open_client
from diptych.errors import EndpointError

CONNECT_TIMEOUT_S = 5.0
REQUEST_TIMEOUT_S = 120.0
STATUS_TIMEOUT_S = 15.0
PROBE_TIMEOUT_S = 300.0
"""For each pair of replicas, one after the other; the service itself gives one up well before (`serving.probe`)."""

NCCL_TIMEOUT_S = 240.0
"""Its deadline there is 120 s; before it nodes are asked what they have."""

PROBE = "/diptych/v1/probe"
NCCL = "/diptych/v1/nccl"
STATUS = "/diptych/v1/status"
Way = Literal["remote", "local"]


class Asking:
    """Asks one endpoint, over one connection, until it is closed.

    Args:
        endpoint: with a file that holds an admin key.

    Attributes:
        sent: prompts that were sent so far, those of the probe included.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._key = endpoint.read_key()
        self.sent = 0
        self._client = open_client(
            endpoint, self._key, httpx.Timeout(REQUEST_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
        )

    def close(self) -> None:
        """End the connection."""
        self._client.close()

    def phases(self) -> dict[str, list[dict[str, Any]]]:
        """The replicas by phase, as they tell of themselves.

        Raises:
            EndpointError: it does not answer, refuses the key, or is no endpoint of Diptych's.
        """
        told = self._asked("GET", STATUS, timeout_s=STATUS_TIMEOUT_S).get("phases")
        if not isinstance(told, dict):
            raise failures.unintelligible(self.endpoint, f"{STATUS} without phases")
        return told

    def probe(self, tokens: Sequence[int], repeat: int = 1, pairs: int = 1) -> dict[str, Any]:
        """Have every pair of replicas carry prompts of our own; the answer's shape is in docs/json.md.

        Args:
            tokens: sizes of the prompts.
            repeat: how often each goes through each pair.
            pairs: how many there may be.

        Raises:
            EndpointError: as for `phases`.
        """
        body = {"tokens": list(tokens), "repeat": repeat}
        told = self._asked("POST", PROBE, body, timeout_s=PROBE_TIMEOUT_S * max(1, pairs))
        if not isinstance(told.get("pairs"), list):
            raise failures.unintelligible(self.endpoint, f"{PROBE} without pairs")
        self.sent += sum(len(pair.get("transfers") or ()) for pair in told["pairs"])
        return told

    def nccl(self) -> dict[str, Any]:
        """Have NCCL's all-reduce measured over the nodes; the answer's shape is in docs/json.md.

        Raises:
            EndpointError: as for `phases`; or another such run is under way.
        """
        told = self._asked("POST", NCCL, timeout_s=NCCL_TIMEOUT_S)
        if "skipped" not in told and not isinstance(told.get("output"), str):
            raise failures.unintelligible(self.endpoint, f"{NCCL} without output")
        return told

    def complete(self, path: str, body: Mapping[str, Any], way: Way | None) -> dict[str, Any]:
        """A whole answer, with the record of its way in `diptych`.

        Args:
            path: `/v1/completions` or `/v1/chat/completions`.
            body: without the model.
            way: where prefill is to run; None: nothing is asked.

        Raises:
            EndpointError: as for `phases`.
        """
        self.sent += 1
        headers = {"x-diptych-timing": "include"} | ({"x-diptych-prefill": way} if way else {})
        return self._asked("POST", path, {"model": self.endpoint.model, **body}, headers=headers)

    def tokens_of(self, text: str) -> list[int]:
        """A text in the model's tokens.

        Raises:
            EndpointError: as for `phases`.
        """
        told = self._asked("POST", "/tokenize", {"model": self.endpoint.model, "prompt": text})
        tokens: list[int] = told.get("tokens") or []
        return tokens

    def _asked(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> dict[str, Any]:
        timeout = httpx.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S)
        try:
            response = self._client.request(method, path, json=body, headers=headers, timeout=timeout)
        except httpx.ReadTimeout as error:
            raise failures.silent(self.endpoint, timeout_s, 0) from error
        except httpx.TransportError as error:
            raise failures.unreachable(self.endpoint, error) from error
        if response.status_code != 200:
            raise self._refused(response, path)
        try:
            told = response.json()
        except ValueError:
            told = None
        if not isinstance(told, dict):
            raise failures.unintelligible(self.endpoint, "no JSON object")
        return told

    def _refused(self, response: httpx.Response, path: str) -> EndpointError:
        url = self.endpoint.url
        if response.status_code in (404, 405) and path in (PROBE, NCCL):
            what = "be probed" if path == PROBE else "measure NCCL"
            return EndpointError(
                f"The endpoint at {url} can't {what}: it runs a version of Diptych without {path}.",
                "Take it down and up again with this version.",
            )
        if response.status_code in (404, 405) and path == STATUS:
            return EndpointError(
                f"The endpoint at {url} has no {STATUS}: it is none of Diptych's.", "Name another endpoint."
            )
        if response.status_code == 403:
            return EndpointError(
                f"The key in {self.endpoint.api_key_file} is an ordinary one, and a proof needs an admin key.",
                "`diptych up` makes one beside it, in the file admin-key.",
            )
        return failures.refused(self.endpoint, response, response.content, key=self._key)
