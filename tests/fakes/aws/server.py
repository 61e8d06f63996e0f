"""`FakeAws`: moto's server with the overlay in front of it, in a thread on 127.0.0.1."""

import functools
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import boto3
import botocore.session
from botocore import xform_name
from botocore.config import Config
from botocore.exceptions import ClientError
from moto.moto_api._internal.models import moto_api_backend
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server

from fakes.aws import control, filters, wire
from fakes.aws.account import Iam, Prices, Quotas, Sts, role_credentials
from fakes.aws.addons import Addons
from fakes.aws.clock import Clock, StoppedError
from fakes.aws.ec2 import Ec2, ResourceGroups
from fakes.aws.eks import Eks
from fakes.aws.faults import INTERNAL_KEY, Faults
from fakes.aws.machines import Machines
from fakes.aws.nodegroups import NodeGroups
from fakes.aws.nodes import Nodes
from fakes.aws.recipes import Recipes
from fakes.aws.stacks import Stacks
from fakes.aws.tags import Tags
from fakes.kubernetes import FakeKubernetes

ACCESS_KEY = "AKIAFAKEUSER00000000"
os.environ["MOTO_EC2_LOAD_DEFAULT_AMIS"] = "false"  # a thousand images that nobody asks for: a second a test
_WHOLE = {"eks", "cloudformation", "pricing", "servicequotas", "autoscaling"}
"""Services of which nothing is moto's."""

_Answer = tuple[int, dict[str, str], bytes]


@functools.cache
def _session() -> boto3.session.Session:
    """One for all fakes, since it keeps what it has read of the services; blind to the user's own settings."""
    nothing = (None, None, None, None)
    nowhere = (None, None, os.devnull, None)
    of_botocore = botocore.session.Session(
        session_vars={"profile": nothing, "config_file": nowhere, "credentials_file": nowhere}
    )
    return boto3.session.Session(botocore_session=of_botocore)


