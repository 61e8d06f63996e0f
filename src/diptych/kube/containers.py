"""What a pod's containers wait for or died of."""

from collections.abc import Sequence

from diptych.kube import images, loading
from diptych.kube.blocker import Blocker, cut
from diptych.kube.failures import Known, known, last_words
from diptych.kube.nodes import node_trouble
from diptych.kube.objects import (
    Object,
    amount,
    condition,
    container_states,
    is_head,
    name_of,
    node_of,
    phase_of,
    requests_of,
    status_of,
    unix_time,
)
from diptych.kube.scheduling import unscheduled
from diptych.kube.snapshot import Snapshot, last_seen
from diptych.kube.waiting import duration

_RESTARTS = 3
"""A container that failed so often fails for a reason that time does not mend."""
_NOT_FOUND = 127
_STAGE, _WAIT_GCS = "stage-model", "wait-gcs-ready"
_RECENT_S = 180.0
_HEAD_PATIENCE_S = 180.0


def pod_blocker(pod: Object, snapshot: Snapshot, now: float) -> Blocker | None:
    """The first thing that keeps a pod from running; None where it runs.

    Whether it is ready does not count, but for a head: workers are not ready before a Serve proxy is on them.
    """
    where, phase = f"pod {name_of(pod)}", phase_of(pod)
    if status_of(pod).get("phase") == "Failed":
        return _failed(pod, snapshot)
    if found := unscheduled(pod, snapshot):
        return found
    node = snapshot.node(node_of(pod))
    if node and (trouble := node_trouble(node)):
        return Blocker(
            where,
            f"is on node {node_of(pod)}, which is in trouble: {trouble}",
            "Replace the node.",
            phase=phase,
        )
    for state in container_states(pod, init=True):
        if found := _initial(pod, state, snapshot, now):
            return found
    for state in container_states(pod):
        if found := _container(pod, state, snapshot, now):
            return found
    if not container_states(pod):
        return _preparing(pod, snapshot, now) or Blocker(
            where, f"is being prepared on {node_of(pod)}", phase=phase
        )
    return _head_not_ready(pod, snapshot, now) if is_head(pod) else None


def _failed(pod: Object, snapshot: Snapshot) -> Blocker:
    status, phase = status_of(pod), phase_of(pod)
    where, reason = f"pod {name_of(pod)}", str(status.get("reason") or "")
    message = cut(str(status.get("message") or ""), 300)
    if reason == "Evicted":
        do = (
            "Raise `nodes.volume_size`, or have less on the node."
            if "storage" in message
            else "Have less on the node."
        )
        return Blocker(where, f"was evicted from its node: {message}", do, phase=phase)
    if reason == "UnexpectedAdmissionError":
        do = "Look whether the device plugin of that node runs; delete the pod to have it placed again."
        return Blocker(where, f"was turned away by node {node_of(pod)}: {message}", do, phase=phase)
    for state in container_states(pod):
        ended = (state.get("state") or {}).get("terminated")
        if ended:
            died = _died(pod, state, ended, snapshot)
            never = is_head(pod) and (pod.get("spec") or {}).get("restartPolicy") == "Never"
            if never:
                do = f"{died.do} Nothing starts this head again: delete the pod."
                return Blocker(where, died.what, do.strip(), is_fatal=True, phase=phase)
            return died
    return Blocker(
        where, f"failed: {reason or 'no reason is given'} {message}".rstrip(), "Delete it.", phase=phase
    )


