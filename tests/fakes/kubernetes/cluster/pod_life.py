"""One pod on its node, from its first image to its end: a generator that stops wherever it has to wait."""

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from fakes.kubernetes.cluster.pod_status import Containers, status_of
from fakes.kubernetes.cluster.recorder import Recorder
from fakes.kubernetes.cluster.script import Behaviour, Script
from fakes.kubernetes.errors import Json
from fakes.kubernetes.objects import now
from fakes.kubernetes.pods import Line

if TYPE_CHECKING:
    from fakes.kubernetes.fake import FakeKubernetes

Waiting = Iterator[None]
_MAX_BACK_OFF_S = 300.0


class PodLife:
    """What the kubelet does with one pod.

    Args:
        is_ready: whether a pod's readiness probe passes.
        images: those that nodes have, by node and name; it adds to them.
    """

    def __init__(
        self,
        pod: Json,
        fake: "FakeKubernetes",
        script: Script,
        is_ready: Callable[[Json], bool],
        images: set[tuple[str, str]],
    ) -> None:
        self._pod, self._fake, self._script, self._is_ready, self._images = (
            pod,
            fake,
            script,
            is_ready,
            images,
        )
        self._recorder = Recorder(fake.store, "kubelet")
        self._name, self._namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        self._states = {each["name"]: _waiting("PodInitializing") for each in self._all_containers()}
        if not pod["spec"].get("initContainers"):
            self._states = {name: _waiting("ContainerCreating") for name in self._states}
        self._containers = Containers(self._states)

    def _all_containers(self) -> list[Json]:
        return [*self._pod["spec"].get("initContainers", ()), *self._pod["spec"]["containers"]]

    def run(self) -> Waiting:
        self._report()
        yield from self._mount()
        for each in self._pod["spec"].get("initContainers", ()):
            yield from self._until_done(each)
        for name in (each["name"] for each in self._pod["spec"]["containers"]):
            self._states[name] = _waiting("ContainerCreating")
        self._report()
        lives = [self._main(each) for each in self._pod["spec"]["containers"]]
        while lives:
            lives = [each for each in lives if next(each, self) is not self]
            self._probe()
            yield
        codes = [
            self._states[each["name"]]["terminated"]["exitCode"] for each in self._pod["spec"]["containers"]
        ]
        self._report("Failed" if any(codes) else "Succeeded")

    def _mount(self) -> Waiting:
        """Wait until every ConfigMap and Secret that the pod mounts is there."""
        for volume in self._pod["spec"].get("volumes", ()):
            for kind, field, key in (("ConfigMap", "configMap", "name"), ("Secret", "secret", "secretName")):
                source = volume.get(field, {})
                name = source.get(key)
                while (
                    name
                    and not source.get("optional")
                    and not self._recorder.find(kind, self._namespace, name)
                ):
                    why = f'{kind.lower()} "{name}" not found'
                    words = f'MountVolume.SetUp failed for volume "{volume["name"]}" : {why}'
                    self._once("FailedMount", words, warning=True)
                    yield

    def _until_done(self, container: Json) -> Waiting:
        """An init container: again and again until it ends well."""
        while True:
            yield from self._start(container)
            behaviour = self._behaviour(container)
            seconds = self._script.seconds["init"] if behaviour.seconds is None else behaviour.seconds
            yield from self._wait(seconds, "init")
            code = self._spend(behaviour)
            self._end(container, code, behaviour.reason)
            if not code:
                return
            if self._pod["spec"].get("restartPolicy") == "Never":
                self._report("Failed")
                while True:
                    yield
            yield from self._back_off(container)

    def _main(self, container: Json) -> Waiting:
        """A container: runs on, or ends as the script says and begins again as the pod's policy says."""
        policy = self._pod["spec"].get("restartPolicy", "Always")
        while True:
            yield from self._start(container)
            behaviour = self._behaviour(container)
            if policy == "Always" and (behaviour.exit_code is None or behaviour.times == 0):
                while True:
                    yield
                    late = self._behaviour(container)
                    if late is not behaviour and late.exit_code is not None and late.times != 0:
                        behaviour = late
                        break
            seconds = self._script.seconds["run"] if behaviour.seconds is None else behaviour.seconds
            yield from self._wait(seconds, "run")
            code = self._spend(behaviour)
            self._end(container, code, behaviour.reason)
            if policy == "Never" or (policy == "OnFailure" and not code):
                return
            yield from self._back_off(container)

    def _start(self, container: Json) -> Waiting:
        yield from self._pull(container)
        yield from self._configure(container)
        yield from self._wait(self._script.seconds["start"], "start")
        name = container["name"]
        self._states[name] = {"running": {"startedAt": now()}}
        self._recorder.event(self._pod, "Created", f"Created container: {name}")
        self._recorder.event(self._pod, "Started", f"Started container {name}")
        key = (self._namespace, self._name, name, False)
        self._fake.logs.setdefault(key, []).extend(
            Line(time.time(), text) for text in self._behaviour(container).lines
        )
        self._report()

    def _pull(self, container: Json) -> Waiting:
        image, key = container["image"], (self._pod["spec"]["nodeName"], container["image"])
        if key in self._images:
            self._recorder.event(self._pod, "Pulled", f'Container image "{image}" already present on machine')
            return
        self._recorder.event(self._pod, "Pulling", f'Pulling image "{image}"')
        started = self._script.now()
        while self._script.is_missing(image):
            yield from self._refuse_image(container, image)
        yield from self._wait(self._script.seconds["pull"], "pull")
        if key not in self._images:
            self._images.add(key)
            took = f"{self._script.now() - started:.3f}s"
            size = f"Image size: {self._script.image_bytes} bytes."
            words = f'Successfully pulled image "{image}" in {took} ({took} including waiting). {size}'
            self._recorder.event(self._pod, "Pulled", words)

    def _refuse_image(self, container: Json, image: str) -> Waiting:
        repository, _, tag = image.rpartition(":")
        error = f'failed to resolve reference "{image}": {repository}:{tag}: not found'
        unpack = f'failed to pull and unpack image "{image}": {error}'
        why = f"rpc error: code = NotFound desc = {unpack}"
        words = f'Failed to pull image "{image}": {why}'
        self._recorder.event(self._pod, "Failed", words, warning=True)
        self._recorder.event(self._pod, "Failed", "Error: ErrImagePull", warning=True)
        self._states[container["name"]] = _waiting("ErrImagePull", why)
        self._report()
        yield from self._wait(self._script.seconds["restart"], "pull")
        back_off = f'Back-off pulling image "{image}"'
        self._recorder.event(self._pod, "BackOff", back_off)
        self._states[container["name"]] = _waiting("ImagePullBackOff", f"{back_off}: ErrImagePull: {why}")
        self._report()
        yield from self._wait(self._script.seconds["restart"], "pull")

    def _configure(self, container: Json) -> Waiting:
        """Wait until every ConfigMap and Secret that the environment names is there."""
        for each in container.get("env", ()):
            source = each.get("valueFrom", {})
            for kind, field in (("ConfigMap", "configMapKeyRef"), ("Secret", "secretKeyRef")):
                wanted = source.get(field)
                while wanted and not wanted.get("optional") and not self._has_key(kind, wanted):
                    words = f'{kind.lower()} "{wanted["name"]}" not found or without key {wanted["key"]}'
                    self._states[container["name"]] = _waiting("CreateContainerConfigError", words)
                    self._once("Failed", f"Error: {words}", warning=True)
                    self._report()
                    yield

    def _has_key(self, kind: str, wanted: Json) -> bool:
        found = self._recorder.find(kind, self._namespace, wanted["name"])
        return found is not None and wanted["key"] in found.get("data", {})

    def _end(self, container: Json, code: int, reason: str | None) -> None:
        name = container["name"]
        key = (self._namespace, self._name, name)
        started = self._states[name].get("running", {}).get("startedAt", now())
        state: Json = {
            "exitCode": code,
            "reason": reason or ("Error" if code else "Completed"),
            "startedAt": started,
            "finishedAt": now(),
        }
        lines = self._fake.logs.get((*key, False), [])
        if code and container.get("terminationMessagePolicy") == "FallbackToLogsOnError":
            state["message"] = "\n".join(line.text for line in lines[-80:])[-2048:]
        self._states[name] = {"terminated": state}
        if code:
            self._fake.logs[(*key, True)] = list(lines)
        self._report()

    def _back_off(self, container: Json) -> Waiting:
        name = container["name"]
        self._containers.restarts[name] += 1
        self._containers.last[name] = self._states[name]
        seconds = min(
            self._script.seconds["restart"] * 2 ** (self._containers.restarts[name] - 1), _MAX_BACK_OFF_S
        )
        where = f"{name} in pod {self._name}_{self._namespace}({self._pod['metadata']['uid']})"
        self._recorder.event(
            self._pod, "BackOff", f"Back-off restarting failed container {where}", warning=True
        )
        words = (
            f"back-off {seconds:.0f}s restarting failed container={name} pod={self._name}_{self._namespace}"
        )
        self._states[name] = _waiting("CrashLoopBackOff", words)
        self._report()
        yield from self._wait(seconds, "restart")
        self._fake.logs[(self._namespace, self._name, name, False)] = []

    def _behaviour(self, container: Json) -> Behaviour:
        return self._script.behaviour(self._name, container["name"])

    def _spend(self, behaviour: Behaviour) -> int:
        """The exit code this time."""
        if behaviour.times is None:
            return behaviour.exit_code or 0
        behaviour.times -= 1
        return (behaviour.exit_code or 0) if behaviour.times >= 0 else 0

    def _wait(self, seconds: float, stage: str) -> Waiting:
        until = self._script.now() + seconds
        while self._script.now() < until or stage in self._script.held:
            yield

    def _once(self, reason: str, words: str, *, warning: bool) -> None:
        events = self._recorder.all("Event", self._namespace)
        uid = self._pod["metadata"]["uid"]
        if not any(each["involvedObject"].get("uid") == uid and each["message"] == words for each in events):
            self._recorder.event(self._pod, reason, words, warning=warning)

    def _probe(self) -> None:
        current = self._recorder.find("Pod", self._namespace, self._name)
        if current and (self._is_ready(current) and self._all_running()) != self._containers.ready:
            self._containers.ready = not self._containers.ready
            self._report()

    def _all_running(self) -> bool:
        return all("running" in self._states[each["name"]] for each in self._pod["spec"]["containers"])

    def _report(self, phase: str | None = None) -> None:
        current = self._recorder.find("Pod", self._namespace, self._name)
        if current is not None:
            self._containers.ready = self._containers.ready and self._all_running()
            self._recorder.status(current, status_of(current, self._containers, phase))


def _waiting(reason: str, message: str = "") -> Json:
    return {"waiting": {"reason": reason} | ({"message": message} if message else {})}
