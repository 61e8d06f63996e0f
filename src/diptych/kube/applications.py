"""What Ray Serve says of its applications, deployments and replicas, through the RayService's status."""

import re
from collections.abc import Iterator

from diptych.kube import loading
from diptych.kube.blocker import Blocker, cut
from diptych.kube.failures import known, last_words
from diptych.kube.objects import Object, is_ready, is_running, labels_of, name_of, phase_of
from diptych.kube.snapshot import Snapshot, is_up

_PHASES = {"Prefill": "prefill", "Decode": "decode", "Aggregated": "aggregated"}
"""Deployments by phase; each has the phase's name in its own."""

_RETRYING = re.compile(r"A replica failed to start with exception\. Retrying(?: (?P<left>\d+) more time)?")
_GAVE_UP = re.compile(r"failed to start (?P<times>\d+) times in a row")
_UNPLACED = re.compile(
    r"has (?P<replicas>\d+) replicas that have taken more than \d+s to be scheduled\..*"
    r"Resources required for each replica: (?P<required>[\[{].*?[\]}]), "
    r"total resources available: (?P<there>\{.*?\})\.",
    re.DOTALL,
)
_RESOURCE = re.compile(r'"(?P<name>[^"]+)": (?P<amount>[\d.e+-]+)')
_SLOW = re.compile(r"replicas that have taken more than \d+s to initialize")
_UNHEALTHY = "health check failed"
_FAILED, _STARTING, _UNWELL = "DEPLOY_FAILED", ("UPDATING", "UPSCALING", "DOWNSCALING"), "UNHEALTHY"


def application_blocker(snapshot: Snapshot) -> Blocker | None:
    """The first thing that keeps the Serve applications from running; None where all of them do.

    Raises nothing: a status that is not there yet is a blocker, too.
    """
    apps = snapshot.serving.get("applicationStatuses") or {}
    if not apps:
        return _nothing_told(snapshot)
    for name, app in apps.items():
        if is_up(app):
            continue
        for deployment, told in _worst_first(app):
            if found := _deployment(snapshot, deployment, told):
                return found
        return _application(snapshot, name, app)
    return None


def _nothing_told(snapshot: Snapshot) -> Blocker:
    """KubeRay tells of no application: the head has not taken the configuration, or refused it."""
    where = f"RayService {snapshot.name}"
    told = snapshot.events_of(
        snapshot.service or {"metadata": {"name": snapshot.name}}, "FailedToUpdateServeApplications"
    )
    if told:
        message = cut(str(told[-1].get("message") or ""), 400)
        return Blocker(
            where,
            f"can't hand its Serve configuration to the head: {message}",
            "`diptych logs ray` has more.",
        )
    return Blocker(where, "has its pods; Ray Serve has not told of the application yet")


def _application(snapshot: Snapshot, name: str, app: Object) -> Blocker | None:
    """An application in which no deployment is to blame: it is built, or failed in that."""
    status, message = str(app.get("status") or ""), str(app.get("message") or "")
    where = f"Serve application {name}"
    if status == _FAILED:
        return _with_cause(Blocker(where, "can't be built", is_fatal=True), message)
    if status == _UNWELL:
        return _with_cause(Blocker(where, "is not healthy"), message)
    if status == "DELETING":
        return Blocker(where, "is being taken away")
    if status == "RUNNING":
        return None
    return Blocker(where, f"is being deployed{': ' + cut(message, 300) if message else ''}")


def _deployment(snapshot: Snapshot, name: str, told: Object) -> Blocker | None:
    status, message = str(told.get("status") or ""), str(told.get("message") or "")
    phase = next((phase for word, phase in _PHASES.items() if word in name), "")
    where = f"Serve deployment {name}"
    if status == "HEALTHY":
        return None
    if status == _FAILED:
        times = _GAVE_UP.search(message)
        what = f"failed to start {times['times']} times in a row" if times else "failed"
        return _with_cause(Blocker(where, what, is_fatal=True, phase=phase), message, snapshot)
    if found := _UNPLACED.search(message):
        return _unplaced(snapshot, where, phase, found)
    if found := _RETRYING.search(message):
        left = f", {found['left']} more attempts are made" if found["left"] else ""
        return _with_cause(
            Blocker(where, f"has a replica that failed to start{left}", phase=phase), message, snapshot
        )
    if status == _UNWELL:
        return _unhealthy(snapshot, where, phase, message)
    if status in _STARTING or _SLOW.search(message):
        return _starting(snapshot, where, phase, message)
    return None


