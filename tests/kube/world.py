"""A cluster for tests of whole steps: the strict API, a scripted KubeRay, nodes, and an endpoint that can be proven."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from diptych.kube.connection import Cluster, Target, connect
from diptych.kube.job import Job
from fakes import probed
from fakes.kubernetes import FakeKubernetes, KubeRay
from fakes.provable_endpoint import ADMIN_KEY, KEY, ProvableEndpoint, probing
from kube.jobs import job_for

NAMESPACE = "inference"
SYSTEM = {"pool": "system"}
_PROGRAMS = Path(__file__).parents[1] / "fakes" / "bin"


class World:
    """What is around one test.

    Attributes:
        fake: the API.
        kuberay: what happens in the cluster.
        endpoint: what answers behind the pods' port 8000.
    """

    def __init__(
        self, fake: FakeKubernetes, kuberay: KubeRay, endpoint: ProvableEndpoint, folder: Path
    ) -> None:
        self.fake, self.kuberay, self.endpoint, self.folder = fake, kuberay, endpoint, folder
        self.keys = folder / "keys"
        self.keys.write_text(f"{KEY}\n{ADMIN_KEY} admin\n")
        self.keys.chmod(0o600)

    def job(self, **options: Any) -> Job:
        """A job of the walk-through's document, with the keys that the endpoint takes."""
        kubernetes = {"head_selector": SYSTEM, **options.pop("kubernetes", {})}
        access = {"api_key_file": str(self.keys), **options.pop("access", {})}
        return replace(
            job_for(self.folder / "job", kubernetes=kubernetes, access=access, **options), timeout_s=30.0
        )

    @contextmanager
    def cluster(self, job: Job) -> Iterator[Cluster]:
        """A connection as a command makes it."""
        target = Target(self.fake.kubeconfig(self.folder / "kubeconfig"))
        with connect(target, dry_run=job.dry_run, view=job.view, patience_s=5) as connected:
            yield connected

    def left(self, namespace: str = NAMESPACE) -> list[str]:
        """Kind and name of everything in a namespace but events and what is in every namespace."""
        found = []
        for kind, where, name in self.fake.objects:
            is_usual = (kind, name) in (("ConfigMap", "kube-root-ca.crt"), ("ServiceAccount", "default"))
            if where == namespace and kind not in ("Event", "Lease") and not is_usual:
                found.append(f"{kind} {name}")
        return sorted(found)


@contextmanager
def world(folder: Path, **script: Any) -> Iterator[World]:
    """A cluster with a system node and two nodes with a GPU and EFA, and no operator yet."""
    with FakeKubernetes() as fake, ProvableEndpoint(probing(probed.proven_on_g6)) as endpoint:
        for name, gpus in (("system", 0), ("gpu-a", 1), ("gpu-b", 1)):
            fake.put(node(name, gpus))
        fake.backends[8000] = ("127.0.0.1", int(endpoint.url.rpartition(":")[2]))
        with KubeRay(fake, **script) as kuberay:
            yield World(fake, kuberay, endpoint, folder)


def programs_first(patch: pytest.MonkeyPatch) -> None:
    """The stand-ins for helm and eksctl are first in PATH."""
    patch.setenv(
        "PATH", os.pathsep.join([str(_PROGRAMS), str(Path(sys.executable).parent), os.environ["PATH"]])
    )


def look_often(patch: pytest.MonkeyPatch) -> None:
    """Waits look often, and a dashboard that nobody serves is not waited for."""
    patch.setattr("diptych.kube.waiting.wait_for.__kwdefaults__", {"every_s": 0.05})
    patch.setattr("diptych.kube.service._SETTLE_S", 0.3)
    patch.setattr("diptych.kube.ray_logs._PATIENCE_S", 0.2)


def node(name: str, gpus: int) -> dict[str, Any]:
    """A node of the size of a g6.8xlarge, with a GPU and EFA, or of an m7i.xlarge, without."""
    amounts = {
        "cpu": "31850m",
        "memory": "118312Mi",
        "nvidia.com/gpu": str(gpus),
        "vpc.amazonaws.com/efa": "1",
    }
    amounts = amounts if gpus else {"cpu": "3920m", "memory": "14162Mi"}
    amounts |= {"pods": "58", "ephemeral-storage": "100Gi"}
    labels = {
        "kubernetes.io/hostname": name,
        "node.kubernetes.io/instance-type": "g6.8xlarge" if gpus else "m7i.xlarge",
        "topology.kubernetes.io/zone": "us-east-2a",
        **({} if gpus else SYSTEM),
    }
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "KubeletReady",
        "message": "kubelet is posting ready status",
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "status": {"allocatable": amounts, "capacity": amounts, "conditions": [ready]},
    }