def _initial(pod: Object, state: Object, snapshot: Snapshot, now: float) -> Blocker | None:
    """What a container that runs before the others waits for."""
    current = state.get("state") or {}
    ended = current.get("terminated")
    if ended and ended.get("exitCode") == 0:
        return None
    if "running" not in current:
        return _container(pod, state, snapshot, now)
    where, phase = f"pod {name_of(pod)}", phase_of(pod)
    since = unix_time(current["running"].get("startedAt"))
    took = f" for {duration(now - since)}" if since else ""
    lines = snapshot.lines.get(f"{name_of(pod)}/{state['name']}", ())
    if state["name"] == _STAGE:
        said = loading.staging(lines, snapshot.checkpoint_bytes) or f"fetches the model{took}"
        failed = (state.get("lastState") or {}).get("terminated") or {}
        words, meant = _last_words(failed, ())
        before = f", again; before, it failed: {meant.means if meant else words}" if words else ""
        do = meant.do if meant else ""
        return Blocker(where, f"on node {node_of(pod)} {said}{before}", do, phase=phase)
    if state["name"] == _WAIT_GCS:
        return Blocker(where, f"waits{took} for the Ray head to answer", phase=phase)
    return Blocker(where, f"runs its first container {state['name']}{took}", phase=phase)


def _container(pod: Object, state: Object, snapshot: Snapshot, now: float) -> Blocker | None:
    current = state.get("state") or {}
    where, phase = f"pod {name_of(pod)}", phase_of(pod)
    if "running" in current:
        return None
    if ended := current.get("terminated"):
        return _died(pod, state, ended, snapshot)
    waiting = current.get("waiting") or {}
    reason, message = str(waiting.get("reason") or ""), str(waiting.get("message") or "")
    if reason in images.PULL_FAILED:
        return images.failed_pull(
            pod, state["name"], waiting, str(state.get("image") or _image(pod, state["name"]))
        )
    if reason == "CrashLoopBackOff":
        ended = (state.get("lastState") or {}).get("terminated") or {}
        return _died(pod, state, ended, snapshot)
    if reason in ("CreateContainerConfigError", "CreateContainerError", "RunContainerError"):
        return Blocker(
            where, f"can't start its container {state['name']}: {cut(message, 300)}",
            _config_hint(message), phase=phase,
        )  # fmt: skip
    if reason == "PodInitializing" and container_states(pod, init=True):
        before = container_states(pod, init=True)[-1]
        if "terminated" not in (before.get("state") or {}):
            return None  # told of by that container
    return (
        images.pull(pod, snapshot, now)
        or _preparing(pod, snapshot, now)
        or Blocker(where, f"is being prepared on node {node_of(pod)}", phase=phase)
    )


def _preparing(pod: Object, snapshot: Snapshot, now: float) -> Blocker | None:
    """What the kubelet can't do for a pod that has no container yet: mounts, network."""
    told = [
        event
        for event in snapshot.events_of(pod, "FailedMount", "FailedAttachVolume", "FailedCreatePodSandBox")
        if now - last_seen(event) < _RECENT_S
    ]
    if not told:
        return images.pull(pod, snapshot, now)
    event = told[-1]
    message = cut(str(event.get("message") or ""), 300)
    what = {
        "FailedMount": "can't have a volume",
        "FailedAttachVolume": "can't have a disk attached",
        "FailedCreatePodSandBox": "can't have a network",
    }[event["reason"]]
    do = _config_hint(message)
    if event["reason"] == "FailedCreatePodSandBox":
        do = "The subnet may be out of addresses, or the network plugin does not run on that node."
    return Blocker(
        f"pod {name_of(pod)}", f"{what} on node {node_of(pod)}: {message}", do, phase=phase_of(pod)
    )


def _died(pod: Object, state: Object, ended: Object, snapshot: Snapshot) -> Blocker:
    """A container that ended though it should not have."""
    where, phase, container = f"pod {name_of(pod)}", phase_of(pod), str(state["name"])
    times = int(state.get("restartCount") or 0)
    if ended.get("reason") == "OOMKilled":
        return _out_of_memory(pod, container, times)
    words, found = _last_words(ended, snapshot.lines.get(f"{name_of(pod)}/{container}", ()))
    start = f"has a container ({container}) that failed" + (f" {times} times" if times > 1 else "")
    if container == _STAGE:
        start = f"on node {node_of(pod)} can't fetch the model"
    why = f"{found.means} ({words})" if found and words else words
    do = found.do if found else _drift(pod, snapshot) or "`diptych logs` has more of what it wrote."
    is_certain = times >= _RESTARTS or (container == _STAGE and found is not None)
    is_fatal = is_certain and not (found and found.may_pass)
    return Blocker(where, f"{start}: {why}", do, is_fatal=is_fatal, phase=phase)


