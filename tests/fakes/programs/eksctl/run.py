"""One run of the eksctl stand-in: its lines, AWS, the cluster's API, and waiting for stacks."""

import base64
import os
import sys
import time
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from fakes.programs.api import Api
from fakes.programs.fake_aws import AwsRefusedError, FakeAwsClient
from fakes.programs.flags import Flags, RefusedError, seconds

_EXTRA_S = 30.0
"""On top of a shortened time-out: what the fake itself takes on a busy machine."""


class Run:
    """Raises RefusedError where credentials are no good.

    Args:
        region: the config's or `--region`; must be the fake's.
    """

    def __init__(self, flags: Flags, region: str, *, silent: bool = False) -> None:
        self.flags, self._silent = flags, silent
        self.aws = FakeAwsClient(flags.text("profile"))
        self.region = region or self.aws.region
        self.aws.region = self.region
        self.info(f"eksctl version {VERSION}")
        self.info(f"using region {self.region}")
        try:
            self.arn = self.aws.call("sts", "GetCallerIdentity", {})["Arn"]
        except AwsRefusedError as error:
            raise RefusedError(
                f"checking AWS STS access – cannot get role ARN for current session: {error}"
            ) from None

    def info(self, text: str) -> None:
        self._line("\N{INFORMATION SOURCE}", text)

    def done(self, text: str) -> None:
        self._line("✔", text)

    def warn(self, text: str) -> None:
        self._line("!", text)

    def critical(self, text: str) -> None:
        self._line("✖", text)

    def _line(self, mark: str, text: str) -> None:
        if self._silent:
            return
        print(f"{datetime.now():%Y-%m-%d %H:%M:%S} [{mark}]  {text}", flush=True)

    @property
    def deadline(self) -> float:
        """`time.monotonic()` at which `--timeout` is over."""
        return time.monotonic() + seconds(self.flags.text("timeout", "25m")) * self.aws.scale

    def wait_for_stacks(self, names: Iterable[str], good: str) -> list[str]:
        """Wait until each has ended; what went wrong, a line each. `good`: "CREATE_COMPLETE" or "DELETE_COMPLETE"."""
        waiting, wrong = list(names), []
        for name in waiting:
            self.info(f'waiting for CloudFormation stack "{name}"')
        end = self.deadline + _EXTRA_S
        while waiting:
            for name in list(waiting):
                stack = self.aws.stack(name)
                status = "DELETE_COMPLETE" if stack is None else stack["StackStatus"]
                if status == good:
                    waiting.remove(name)
                elif not status.endswith("IN_PROGRESS") or status.startswith("ROLLBACK"):
                    self._explain(name, status)
                    wrong.append("waiter state transitioned to Failure")
                    waiting.remove(name)
            if waiting and time.monotonic() > end:
                what = "StackCreateComplete" if good.startswith("CREATE") else "StackDeleteComplete"
                return [*wrong, *(f"exceeded max wait time for {what} waiter" for _ in waiting)]
            if waiting:
                self.aws.sleep(20)
        return wrong

    def _explain(self, name: str, status: str) -> None:
        self.critical(f'unexpected status "{status}" while waiting for CloudFormation stack "{name}"')
        self.info("fetching stack events in attempt to troubleshoot the root cause of the failure")
        for event in self.aws.call("cloudformation", "DescribeStackEvents", {"StackName": name})[
            "StackEvents"
        ]:
            if (
                event["ResourceStatus"].endswith("FAILED")
                and event["ResourceType"] != "AWS::CloudFormation::Stack"
            ):
                what = f"{event['ResourceType']}/{event['LogicalResourceId']}: {event['ResourceStatus']}"
                self.critical(f'{what} – "{event.get("ResourceStatusReason", "")}"')

    def cluster(self, name: str) -> Mapping[str, Any]:
        """As DescribeCluster gives it; raises RefusedError where it is not there."""
        try:
            return dict(self.aws.call("eks", "DescribeCluster", {"name": name})["cluster"])
        except AwsRefusedError as error:
            raise RefusedError(f"unable to describe cluster control plane: {error}") from None

    def api(self, cluster: Mapping[str, Any]) -> Api:
        """The cluster's Kubernetes API, by a token of the caller's."""
        authority = base64.b64decode(cluster["certificateAuthority"]["data"]).decode()
        url = f"https://sts.{self.region}.amazonaws.com/?Action=GetCallerIdentity&Version=2011-06-15&X-Amz-Expires=60"
        token = f"k8s-aws-v1.{base64.urlsafe_b64encode(url.encode()).decode().rstrip('=')}"
        return Api(cluster["endpoint"], token, authority if "BEGIN" in authority else "", "eksctl")


VERSION = "0.230.0"


def print_error(text: str) -> None:
    """As cobra ends."""
    sys.stdout.flush()
    print(f"Error: {text}", file=sys.stderr, flush=True)


def kubeconfig_path(flags: Flags) -> str:
    """Where the kubeconfig goes: a flag's path, else KUBECONFIG, else the user's own."""
    return flags.text("kubeconfig") or os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