class FakeAws:
    """AWS, up within `with`. See the package for its use; one at a time in a process, since moto's state is global."""

    def __init__(
        self,
        region: str = "us-east-2",
        kubernetes: FakeKubernetes | None = None,
        *,
        time_scale: float = 0.001,
        account: str = "123456789012",
    ) -> None:
        self.region, self.account = region, account
        self.clock = Clock(time_scale)
        self.calls: list[wire.Call] = []
        self.unknown: list[str] = []
        self.clock_skew_s = 0.0
        self._clients: dict[str, Any] = {}
        self._folder = tempfile.TemporaryDirectory()
        self.faults = Faults(f"arn:aws:iam::{account}:user/tester")
        self.nodes = Nodes(kubernetes, region)
        self.ec2 = Ec2(region, self.faults, lambda: self.client("ec2"))
        self.quotas = Quotas(self.faults)
        self.prices = Prices(region, self.faults)
        self.machines = Machines(
            self.clock, self.ec2, self.nodes, self.quotas.values, lambda: self.client("ec2")
        )
        self.eks = Eks(
            region, account, self.clock, self.faults, self.machines, self.nodes, lambda: self.client("ec2")
        )
        self.stacks = Stacks(region, account, self.clock, self.faults, self.client)
        self.tags = Tags(self.eks, self.ec2, self.faults, lambda: self.client("resourcegroupstaggingapi"))
        nodegroups = NodeGroups(self.eks)
        self.recipes = Recipes(self.eks, nodegroups, self.stacks, self.client)
        self._handlers: Mapping[str, Sequence[object]] = {
            "autoscaling": (self.machines,),
            "cloudformation": (self.stacks,),
            "ec2": (self.ec2,),
            "eks": (self.eks, nodegroups, Addons(self.eks)),
            "iam": (Iam(self.faults),),
            "pricing": (self.prices,),
            "resource-groups": (ResourceGroups(self.ec2),),
            "servicequotas": (self.quotas,),
            "sts": (Sts(self.faults),),
            "tagging": (self.tags,),
        }

    def __enter__(self) -> Self:
        moto_api_backend.reset()
        filters.mend()
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self, threaded=True, request_handler=_Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        self.clock.start(lambda: self.clock.until(self._sync, every=0))
        return self

    def __exit__(self, *_: object) -> None:
        self.clock.stop()
        self._server.shutdown()
        self._server.server_close()
        self._folder.cleanup()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def environ(self) -> dict[str, str]:
        """What to add to the environment of a process so that this is its AWS, and the stand-ins its programs."""
        binaries = [Path(__file__).parents[1] / "bin", Path(sys.executable).parent]
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": "fake",
            "AWS_REGION": self.region,
            "AWS_DEFAULT_REGION": self.region,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": str(Path(self._folder.name, "config")),
            "AWS_SHARED_CREDENTIALS_FILE": str(Path(self._folder.name, "credentials")),
            "PATH": os.pathsep.join([*map(str, binaries), os.environ.get("PATH", "")]),
            "FAKE_AWS": self.url,
            "FAKE_TIME_SCALE": str(self.clock.scale),
        }

    def client(self, service: str) -> Any:
        """A boto3 client that no fault meets: for tests that set up or look, and for the fake itself."""
        if service not in self._clients:
            self._clients[service] = _session().client(
                service,
                region_name=self.region,
                endpoint_url=self.url,
                aws_access_key_id=INTERNAL_KEY,
                aws_secret_access_key="fake",
                config=Config(retries={"total_max_attempts": 1}, ignore_configured_endpoint_urls=True),
            )
        return self._clients[service]

    def called(self, action: str) -> list[wire.Call]:
        """The calls of an action ("eks:CreateCluster") so far, without the fake's own."""
        return [call for call in self.calls if call.action == action]

    def call(self, call: wire.Call) -> Mapping[str, Any] | None:
        """The overlay's answer, in boto3's shape; None where it is moto's to answer. Raises AwsError."""
        if call.access_key != INTERNAL_KEY:
            self.calls.append(call)
        self.faults.check(call)
        if call.service == "tagging" and call.access_key == INTERNAL_KEY:
            return None
        name = xform_name(call.operation)
        handlers = self._handlers.get(call.service, ())
        operation = next((found for each in handlers if (found := getattr(each, name, None))), None)
        if operation is None:
            if call.service in _WHOLE:
                raise self._unknown(call)
            return None
        if call.region != self.region and call.service in {"eks", "cloudformation", "autoscaling"}:
            return self._elsewhere(call)
        try:
            asked = {**call.parameters, **({"AccessKeyId": call.access_key} if call.service == "sts" else {})}
            answer: Mapping[str, Any] | None = operation(asked)
        except ClientError as error:
            about = error.response["Error"]
            raise wire.AwsError(about["Code"], about["Message"]) from error
        return answer

    def _elsewhere(self, call: wire.Call) -> Mapping[str, Any]:
        """Other regions are empty, and nothing can be made there."""
        empty = {"ListClusters": "clusters", "DescribeStacks": "Stacks", "ListStacks": "StackSummaries"}
        if call.operation in empty and not call.parameters.get("StackName"):
            return {empty[call.operation]: []}
        if call.service == "eks":
            raise wire.AwsError(
                "ResourceNotFoundException", f"No cluster found for name: {call.parameters.get('name')}.", 404
            )
        raise wire.AwsError(
            "ValidationError", f"Stack with id {call.parameters.get('StackName')} does not exist"
        )

    def _unknown(self, call: wire.Call) -> wire.AwsError:
        self.unknown.append(call.action)
        return wire.AwsError("InternalFailure", f"the fake AWS does not know {call.action}", 501)

    def _sync(self) -> bool:
        self.nodes.sync()
        return False

    # WSGI

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        try:
            answer = self._answer(environ)
        except StoppedError:
            answer = (500, {}, b"")
        if answer is None:
            return self._by_moto(environ, start_response)
        status, headers, body = answer
        headers = {**headers, "Content-Length": str(len(body))}
        start_response(f"{status} {'OK' if status < 300 else 'Refused'}", list(headers.items()))
        return [body]

    def _answer(self, environ: dict[str, Any]) -> _Answer | None:
        if environ["PATH_INFO"].startswith("/fake/"):
            return control.answer(self, environ)
        if environ["PATH_INFO"] == "/federation/credentials":  # unsigned, for a profile that signs in by SSO
            return role_credentials(self.faults)
        call = wire.read(environ)
        if call is None:
            return None
        try:
            result = self.call(call)
        except wire.AwsError as error:
            return wire.refuse(call.service, error)
        return None if result is None else wire.write(call, result)

    def _by_moto(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """moto's answer; where it has none, an error that says so instead of a page of HTML."""
        call = wire.read(environ)
        held: dict[str, Any] = {}

        def hold(status: str, headers: list[tuple[str, str]], _: Any = None) -> Callable[[bytes], object]:
            held.update(status=status, headers=headers)
            return lambda _: None

        try:
            body = b"".join(self._moto(environ, hold))
        except NotImplementedError:
            body, held = b"", {"status": "501", "headers": []}
        if call and (held["status"].startswith("501") or body[:15].lower() == b"<!doctype html>"):
            status, fresh, body = wire.refuse(call.service, self._unknown(call))
            held = {
                "status": f"{status} Refused",
                "headers": [*fresh.items(), ("Content-Length", str(len(body)))],
            }
        headers = [(key, value) for key, value in held["headers"] if key.lower() != "date"]
        start_response(held["status"], headers)
        return [body]


class _Handler(MotoRequestHandler):
    """Without a line per request, and by the fake's clock."""

    def date_time_string(self, timestamp: float | None = None) -> str:
        skew_s = self.server.app.clock_skew_s  # type: ignore[attr-defined]
        return super().date_time_string((timestamp or time.time()) + skew_s)

    def log(self, type: str, message: str, *args: Any) -> None:
        return