def _last_words(ended: Object, lines: Sequence[str]) -> tuple[str, Known | None]:
    """What a container said at its end, and the known failure in it; nothing where it has not ended.

    Args:
        lines: of its log, where they were asked for; else its message has the last ones.
    """
    if not ended:
        return "", None
    said = lines or str(ended.get("message") or "").splitlines()
    words, code = cut(last_words(said), 400).removeprefix("stage: "), ended.get("exitCode")
    found = known("\n".join(said[-20:]))
    if code == _NOT_FOUND and found is None:
        return f"{words or 'a command'} (exit code 127: the image lacks a command)", None
    return words or f"exit code {code}", found


def _out_of_memory(pod: Object, container: str, times: int) -> Blocker:
    limit = amount("memory", requests_of(pod).get("memory", 0.0))
    often = f" {times} times" if times > 1 else ""
    whose = "Ray's head" if is_head(pod) else f"its container {container}"
    do = "Raise `kubernetes.head_memory`: 8 GiB at least." if is_head(pod) else "Give the pods more memory."
    what = f"({whose}) was killed{often} for want of memory (OOMKilled): it has {limit}"
    return Blocker(f"pod {name_of(pod)}", what, do, is_fatal=times >= _RESTARTS, phase=phase_of(pod))


def _drift(pod: Object, snapshot: Snapshot) -> str:
    """That the pod's node has another image than the phase's other nodes: what may have changed where nothing did."""
    node = snapshot.node(node_of(pod))
    if node is None:
        return ""
    peers = [each for each in snapshot.nodes if phase_of(each) == phase_of(node) != ""]
    versions = {_system(each) for each in peers}
    if len(versions) < 2:
        return ""
    return f"Its node {name_of(node)} has another system than others of the phase: {' / '.join(sorted(versions))}."


def _system(node: Object) -> str:
    info = status_of(node).get("nodeInfo") or {}
    return f"{info.get('osImage', '')}, kernel {info.get('kernelVersion', '')}"


def _head_not_ready(pod: Object, snapshot: Snapshot, now: float) -> Blocker | None:
    """A head that runs, and whose probes fail for longer than it takes to start."""
    ready = condition(pod, "Ready")
    since = unix_time(ready.get("lastTransitionTime"))
    if ready.get("status") == "True" or not ready:
        return None
    where = f"pod {name_of(pod)}"
    told = snapshot.events_of(pod, "Unhealthy")
    passed = f" for {duration(now - since)}" if since else ""
    if since is None or now - since < _HEAD_PATIENCE_S:
        return Blocker(where, f"runs{passed}; Ray's head is starting")
    message = cut(str(told[-1].get("message") or ""), 300) if told else "no probe has said why"
    found = known(message)
    return Blocker(
        where, f"runs, and has not been ready{passed}: {found.means if found else message}",
        found.do if found else "`diptych logs ray` has what the head wrote.",
    )  # fmt: skip


def _image(pod: Object, container: str) -> str:
    spec = pod.get("spec") or {}
    each = (*(spec.get("initContainers") or []), *(spec.get("containers") or []))
    return next((str(one.get("image")) for one in each if one.get("name") == container), "")


def _config_hint(message: str) -> str:
    if "secret" in message.lower():
        return (
            "`diptych up --step service` makes Diptych's secrets; one of your own must be in the namespace."
        )
    if "configmap" in message.lower():
        return "`diptych up --step service` makes it."
    return "The message names what is missing."
