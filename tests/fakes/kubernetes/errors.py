"""What the API server refuses with: an HTTP code, a reason, and the words of the real one."""

from collections.abc import Sequence
from typing import Any, Self

Json = dict[str, Any]

_REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    409: "Conflict",
    410: "Expired",
    413: "RequestEntityTooLarge",
    415: "UnsupportedMediaType",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
}


class Refusal(Exception):  # noqa: N818 - an answer, not a mishap
    """A request that is answered with a Status of `code`."""

    def __init__(
        self, code: int, message: str, reason: str | None = None, causes: Sequence[Json] = ()
    ) -> None:
        super().__init__(message)
        self.code = code
        self.status: Json = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            "reason": reason or _REASONS.get(code, "Unknown"),
            "code": code,
        }
        if causes:
            self.status["details"] = {"causes": list(causes)}

    def about(self, kind: str, group: str, name: str) -> Self:
        """With what it is about, as clients show it."""
        self.status["details"] = {
            "name": name,
            "group": group,
            "kind": kind,
            **self.status.get("details", {}),
        }
        return self


def not_found(resource: str, name: str) -> Refusal:
    refusal = Refusal(404, f'{resource} "{name}" not found')
    refusal.status["details"] = {"name": name, "kind": resource.partition(".")[0]}
    return refusal
