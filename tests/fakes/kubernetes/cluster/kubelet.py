"""The kubelets of all nodes: they bring pods to life, and end them."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from fakes.kubernetes.cluster.pod_life import PodLife, Waiting
from fakes.kubernetes.cluster.recorder import Recorder
from fakes.kubernetes.cluster.script import Script
from fakes.kubernetes.errors import Json

if TYPE_CHECKING:
    from fakes.kubernetes.fake import FakeKubernetes


class Kubelets:
    """Runs the pods of all nodes.

    Args:
        is_ready: whether a pod's readiness probe passes.
    """

    def __init__(self, fake: "FakeKubernetes", script: Script, is_ready: Callable[[Json], bool]) -> None:
        self._recorder = Recorder(fake.store, "kubelet")
        self._fake, self._script, self._is_ready = fake, script, is_ready
        self._lives: dict[str, Waiting] = {}
        self._images: set[tuple[str, str]] = set()
        self._ends: dict[str, float] = {}
        fake.store.keeps_pods = True

    def tick(self) -> None:
        nodes = {each["metadata"]["name"] for each in self._recorder.all("Node")}
        for pod in self._recorder.all("Pod"):
            node, uid = pod["spec"].get("nodeName"), pod["metadata"]["uid"]
            if not node:
                continue
            if node not in nodes:
                self._recorder.delete(pod, grace_s=0)
            elif pod["metadata"].get("deletionTimestamp"):
                self._terminate(pod)
            elif pod["status"]["phase"] not in ("Succeeded", "Failed"):
                if uid not in self._lives:
                    self._lives[uid] = PodLife(
                        pod, self._fake, self._script, self._is_ready, self._images
                    ).run()
                next(self._lives[uid], None)

    def _terminate(self, pod: Json) -> None:
        uid = pod["metadata"]["uid"]
        if uid not in self._ends:
            for each in pod["spec"]["containers"]:
                self._recorder.event(pod, "Killing", f"Stopping container {each['name']}")
        asked = pod["metadata"].get("deletionGracePeriodSeconds", 30)
        seconds = min(asked, self._script.seconds["terminate"])
        end = self._ends.setdefault(uid, self._script.now() + seconds)
        if self._script.now() >= end and "terminate" not in self._script.held:
            self._lives.pop(uid, None)
            self._recorder.delete(pod, grace_s=0)
