"""What AWS refuses, in words: botocore's errors as one of ours, each with what to do."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from diptych.errors import AccountError

Kind = Literal["credentials", "denied", "missing", "throttled", "unreachable", "clock", "other"]

_DENIED = re.compile(r"AccessDenied|Unauthorized|AuthorizationError|NotAuthorized|Forbidden")
_CREDENTIALS = re.compile(
    r"ExpiredToken|RequestExpired|InvalidClientTokenId|UnrecognizedClient|AuthFailure|InvalidAccessKeyId"
    r"|MissingAuthenticationToken|InvalidToken|OptInRequired"
)
_THROTTLED = re.compile(r"Throttl|RequestLimitExceeded|TooManyRequests|SlowDown")
_CLOCK = re.compile(r"RequestTimeTooSkewed|RequestInTheFuture")
_CLOCK_WORDS = re.compile(r"Signature expired|Signature not yet current", re.IGNORECASE)
_MISSING = re.compile(r"NotFound|NoSuch|NonExist|DoesNotExist|Unknown$")
_MISSING_STACK = re.compile(r"Stack .*does not exist")
_PERFORM = re.compile(r"not authorized to perform:? ([a-zA-Z0-9-]+:\w+)")
_ENCODED = re.compile(r"\s*Encoded authorization failure message: \S+")


class AwsError(AccountError):
    """What AWS refused.

    Args:
        kind: what callers tell apart: "missing" is not there, "denied" may not be seen.
        code: AWS's ("ResourceNotFoundException"); "" where no answer came.
        action: as policies name it: "eks:DescribeCluster".
    """

    def __init__(self, message: str, hint: str, kind: Kind, code: str = "", action: str = "") -> None:
        super().__init__(message, hint)
        self.kind = kind
        self.code = code
        self.action = action


@contextmanager
def in_words(profile: str | None, action: str) -> Iterator[None]:
    """Within it, errors of botocore become an `AwsError`.

    Args:
        profile: in use, for what to do.
        action: that is asked for.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except ClientError as error:
        raise _answered(error, profile, action) from error
    except BotoCoreError as error:
        raise _unanswered(error, profile, action) from error


def no_credentials(profile: str | None) -> AwsError:
    """There are none at all."""
    where = f"the profile {profile} has none" if profile else "neither the environment nor ~/.aws has any"
    hint = f"run {_sign_in(profile, 'aws configure sso')}, or set AWS_PROFILE to a profile that has some"
    return AwsError(f"AWS needs credentials, and {where}", hint, "credentials")


def _answered(error: Any, profile: str | None, action: str) -> AwsError:
    """An answer of AWS's that is an error: `error` is botocore's ClientError."""
    said = error.response.get("Error", {})
    code = str(said.get("Code", ""))
    text = _ENCODED.sub("", str(said.get("Message", ""))).strip().rstrip(".")
    kind = _kind(code, text)
    message, hint = f"AWS refuses {action}: {text or code} ({code})", ""
    if kind == "denied":
        named = _PERFORM.search(text)
        action = named[1] if named else action
        message = f"AWS does not let you {action}: {text or code}"
        hint = f"ask whoever gives out permissions in the account for {action}; `diptych check` lists all that it needs"
    elif kind == "credentials":
        message, hint = _credentials(code, text, profile)
    elif kind == "clock":
        message = f"AWS refuses requests from this machine's clock: {text or code}"
        hint = "set the clock by the network: timedatectl set-ntp true"
    elif kind == "throttled":
        message = f"AWS holds back requests of this account, again and again: {action} ({code})"
        hint = "wait a minute and run it again: it goes on where it stopped"
    return AwsError(message, hint, kind, code, action)


def _kind(code: str, text: str) -> Kind:
    if _CLOCK.search(code) or _CLOCK_WORDS.search(text):
        return "clock"
    tables: tuple[tuple[re.Pattern[str], Kind], ...] = (
        (_DENIED, "denied"),
        (_CREDENTIALS, "credentials"),
        (_THROTTLED, "throttled"),
        (_MISSING, "missing"),
    )
    for pattern, kind in tables:
        if pattern.search(code):
            return kind
    return "missing" if code == "ValidationError" and _MISSING_STACK.search(text) else "other"


def _credentials(code: str, text: str, profile: str | None) -> tuple[str, str]:
    again = _sign_in(profile, "aws sso login")
    if "Expired" in code:
        return "the AWS credentials have expired", f"run {again}, or renew them as you got them"
    if code in ("OptInRequired", "AuthFailure"):
        do = "enable the region in the account (AWS Account Management), or check the credentials"
        return f"AWS does not let this account into the region: {text}", do
    do = (
        f"check AWS_PROFILE and AWS_ACCESS_KEY_ID, or run {again}; a region that is not enabled says the same"
    )
    return f"AWS does not know these credentials: {text or code}", do


def _unanswered(error: Any, profile: str | None, action: str) -> AwsError:
    """No answer came: credentials that can't be had, an address that can't be reached, a broken configuration."""
    from botocore import exceptions as of

    text = " ".join(str(error).split()).rstrip(".")
    if isinstance(error, of.NoCredentialsError):
        return no_credentials(profile)
    if isinstance(error, (of.UnauthorizedSSOTokenError, of.SSOTokenLoadError, of.TokenRetrievalError)):
        hint = f"run {_sign_in(profile, 'aws sso login')}"
        return AwsError("the AWS sign-in (SSO) has expired", hint, "credentials")
    if isinstance(error, of.ProfileNotFound):
        return AwsError(f"AWS's configuration has no such profile: {text}", _profiles(), "credentials")
    if isinstance(error, (of.HTTPClientError, of.EndpointConnectionError)):
        hint = (
            "check the network, the proxy (HTTPS_PROXY) and the region's name; AWS_ENDPOINT_URL if you set it"
        )
        return AwsError(f"AWS can't be reached for {action}: {text}", hint, "unreachable", action=action)
    credentials = (of.PartialCredentialsError, of.CredentialRetrievalError, of.InvalidConfigError)
    if isinstance(error, (*credentials, of.SSOError, of.ConfigParseError)):
        hint = f"correct ~/.aws/config, or run {_sign_in(profile, 'aws configure')}"
        return AwsError(f"the AWS credentials can't be had: {text}", hint, "credentials")
    return AwsError(f"{action} can't be asked: {text}", "", "other", action=action)


def _sign_in(profile: str | None, command: str) -> str:
    return f"{command} --profile {profile}" if profile else command


def _profiles() -> str:
    import botocore.session

    known = botocore.session.Session().available_profiles
    return f"set AWS_PROFILE to one of: {', '.join(known)}" if known else "run aws configure sso"
