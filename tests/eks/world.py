"""An AWS account with a Kubernetes cluster to be, both fake, and jobs in it."""

import _thread
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from diptych.eks.aws import Session
from diptych.eks.job import EksJob, Place
from diptych.kube.connection import Cluster, Target, connect
from diptych.progress import Event, View
from diptych.render.inputs import Facts
from eks.documents import REGION, document
from fakes.aws import FakeAws
from fakes.kubernetes import FakeKubernetes

ACCOUNT = "123456789012"
OWN = {
    "diptych.dev/account": ACCOUNT,
    "diptych.dev/region": REGION,
    "diptych.dev/cluster": "llm",
    "diptych.dev/document/llm": "inference",
}


@dataclass
class Heard(View):
    """A view that writes down what it is told; Ctrl-C comes when it is told of the event that `interrupt_at` names.

    Args:
        interrupt_at: kind, step and how the text begins.
    """

    interrupt_at: tuple[str, str, str] | None = None
    events: list[Event] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def stage(self, event: Event) -> None:
        self.events.append(event)
        if self.interrupt_at is None:
            return
        kind, step, text = self.interrupt_at
        if (event.kind, event.stage) == (kind, step) and event.text.startswith(text):
            self.interrupt_at = None
            if threading.current_thread() is threading.main_thread():
                raise KeyboardInterrupt
            _thread.interrupt_main()  # told by the thread that follows a program

    def say(self, text: str) -> None:
        self.said.append(text)

    @property
    def text(self) -> str:
        """All that was heard."""
        return "\n".join([*(f"{each.kind} {each.stage} {each.text}" for each in self.events), *self.said])


@dataclass
class World:
    """The account and the cluster, and the folder of one user."""

    aws: FakeAws
    kubernetes: FakeKubernetes
    folder: Path
    view: Heard = field(default_factory=Heard)
    session: Session = field(default_factory=lambda: Session(REGION))

    def job(self, *, view: View | None = None, facts: Facts | None = None, **options: Any) -> EksJob:
        """A job of the document that `options` change: `name`, `eks`, `nodes`, … and `remembered`, `dry_run`."""
        told = {
            key: options.pop(key)
            for key in ("remembered", "dry_run", "timeout_s", "replace")
            if key in options
        }
        return EksJob(
            document=document(**options),
            facts=facts or Facts(serving_archive=b"code"),
            view=view or self.view,
            folder=self.folder,
            session=self.session,
            every_s=0.2,
            **told,
        )

    def reach(self) -> Cluster:
        """The cluster's API, without AWS's tokens."""
        return connect(Target(self.kubernetes.kubeconfig(self.folder / "direct")))

    def state(self) -> dict[str, Any]:
        """What there is, in few words, ids left out: for comparing ends."""
        ec2 = self.aws.client("ec2")
        reservations = ec2.describe_instances()["Reservations"]
        instances = [each for one in reservations for each in one["Instances"]]
        clusters = {
            name: {
                "status": found.about["status"],
                "tags": dict(found.about["tags"]),
                "addons": sorted(found.addons),
                "groups": {
                    group["nodegroupName"]: (
                        group["status"],
                        dict(group["scalingConfig"]),
                        sorted(group["tags"]),
                    )
                    for group in found.nodegroups.values()
                },
            }
            for name, found in self.aws.eks.clusters.items()
        }
        # Inside, where there is a cluster: the stand-in of Kubernetes stays when it goes.
        inside = self.kubernetes if clusters else None
        records = inside.all("Secret") if inside else []
        stacks = self.aws.client("cloudformation").describe_stacks()["Stacks"]
        return {
            "clusters": clusters,
            "instances": sorted(
                each["InstanceType"] for each in instances if each["State"]["Name"] in ("pending", "running")
            ),
            "stacks": sorted((each["StackName"], each["StackStatus"]) for each in stacks),
            "placement groups": sorted(self.aws.ec2.placement_groups),
            "interfaces": len(ec2.describe_network_interfaces()["NetworkInterfaces"]),
            "volumes": len(ec2.describe_volumes()["Volumes"]),
            "providers": len(
                self.aws.client("iam").list_open_id_connect_providers()["OpenIDConnectProviderList"]
            ),
            "daemon sets": sorted(
                each["metadata"]["name"] for each in (inside.all("DaemonSet") if inside else [])
            ),
            "releases": sorted(
                {
                    each["metadata"]["labels"]["name"]
                    for each in records
                    if each["metadata"].get("labels", {}).get("owner") == "helm"
                }
            ),
            "nodes": sorted(
                str(node["metadata"]["labels"].get("diptych.dev/phase"))
                for node in self.kubernetes.all("Node")
            ),
        }


Moment = tuple[str, str, str]


def interruptions(often: Sequence[Moment], rarely: Sequence[Moment]) -> list[Any]:
    """Moments as parameters of a test; those that are tried `rarely` are so by `make test-long` alone."""
    marks = {False: (), True: pytest.mark.long}
    return [
        pytest.param(moment, id=" ".join(filter(None, moment)), marks=marks[moment in rarely])
        for moment in (*often, *rarely)
    ]


@contextmanager
def world(folder: Path, patch: pytest.MonkeyPatch, *, time_scale: float = 0.0005) -> Iterator[World]:
    """The account and the cluster, up; this process's environment leads to them."""
    with ExitStack() as stack:
        kubernetes = stack.enter_context(FakeKubernetes())
        aws = stack.enter_context(FakeAws(REGION, kubernetes, time_scale=time_scale))
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        for name, value in aws.environ().items():
            patch.setenv(name, value)
        yield World(aws, kubernetes, folder)


def place(**fields: str) -> Place:
    """Where the jobs of these tests are, or somewhere else."""
    return Place(**{"account": ACCOUNT, "region": REGION, "cluster": "llm", **fields})


__all__ = ["ACCOUNT", "OWN", "REGION", "Heard", "World", "document", "interruptions", "place", "world"]
