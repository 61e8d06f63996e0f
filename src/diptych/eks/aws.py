"""Ways into AWS: credentials and endpoints as the AWS CLI finds them, and its errors in words.

Profile, SSO, roles, `AWS_ENDPOINT_URL` and the rest come from the environment and `~/.aws`, by botocore's own rules.
The region is the document's: where money is spent is written there. Requests that AWS asks to repeat (throttling,
an answer of 5xx) are repeated by botocore, but for prices.
"""

import os
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any

from diptych.eks.refusals import AwsError, in_words, no_credentials
from diptych.eks.sso import token_ends
from diptych.errors import SetupError

if TYPE_CHECKING:
    from diptych.check.account import Identity

__all__ = ["AwsError", "Session", "action_of"]

_ATTEMPTS = 6
_ATTEMPTS_OF = {"pricing": 1}
"""Services that something stands in for: nobody waits for them where they can't be reached."""
_CONNECT_S = 5
_READ_S = 60
_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")

# Services whose actions have another prefix than boto3's name.
_PREFIXES = {
    "elb": "elasticloadbalancing",
    "elbv2": "elasticloadbalancing",
    "resourcegroupstaggingapi": "tag",
    "service-quotas": "servicequotas",
}


class Session:
    """One account in one region.

    Args:
        region: that of the document.
        profile: of AWS's configuration; None: `AWS_PROFILE`, or the default one.
    """

    def __init__(self, region: str, profile: str | None = None) -> None:
        self.region = region
        self._asked_profile = profile
        self._clients: dict[tuple[str, str], Any] = {}
        self._lock = Lock()

    @property
    def profile(self) -> str | None:
        """The profile in use; None where credentials come from elsewhere than `~/.aws`."""
        if self._asked_profile is None and os.environ.get(_KEYS[0]):
            return None  # keys of the environment come before `AWS_PROFILE`, for all of AWS's programs
        named: str | None = self._boto._session.profile
        return named

    @property
    def configured_region(self) -> str | None:
        """The region that the shell or the profile names, whatever the document says."""
        configured: str | None = os.environ.get("AWS_REGION") or self._own.get_config_variable("region")
        return configured

    @cached_property
    def _own(self) -> Any:
        """A session of botocore that nobody told of a region.

        Raises:
            SetupError: boto3 is not installed.
        """
        try:
            import botocore.session
        except ImportError as error:
            message = "AWS is reached through boto3, which is not installed"
            raise SetupError(message, "pip install 'diptych[eks]'") from error
        return botocore.session.Session(profile=self._asked_profile)

    @cached_property
    def _boto(self) -> Any:
        """boto3's session, in our region.

        Raises:
            AwsError: there is no such profile, or AWS's configuration can't be read.
            SetupError: boto3 is not installed.
        """
        _ = self._own  # or it says what to install
        import boto3

        # Only a profile that was asked for: with any name given, botocore ignores keys of the environment, which
        # eksctl and the AWS CLI put before `AWS_PROFILE`; the two would act in two accounts.
        with in_words(self._asked_profile or os.environ.get("AWS_PROFILE"), "sts:GetCallerIdentity"):
            return boto3.Session(region_name=self.region, profile_name=self._asked_profile)

    def client(self, service: str, region: str | None = None) -> Any:
        """boto3's client of a service. Its errors are not in words: prefer `call` and `pages`."""
        from botocore.config import Config

        key = (service, region or self.region)
        with self._lock:
            if key not in self._clients:
                config = Config(
                    connect_timeout=_CONNECT_S,
                    read_timeout=_READ_S,
                    retries={"mode": "standard", "total_max_attempts": _ATTEMPTS_OF.get(service, _ATTEMPTS)},
                    user_agent_extra="diptych",
                )
                with in_words(self.profile, f"{service}:*"):
                    self._clients[key] = self._boto.client(service, region_name=key[1], config=config)
            return self._clients[key]

    def call(self, service: str, operation: str, *, region: str | None = None, **arguments: Any) -> Any:
        """One request: `call("eks", "describe_cluster", name="llm")`.

        Raises:
            AwsError: in words; its `kind` is "missing" for what is not there.
        """
        client = self.client(service, region)
        with in_words(self.profile, action_of(service, operation)):
            return getattr(client, operation)(**arguments)

    def pages(
        self, service: str, operation: str, key: str, *, region: str | None = None, **arguments: Any
    ) -> Iterator[Any]:
        """What all pages of a listing hold under `key`: `pages("ec2", "describe_subnets", "Subnets")`."""
        client = self.client(service, region)
        with in_words(self.profile, action_of(service, operation)):
            if not client.can_paginate(operation):
                yield from getattr(client, operation)(**arguments).get(key) or ()
                return
            for page in client.get_paginator(operation).paginate(**arguments):
                yield from page.get(key) or ()

    def find(
        self, service: str, operation: str, *, region: str | None = None, **arguments: Any
    ) -> Any | None:
        """As `call`; None for what is not there."""
        try:
            return self.call(service, operation, region=region, **arguments)
        except AwsError as error:
            if error.kind == "missing":
                return None
            raise

    @cached_property
    def _caller(self) -> "tuple[Identity, float | None]":
        # The rules behind it would make each token of kubectl's slow.
        from diptych.check.account import Identity

        with in_words(self.profile, "sts:GetCallerIdentity"):
            credentials = self._boto.get_credentials()
        if credentials is None:
            raise no_credentials(self.profile)
        answer = self.call("sts", "get_caller_identity")
        identity = Identity(answer["Account"], answer["Arn"], self._ends(credentials), self.profile)
        return identity, _ahead(answer["ResponseMetadata"])

    def who(self) -> "Identity":
        """Who these credentials belong to, asked of AWS once.

        Raises:
            AwsError: there are none, they have expired, or AWS does not know them.
        """
        return self._caller[0]

    @property
    def clock_ahead_s(self) -> float | None:
        """How far this machine's clock is ahead of AWS's, in seconds; None where AWS did not say its time."""
        return self._caller[1]

    def presigned(self, service: str, operation: str, headers: Mapping[str, str], lasts_s: int) -> str:
        """The address of a request that is signed already, headers included, for whoever makes it within `lasts_s`.

        Raises:
            AwsError: there are no credentials to sign with.
        """
        from botocore.config import Config

        config = Config(signature_version="v4")
        with in_words(self.profile, action_of(service, operation)):
            client = self._boto.client(service, region_name=self.region, config=config)

            def sign_too(request: Any, **_: Any) -> None:
                for name, value in headers.items():
                    request.headers[name] = value

            client.meta.events.register(f"before-sign.{service}", sign_too)
            url: str = client.generate_presigned_url(operation, ExpiresIn=lasts_s, HttpMethod="GET")
            return url

    def _ends(self, credentials: Any) -> datetime | None:
        """When credentials end for good: those of a role renew themselves until what they come from has ended."""
        if credentials.method == "env":
            ends: datetime | None = getattr(credentials, "_expiry_time", None)
            return ends
        return token_ends(self._boto._session.full_config, self.profile or "default")

    def environ(self, variables: Mapping[str, str]) -> dict[str, str]:
        """Variables for a program of AWS's own kind (eksctl), so that it acts as the same caller in this region."""
        profile = {"AWS_PROFILE": self.profile, **dict.fromkeys(_KEYS, "")} if self.profile else {}
        return {**profile, **variables, "AWS_REGION": self.region, "AWS_DEFAULT_REGION": self.region}


def action_of(service: str, operation: str) -> str:
    """An operation as policies name it.

    >>> action_of("service-quotas", "get_service_quota")
    'servicequotas:GetServiceQuota'
    """
    prefix = _PREFIXES.get(service, service)
    return f"{prefix}:{''.join(part.capitalize() for part in operation.split('_'))}"


def _ahead(metadata: Mapping[str, Any]) -> float | None:
    said = metadata.get("HTTPHeaders", {}).get("date")
    if not said:
        return None
    try:
        there = parsedate_to_datetime(said)
    except ValueError:
        return None
    there = there if there.tzinfo else there.replace(tzinfo=UTC)
    return (datetime.now(UTC) - there).total_seconds()