def _unplaced(snapshot: Snapshot, where: str, phase: str, found: re.Match[str]) -> Blocker:
    """A replica for which Ray has no place: the resource that no pod offers, or that is in use."""
    required = {each["name"]: float(each["amount"]) for each in _RESOURCE.finditer(found["required"])}
    there = {each["name"]: float(each["amount"]) for each in _RESOURCE.finditer(found["there"])}
    wanted = [name for name, amount in required.items() if amount > 0]
    offered = {name: _offering(snapshot, name) for name in wanted}
    nobody = [name for name, groups in offered.items() if not groups]
    if nobody:
        what = f"has a replica that needs the Ray resource {nobody[0]!r}, which no worker group offers"
        do = "Correct the resource, the accelerator type or the affinity that `engine_kwargs` or the phase asks for."
        return Blocker(where, what, do, phase=phase)
    for name in wanted:
        pods = [
            pod
            for pod in snapshot.pods_of(snapshot.current)
            if labels_of(pod).get("ray.io/group") in offered[name]
        ]
        if not any(is_running(pod) for pod in pods):
            what = (
                f"has a replica that waits for a pod of the group {offered[name][0]}, which offers {name!r}"
            )
            return Blocker(where, what, phase=phase)
        if name in there and there[name] < required[name]:
            what = f"has a replica that needs {required[name]:g} of the Ray resource {name!r}; {there[name]:g} are free"
            return Blocker(
                where, what, "Another replica still has it: wait for its end, or add pods.", phase=phase
            )
    needs = ", ".join(f"{required[name]:g} {name}" for name in wanted) or "nothing that Ray counts"
    what = f"has {found['replicas']} replicas that Ray has not placed yet; each needs {needs}"
    return Blocker(where, what, "`ray status` on the head tells what is free.", phase=phase)


def _offering(snapshot: Snapshot, resource: str) -> list[str]:
    """The worker groups whose pods offer a Ray resource. Cores, GPUs and memory all of them may."""
    groups = (((snapshot.current or {}).get("spec") or {}).get("workerGroupSpecs")) or []
    if resource in ("CPU", "GPU", "memory", "object_store_memory"):
        return [str(group["groupName"]) for group in groups]
    return [
        str(group["groupName"])
        for group in groups
        if resource in (group.get("resources") or {})
        or f'"{resource}"' in str((group.get("rayStartParams") or {}).get("resources", ""))
    ]


def _unhealthy(snapshot: Snapshot, where: str, phase: str, message: str) -> Blocker:
    pods = [name_of(pod) for pod in snapshot.pods_of(snapshot.current) if phase_of(pod) == phase]
    which = f" (pod {', '.join(pods[:3])})" if pods else ""
    if _UNHEALTHY in message and not _has_exception(message):
        return Blocker(
            where, f"has a replica whose health check fails{which}",
            "Ray Serve starts another one; if none comes, the pod's GPU is held by what is left of the old one: "
            "delete the pod.", phase=phase,
        )  # fmt: skip
    return _with_cause(Blocker(where, f"is not healthy{which}", phase=phase), message, snapshot)


def _starting(snapshot: Snapshot, where: str, phase: str, message: str) -> Blocker:
    """A replica on its way: what its engine's lines say, which no status has."""
    for pod in snapshot.pods_of(snapshot.current):
        lines = snapshot.engine.get(name_of(pod), ())
        said = loading.engine(lines, snapshot.checkpoint_bytes) if phase in ("", phase_of(pod)) else ""
        if said:
            return Blocker(f"the {phase_of(pod)} engine in pod {name_of(pod)}", said, phase=phase_of(pod))
    told = cut(message.split("\n")[0], 200) if message and not _SLOW.search(message) else ""
    return Blocker(where, f"starts its engine{': ' + told if told else ''}", phase=phase)


def _with_cause(blocker: Blocker, message: str, snapshot: Snapshot | None = None) -> Blocker:
    """The blocker with the last exception that the message has, else the engine's own last one."""
    pods = snapshot.pods if snapshot else ()
    engine = [
        line
        for pod in pods
        if blocker.phase in ("", phase_of(pod))
        for line in (snapshot.engine.get(name_of(pod), ()) if snapshot else ())
    ]
    # The message comes last: its exception counts, unless it only points to the engine's.
    lines = [*engine, *message.splitlines()]
    words = cut(last_words(lines), 400)
    found = known(words) or known(message)
    why = f"{found.means} ({words})" if found and words else words
    phase = blocker.phase or "ray"
    do = found.do if found else f"`diptych logs {phase}` has all of it."
    what = f"{blocker.what}: {why}" if why else blocker.what
    return Blocker(blocker.where, what, do, is_fatal=blocker.is_fatal, phase=blocker.phase)


def _has_exception(message: str) -> bool:
    return bool(re.search(r"^\s*[A-Za-z_][\w.]*(?:Error|Exception|Exit)\b", message, re.MULTILINE))


def _worst_first(app: Object) -> Iterator[tuple[str, Object]]:
    """Deployments, those that failed first; prefill before decode, which waits for it."""
    told = (app.get("serveDeploymentStatuses") or {}).items()
    ranks = {_FAILED: 0, _UNWELL: 1}
    names = list(_PHASES)

    def rank(item: tuple[str, Object]) -> tuple[int, int, int]:
        name, status = item
        order = next((number for number, word in enumerate(names) if word in name), len(names))
        has_words = 0 if status.get("message") else 1
        return ranks.get(str(status.get("status")), 2), has_words, order

    return iter(sorted(told, key=rank))


def proxies_missing(snapshot: Snapshot) -> list[str]:
    """Worker pods that are not ready though the applications run: no Serve proxy answers on them."""
    workers = [pod for pod in snapshot.pods_of(snapshot.current) if phase_of(pod) and is_running(pod)]
    return [name_of(pod) for pod in workers if not is_ready(pod)]
