"""Why a cluster did not do what it was asked: no answer, no entry, a refusal or a conflict, each in words."""

from collections.abc import Mapping
from typing import Any

import httpx

from diptych.errors import ClusterError


class UnreachableError(ClusterError):
    """The API server does not answer."""


class RefusedError(ClusterError):
    """The API server refused a request.

    Args:
        status: the HTTP status.
        reason: Kubernetes' word for it, as in `AlreadyExists`.
        causes: the details, each with `reason`, `message` and `field`.
    """

    def __init__(
        self,
        message: str,
        hint: str = "",
        *,
        status: int,
        reason: str,
        causes: tuple[dict[str, Any], ...] = (),
    ) -> None:
        super().__init__(message, hint)
        self.status = status
        self.reason = reason
        self.causes = causes


def refused(method: str, path: str, response: httpx.Response) -> ClusterError:
    """An answer that is an error, as an exception."""
    try:
        told = response.json()
    except ValueError:
        told = {}
    told = told if isinstance(told, dict) else {}
    message = str(told.get("message") or response.text.strip()[:300] or f"status {response.status_code}")
    if response.status_code == 401:
        return no_entry(str(response.url.copy_with(raw_path=b"/")).rstrip("/"), message)
    hint = "Ask who runs the cluster for that right." if response.status_code == 403 else ""
    return RefusedError(
        f"Kubernetes refused {method} {path}: {message}",
        hint,
        status=response.status_code,
        reason=str(told.get("reason") or ""),
        causes=tuple((told.get("details") or {}).get("causes") or ()),
    )


def no_entry(server: str, told: str) -> ClusterError:
    """Credentials that are not accepted, as an exception."""
    return ClusterError(
        f"Kubernetes at {server} does not accept these credentials: {told}",
        "They may have expired, or belong to another cluster: sign in again, or name another context.",
    )


def unreachable(server: str, error: BaseException) -> UnreachableError:
    """No answer, as an exception."""
    if isinstance(error, FileNotFoundError):
        return UnreachableError(
            f"The credentials for {server} need a file or program that is not here: {error.filename}.",
            "The kubeconfig names it under `users`.",
        )
    return UnreachableError(
        f"The Kubernetes API at {server} does not answer: {first_line(error)}",
        "Is the network (VPN, proxy) up, and may this address reach the cluster's API?",
    )


def require_trust(error: BaseException, server: str) -> None:
    """Refuse to go on where the server's certificate is the reason: asking again would not mend that.

    Raises:
        ClusterError: it is.
    """
    cause: BaseException | None = error
    while cause is not None:
        if "CERTIFICATE_VERIFY_FAILED" in str(cause):
            raise ClusterError(
                f"The certificate of the Kubernetes API at {server} is not one that the kubeconfig trusts.",
                "The kubeconfig may be of a cluster that was replaced: fetch it again.",
            ) from error
        cause = cause.__cause__ or cause.__context__


def first_line(error: BaseException) -> str:
    """What an exception says, on one line: the last has it."""
    lines = str(error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__


def conflict(obj: Mapping[str, Any], error: RefusedError) -> ClusterError:
    """Fields that another manager set otherwise, as an exception."""
    managers = sorted({_manager(str(cause.get("message", ""))) for cause in error.causes})
    fields = ", ".join(str(cause.get("field", "")) for cause in error.causes)
    meta = obj["metadata"]
    where = f" in {meta['namespace']}" if meta.get("namespace") else ""
    return ClusterError(
        f"{obj['kind']} {meta['name']}{where} was changed by {' and '.join(managers)}: {fields}.",
        "Take that change back, or put it into the document; what others changed is not overwritten.",
    )


def _manager(message: str) -> str:
    """The manager's name in a conflict.

    >>> _manager('conflict with "kubectl-edit" using ray.io/v1')
    'kubectl-edit'
    """
    parts = message.split('"')
    return parts[1] if len(parts) > 2 else message
