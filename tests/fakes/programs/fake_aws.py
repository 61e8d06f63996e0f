"""What a stand-in asks the fake AWS for; its address is in FAKE_AWS."""

import configparser
import json
import os
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class AwsRefusedError(Exception):
    """AWS refused; the text is as eksctl's SDK writes it."""

    def __init__(self, service: str, operation: str, code: str, message: str) -> None:
        super().__init__(
            f"operation error {service}: {operation}, https response error StatusCode: 400, "
            f"RequestID: 7a62c49f-347e-4fc4-9331-6e8e0a1b2c3d, {_kind(service, code)}: {message}"
        )
        self.code = code


class FakeAwsClient:
    """AWS, for one run of a program.

    Args:
        profile: of `--profile`; else AWS_PROFILE's.
    """

    def __init__(self, profile: str = "") -> None:
        self._url = os.environ["FAKE_AWS"]
        self._key = _access_key(profile or os.environ.get("AWS_PROFILE", ""))
        self.scale = float(os.environ.get("FAKE_TIME_SCALE", "0.001"))
        self.region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION", "")

    def call(self, service: str, operation: str, parameters: Mapping[str, Any]) -> Any:
        """The answer in boto3's shape, dates as text; raises AwsRefusedError."""
        asked = {"service": service, "operation": operation, "parameters": parameters, "region": self.region}
        return self._ask("call", asked, _NAMES.get(service, service), operation)

    def start_stack(
        self, kind: str, config: Mapping[str, Any], group: Any = None, *, rollback: bool = True
    ) -> str:
        """Begin a stack; its name."""
        asked = {"kind": kind, "config": config, "group": group, "rollback": rollback}
        return str(self._ask("stack", asked, "CloudFormation", "CreateStack"))

    def make_provider(self, cluster: str, tags: Mapping[str, str]) -> None:
        """IAM's OIDC provider of the cluster, as `iam.withOIDC` has it."""
        asked = {"cluster": cluster, "tags": tags}
        self._ask("provider", asked, "IAM", "CreateOpenIDConnectProvider")

    def remove_provider(self, cluster: str) -> None:
        """And its end; nothing happens where there is none."""
        self._ask("no-provider", {"cluster": cluster}, "IAM", "DeleteOpenIDConnectProvider")

    def stack(self, name: str) -> dict[str, Any] | None:
        """As DescribeStacks gives it; None where it is not there."""
        try:
            return dict(self.call("cloudformation", "DescribeStacks", {"StackName": name})["Stacks"][0])
        except AwsRefusedError as error:
            if error.code == "ValidationError":
                return None
            raise

    def sleep(self, seconds: float) -> None:
        """So many of AWS's seconds, 50 ms at least."""
        time.sleep(max(0.05, seconds * self.scale))

    def _ask(self, path: str, asked: Mapping[str, Any], service: str, operation: str) -> Any:
        if self._key is None:
            raise AwsRefusedError(
                service,
                operation,
                "get identity",
                "get credentials: failed to refresh cached credentials, no EC2 IMDS role found",
            )
        body = json.dumps({**asked, "access_key": self._key}).encode()
        request = urllib.request.Request(
            f"{self._url}/fake/{path}", body, {"Content-Type": "application/json"}
        )
        for attempt in range(3):
            with urllib.request.urlopen(request, timeout=60) as response:
                answer = json.loads(response.read())
            if "result" in answer:
                return answer["result"]
            if answer["error"]["code"] not in {"Throttling", "ThrottlingException"} or attempt == 2:
                break
        raise AwsRefusedError(service, operation, answer["error"]["code"], answer["error"]["message"])


_NAMES = {"cloudformation": "CloudFormation", "eks": "EKS", "ec2": "EC2", "sts": "STS"}


def _kind(service: str, code: str) -> str:
    modelled = service == "EKS" or code == "AlreadyExistsException"
    return code if modelled or code == "get identity" else f"api error {code}"


def _access_key(profile: str) -> str | None:
    """The key's id, as the AWS CLI finds it; None where there is none."""
    if not profile and "AWS_ACCESS_KEY_ID" in os.environ:
        return os.environ["AWS_ACCESS_KEY_ID"]
    name = profile or "default"
    in_config = name if name == "default" else f"profile {name}"
    for variable, section in (("AWS_SHARED_CREDENTIALS_FILE", name), ("AWS_CONFIG_FILE", in_config)):
        path = Path(os.environ.get(variable, ""))
        parser = configparser.ConfigParser()
        if path.is_file() and parser.read(path) and parser.has_section(section):
            return parser.get(section, "aws_access_key_id", fallback=f"AKIAPROFILE{name.upper()}")
    return None
