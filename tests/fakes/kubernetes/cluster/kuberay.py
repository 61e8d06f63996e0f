"""`KubeRay`: the scripted cluster in a thread, and the operator as Helm installs it."""

import json
import re
import threading
import time
import traceback
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Self

import pytest
import yaml

from fakes.kubernetes.cluster.controllers import Controllers
from fakes.kubernetes.cluster.kubelet import Kubelets
from fakes.kubernetes.cluster.rayclusters import RayClusters
from fakes.kubernetes.cluster.rayservices import RayServices
from fakes.kubernetes.cluster.recorder import Recorder
from fakes.kubernetes.cluster.scheduling import Scheduler
from fakes.kubernetes.cluster.script import Script
from fakes.kubernetes.errors import Json
from fakes.kubernetes.fake import FakeKubernetes

SCHEMAS = Path(__file__).resolve().parents[5] / "shared" / "schemas"
IMAGE = "quay.io/kuberay/operator"
_OPERATOR_LABEL = "kuberay-operator"
_TICK_S = 0.01


def crds() -> list[Json]:
    """KubeRay's CustomResourceDefinitions; the test is skipped, and says so, where `../shared/schemas` is not there.

    RayJob's and RayCronJob's are not among those files: RayJob stands here with a spec that takes anything.
    """
    files = [SCHEMAS / f"ray.io_{each}.yaml" for each in ("rayclusters", "rayservices")]
    for file in files:
        if not file.is_file():
            pytest.skip(f"{file} is not here")
    return [*(json.loads(_crd(file)) for file in files), _job_crd()]


@cache
def _crd(file: Path) -> str:
    return json.dumps(yaml.load(file.read_text(), yaml.CSafeLoader))


def _job_crd() -> Json:
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {
            "openAPIV3Schema": {"type": "object", "properties": {"spec": anything, "status": anything}}
        },
        "subresources": {"status": {}},
    }
    names = {"kind": "RayJob", "listKind": "RayJobList", "plural": "rayjobs", "singular": "rayjob"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "rayjobs.ray.io"},
        "spec": {"group": "ray.io", "names": names, "scope": "Namespaced", "versions": [version]},
    }


def operator_manifests(
    namespace: str,
    version: str = "1.7.0",
    *,
    release: str | None = "kuberay-operator",
    watch: Sequence[str] = (),
    node_selector: Json | None = None,
    tag: str | None = None,
) -> list[Json]:
    """What the chart `kuberay-operator` makes, as far as anything here looks at it.

    Args:
        release: the Helm release; None: installed without Helm, by somebody else.
        watch: the namespaces it watches; none given: all.
    """
    name = _OPERATOR_LABEL
    labels = {"app.kubernetes.io/name": name, "app.kubernetes.io/instance": release or name}
    metadata: Json = {"name": name, "namespace": namespace, "labels": dict(labels)}
    if release:
        metadata["labels"] |= {"app.kubernetes.io/managed-by": "Helm", "helm.sh/chart": f"{name}-{version}"}
        metadata["annotations"] = {
            "meta.helm.sh/release-name": release,
            "meta.helm.sh/release-namespace": namespace,
        }
    container = {
        "name": name,
        "image": f"{IMAGE}:{tag or 'v' + version}",
        "command": ["/manager"],
        "args": [
            "--enable-leader-election=true",
            *([f"--watch-namespace={','.join(watch)}"] if watch else []),
        ],
        "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}],
        "resources": {
            "limits": {"cpu": "1", "memory": "512Mi"},
            "requests": {"cpu": "100m", "memory": "512Mi"},
        },
    }
    pod: Json = {"serviceAccountName": name, "containers": [container]}
    if node_selector:
        pod["nodeSelector"] = node_selector
    template = {"metadata": {"labels": labels}, "spec": pod}
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata},
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec},
    ]


