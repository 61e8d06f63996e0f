"""What goes wrong on purpose, and in each service's own words: credentials, permissions, request rates, pages."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from fakes.aws.wire import AwsError, Call

INTERNAL_KEY = "AKIAFAKEINTERNAL0000"
"""The fake's own calls to itself; nothing goes wrong for them."""

_JSON = frozenset({"eks", "servicequotas", "pricing", "tagging", "ssm", "sso", "logs"})


@dataclass
class Faults:
    """What the next calls meet; may be changed at any time.

    Attributes:
        arn: of the caller.
        callers: of others, by the id of their access key.
        credentials: "expired": a session's time is over; "invalid": nobody knows the key.
        denied: actions that no policy allows: "eks:CreateCluster", "ec2:*".
        throttled: how many more calls of an action are refused for their rate; "*" for any action.
        broken: how many more calls of an action get an error 500.
        page_size: answers in pages of so many where the overlay answers; None: as AWS does.
    """

    arn: str
    credentials: Literal["good", "expired", "invalid"] = "good"
    callers: dict[str, str] = field(default_factory=dict)
    denied: set[str] = field(default_factory=set)
    throttled: dict[str, int] = field(default_factory=dict)
    broken: dict[str, int] = field(default_factory=dict)
    page_size: int | None = None

    def check(self, call: Call) -> None:
        """Raises AwsError where the call is refused before anyone looks at it."""
        if call.access_key == INTERNAL_KEY:
            return
        if self.credentials != "good":
            raise _credentials_error(self.credentials, call.service)
        if _spend(self.broken, call.action):
            raise AwsError(
                "InternalFailure", "The request processing has failed because of an unknown error.", 500
            )
        if _spend(self.throttled, call.action):
            raise _throttled(call.service)
        if self.denies(call.action):
            raise self._denied(call)

    def arn_of(self, access_key: str) -> str:
        """Whose key it is."""
        return self.callers.get(access_key, self.arn)

    def denies(self, action: str) -> bool:
        """Whether no policy allows the action."""
        service = action.partition(":")[0]
        return action in self.denied or f"{service}:*" in self.denied

    def _denied(self, call: Call) -> AwsError:
        who = f"User: {self.arn_of(call.access_key)} is not authorized to perform: {call.action}"
        why = f"because no identity-based policy allows the {call.action} action"
        if call.service == "ec2":
            message = f"You are not authorized to perform this operation. {who} {why}"
            return AwsError("UnauthorizedOperation", message, 403)
        if call.service in _JSON:
            return AwsError("AccessDeniedException", f"{who} on resource: * {why}", 403)
        return AwsError("AccessDenied", f"{who} on resource: * {why}", 403)

    def page(
        self, items: Sequence[Any], token: str | None, limit: int | None
    ) -> tuple[list[Any], str | None]:
        """The page that a token names, and the token of the next."""
        size = min(limit or len(items) or 1, self.page_size or limit or len(items) or 1)
        start = int(token) if token else 0
        end = start + size
        return list(items[start:end]), str(end) if end < len(items) else None


def _spend(counts: dict[str, int], action: str) -> bool:
    for key in (action, "*"):
        if counts.get(key, 0) > 0:
            counts[key] -= 1
            return True
    return False


def _credentials_error(state: str, service: str) -> AwsError:
    if state == "expired":
        message = "The security token included in the request is expired"
        if service == "ec2":
            return AwsError("RequestExpired", "Request has expired.", 400)
        return AwsError("ExpiredTokenException" if service in _JSON else "ExpiredToken", message, 403)
    if service == "ec2":
        return AwsError("AuthFailure", "AWS was not able to validate the provided access credentials", 401)
    code = "UnrecognizedClientException" if service in _JSON else "InvalidClientTokenId"
    return AwsError(code, "The security token included in the request is invalid.", 403)


def _throttled(service: str) -> AwsError:
    if service == "ec2":
        return AwsError("RequestLimitExceeded", "Request limit exceeded.", 503)
    if service in _JSON:
        return AwsError("ThrottlingException", "Rate exceeded", 429)
    return AwsError("Throttling", "Rate exceeded", 400)