def install_operator(
    fake: FakeKubernetes, namespace: str = "kuberay-system", version: str = "1.7.0", **how: Any
) -> None:
    """Put the CRDs and the operator (`operator_manifests`'s arguments) into the fake, and its namespace."""
    for each in crds():
        fake.put(each)
    if fake.get("Namespace", namespace) is None:
        fake.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    for each in operator_manifests(namespace, version, **how):
        fake.put(each, manager="helm")


class KubeRay(Script):
    """Scheduler, kubelets, controllers and, where its Deployment runs, the KubeRay operator; at work within `with`.

    What happens is `Script`'s: every attribute can be given, and set at any time.
    """

    def __init__(self, fake: FakeKubernetes, **script: Any) -> None:
        super().__init__(**script)
        self._fake = fake
        self._recorder = Recorder(fake.store, "kuberay-operator")
        self._proxies: set[str] = set()
        self._clusters = RayClusters(self._recorder, self)
        self._services = RayServices(self._recorder, self._clusters, self, self._proxies_answer)
        self._scheduler = Scheduler(fake, self)
        self._kubelets = Kubelets(fake, self, self._is_ready)
        self._controllers = Controllers(Recorder(fake.store, "kube-controller-manager"))
        self._next_look = 0.0
        self._over = threading.Event()
        self.error: str | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        crds()  # without them nothing comes up: the test is skipped
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(10)
        if self.error:
            pytest.fail(f"the scripted cluster broke: {self.error}")

    def _run(self) -> None:
        try:
            last = time.monotonic()
            while not self._over.wait(_TICK_S):
                self.pass_time(time.monotonic() - last)
                last = time.monotonic()
                with self._fake.store.lock:
                    self._tick()
        except Exception:
            self.error = traceback.format_exc()

    def _tick(self) -> None:
        self._controllers.tick()
        self._scheduler.tick()
        self._kubelets.tick()
        if self.now() >= self._next_look and "operator" not in self.held:
            self._next_look = self.now() + self.seconds["operator"]
            self._operate()

    def _operate(self) -> None:
        for deployment in self._recorder.all("Deployment"):
            labels = deployment["metadata"].get("labels", {})
            is_up = deployment.get("status", {}).get("readyReplicas", 0) > 0
            if labels.get("app.kubernetes.io/name") == _OPERATOR_LABEL and is_up:
                self._operate_as(deployment)

    def _operate_as(self, deployment: Json) -> None:
        container = deployment["spec"]["template"]["spec"]["containers"][0]
        found = re.search(r":v?(\d+)\.(\d+)\.(\d+)", container["image"])
        if found:
            self._services.version = (int(found[1]), int(found[2]), int(found[3]))
        watched = _watched(container)
        for namespace in watched or [""]:
            for service in self._recorder.all("RayService", namespace):
                self._services.reconcile(service)
            for cluster in self._recorder.all("RayCluster", namespace):
                self._clusters.reconcile(cluster)

    def _proxies_answer(self, cluster: Json) -> None:
        for pod in self._clusters.pods(cluster):
            metadata = pod["metadata"]
            is_head = metadata["labels"]["ray.io/node-type"] == "head"
            self._proxies.add(metadata["uid"])
            self._fake.listening[metadata["namespace"], metadata["name"]] = (
                {8000, 8265} if is_head else {8000}
            )

    def _is_ready(self, pod: Json) -> bool:
        labels, metadata = pod["metadata"].get("labels", {}), pod["metadata"]
        node_type = labels.get("ray.io/node-type")
        if node_type:
            self._fake.listening.setdefault(
                (metadata["namespace"], metadata["name"]), {8265} if node_type == "head" else set()
            )
        if node_type == "worker":
            return metadata["uid"] in self._proxies
        return True


def _watched(container: Json) -> list[str]:
    for each in container.get("args", ()):
        name, _, value = each.partition("=")
        if name.lstrip("-") == "watch-namespace":
            return [part for part in value.split(",") if part]
    return []
