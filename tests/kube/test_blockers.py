"""Whatever keeps a service from being ready comes out as one sentence that names the object, with what to do.

Each case has objects in the shapes and words of the scheduler, the kubelet, KubeRay and Ray Serve, and what must be
told: the object, the cause, the remedy. The ids of cases are those of field reports and traps where there is one.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import get_args

import pytest

from diptych.kube.blockers import Blocker, first_blocker, is_ready_strictly
from diptych.kube.failures import KNOWN
from diptych.kube.snapshot import Snapshot
from diptych.spec import Document
from kube import shapes
from kube.shapes import (
    CLUSTER,
    DECODE,
    DONE,
    HEAD,
    IMAGE,
    NAME,
    NODES,
    NOW,
    PREFILL,
    ago,
    condition,
    event,
    head,
    node,
    operator,
    placed,
    pod,
    ray_cluster,
    ready,
    running,
    service,
    serving,
    snapshot,
    state,
    terminated,
    unplaced,
    waiting,
    worker,
)

_NO_VICTIMS = (
    "preemption: 0/3 nodes are available: 1 No preemption victims found for incoming pod, "
    "2 Preemption is not helpful for scheduling."
)
_OTHERS = "2 node(s) didn't match Pod's node affinity/selector"


def _unplaced_prefill(reasons: str, **changes: object) -> Snapshot:
    """The prefill pod has no node; the scheduler's reasons, as 1.33 writes them."""
    message = f"0/3 nodes are available: {reasons}. {_NO_VICTIMS}"
    return snapshot(pods=(head(), worker("decode"), unplaced(pod(PREFILL, "prefill"), message)), **changes)


def _nodes(**prefill: object) -> tuple[shapes.Object, ...]:
    return (node("system"), node("decode"), node("prefill", **prefill))


def _holder(name: str = "trainer-0", resource: str = "nvidia.com/gpu") -> shapes.Object:
    return {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "research", "uid": name},
        "spec": {
            "nodeName": NODES["prefill"],
            "containers": [{"name": "c", "resources": {"limits": {resource: "1"}}}],
        },
        "status": {"phase": "Running"},
    }


def _second_cluster() -> Snapshot:
    """A change of a pod under `upgradeStrategy: NewCluster` while all GPUs are in use."""
    new = f"{NAME}-b9c4d"
    message = f"0/3 nodes are available: 1 Insufficient nvidia.com/gpu, {_OTHERS}."
    active = serving("RUNNING", Prefill=("HEALTHY", ""), Decode=("HEALTHY", ""))
    pending = {"rayClusterName": new, "rayClusterStatus": {}}
    told = service(
        ready=condition("Ready", is_true=True, reason="NonZeroServeEndpoints"), active=active, pending=pending
    )
    new_head = placed(
        pod(f"{new}-head-1", "headgroup", cluster=new),
        NODES["system"],
        main=state("ray-head", running(), ready=True),
    )
    new_head["status"]["conditions"].append(condition("Ready", is_true=True))
    later = ray_cluster(new)
    later["metadata"]["creationTimestamp"] = ago(100)
    return snapshot(
        service=told,
        clusters=(ray_cluster(), later),
        pods=(
            head(),
            new_head,
            ready(worker("decode")),
            ready(worker("prefill")),
            unplaced(pod(f"{new}-prefill-worker-1", "prefill", cluster=new), message),
        ),
    )


def _head_killed() -> Snapshot:
    """A head that was killed for memory where the autoscaler's version 2 has set restartPolicy Never."""
    dead = head(state("ray-head", terminated(137, "OOMKilled")))
    dead["spec"]["restartPolicy"] = "Never"
    dead["status"]["phase"] = "Failed"
    return snapshot(pods=(dead, worker("decode"), worker("prefill")))


def _deleted(made: shapes.Object, seconds: float, *finalizers: str) -> shapes.Object:
    made["metadata"] |= {"deletionTimestamp": ago(seconds), "finalizers": list(finalizers)}
    return made


def _stuck_redis() -> Snapshot:
    held = _deleted(ray_cluster(), 900, "ray.io/gcs-ft-redis-cleanup-finalizer")
    failed = event(
        held,
        "FailedToCreateRedisCleanupJob",
        f"Failed to create Redis cleanup Job inference/{CLUSTER}-redis-cleanup, jobs.batch is forbidden: "
        f"exceeded quota",
    )
    gone = _deleted(service(), 900, "ray.io/rayservice-finalizer")
    return snapshot(service=None, clusters=(held,), pods=(), events=(failed,)) if gone else snapshot()


def _staging(
    *lines: str, code: int | None = None, restarts: int = 0, size: int | None = 19_320_000_000
) -> Snapshot:
    """The prefill pod fetches the model (`code` None), or failed to."""
    current = (
        running(90)
        if code is None
        else waiting("CrashLoopBackOff", "back-off 5m0s restarting failed container=stage-model")
    )
    last = None if code is None else terminated(code, message="\n".join(lines[-1:]))
    init = [state("wait-gcs-ready", DONE), state("stage-model", current, last=last, restarts=restarts)]
    fetching = worker("prefill", state("ray-worker", waiting("PodInitializing")), init=init)
    return snapshot(
        pods=(head(), worker("decode"), fetching),
        lines={f"{PREFILL}/stage-model": tuple(lines)},
        checkpoint_bytes=size,
    )


def _staging_again(message: str) -> Snapshot:
    """The model is fetched once more, after it failed."""
    again = state("stage-model", running(2), last=terminated(1, message=message), restarts=1)
    init = [state("wait-gcs-ready", DONE), again]
    fetching = worker("prefill", state("ray-worker", waiting("PodInitializing")), init=init)
    return snapshot(pods=(head(), worker("decode"), fetching))


def _pulling(*events: shapes.Object, message: str = "", reason: str = "ContainerCreating") -> Snapshot:
    init = [state("wait-gcs-ready", waiting(reason, message))]
    pulled = worker("prefill", state("ray-worker", waiting("PodInitializing")), init=init)
    return snapshot(pods=(head(), worker("decode"), pulled), events=events)


def _deploying(
    status: str = "UPDATING", message: str = "", engine: tuple[str, ...] = (), app: str = "DEPLOYING"
) -> Snapshot:
    told = serving(app, Prefill=(status, message), Decode=("UPDATING", ""))
    return snapshot(service=service(pending=told), engine={PREFILL: engine} if engine else {})


def _running(ready_condition: shapes.Object, *, pods: tuple[shapes.Object, ...] | None = None) -> Snapshot:
    active = serving("RUNNING", Prefill=("HEALTHY", ""), Decode=("HEALTHY", ""))
    usual = (head(), ready(worker("decode")), ready(worker("prefill")))
    return snapshot(
        service=service(ready=ready_condition, active=active), pods=usual if pods is None else pods
    )


def _with_root_path() -> Snapshot:
    seen = _running(
        condition("Ready", is_true=False, reason="Initializing"),
        pods=(head(), worker("decode"), worker("prefill")),
    )
    assert seen.service is not None
    config = seen.service["spec"]["serveConfigV2"].replace(
        "http_options:\n", "http_options:\n  root_path: /llm\n"
    )
    assert "root_path" in config
    seen.service["spec"]["serveConfigV2"] = config
    return seen


def _in_two_zones() -> Snapshot:
    return snapshot(nodes=(node("system"), node("decode", zone="us-east-2b"), node("prefill")))


def _without_efa() -> Snapshot:
    plain = worker("prefill")
    for kind in ("requests", "limits"):
        plain["spec"]["containers"][0]["resources"][kind].pop("vpc.amazonaws.com/efa", None)
    return snapshot(pods=(head(), worker("decode"), plain))


def _all_devices_mounted() -> Snapshot:
    seeing = worker("prefill")
    seeing["spec"]["volumes"].append({"name": "ib", "hostPath": {"path": "/dev/infiniband"}})
    return snapshot(pods=(head(), worker("decode"), seeing))


def _unlike_nodes() -> Snapshot:
    crashing = worker(
        "prefill",
        state(
            "ray-worker",
            waiting("CrashLoopBackOff", "back-off 5m0s restarting failed container=ray-worker"),
            last=terminated(1, message="Segmentation fault"),
            restarts=4,
        ),
    )
    rolled = node("prefill", name="ip-10-0-2-22")
    rolled["status"]["nodeInfo"]["osImage"] = "Amazon Linux 2023.10.20260901"
    return snapshot(
        pods=(head(), worker("decode"), crashing),
        nodes=(node("system"), node("decode"), node("prefill"), rolled),
    )


_TRACEBACK = (
    "A replica failed to start with exception. Retrying 2 more time(s). Error:\n"
    "ray::ServeReplica:diptych:Prefill.initialize_and_get_metadata() (pid=811, ip=10.0.2.20)\n"
    '  File "/opt/venv/lib/python3.13/site-packages/ray/serve/_private/replica.py", line 1012, in initialize\n'
    "RuntimeError: {words}\n"
)
_UNPLACED_REPLICA = (
    "Deployment 'Prefill' in application 'diptych' has 1 replicas that have taken more than 30s to be "
    "scheduled. This may be "
    "due to waiting for the cluster to auto-scale or for a runtime environment to be installed. Resources "
    "required for each "
    "replica: {required}, total resources available: {there}. Use `ray status` for more details."
)
_NOT_FOUND = (
    f'Back-off pulling image "{IMAGE}": ErrImagePull: rpc error: code = NotFound desc = failed to pull and '
    f'unpack image "{IMAGE}": '
    f'failed to resolve reference "{IMAGE}": {IMAGE}: not found'
)
_DENIED = (
    f'Back-off pulling image "{IMAGE}": ErrImagePull: failed to pull and unpack image "{IMAGE}": failed to '
    f"resolve reference "
    f'"{IMAGE}": pull access denied, repository does not exist or may require authorization: server message: '
    "insufficient_scope: authorization failed"
)


@dataclass(frozen=True)
class Case:
    """What is seen, and words that must be in the sentence and in what to do."""

    seen: Callable[[], Snapshot]
    told: tuple[str, ...]
    do: tuple[str, ...] = ()
    is_fatal: bool = False


CASES = {
    # The operator and the RayService
    "no service": Case(
        lambda: Snapshot(NAME, "inference"),
        (f"RayService {NAME}", "not in namespace inference"),
        ("diptych up",),
    ),
    "no operator": Case(
        lambda: snapshot(service=_unseen(), operator=(), clusters=(), pods=()),
        (f"RayService {NAME}", "no KubeRay operator"),
        ("--step operator",),
    ),
    "E6 operator without rights to see": Case(
        lambda: snapshot(service=_unseen(), clusters=(), pods=()),
        (f"RayService {NAME}", "not looked at by the KubeRay operator", "kuberay-operator-5d8f7b-abcde"),
        ("watch the namespace inference", "rights"),
    ),
    "operator crashes": Case(
        lambda: snapshot(service=_unseen(), clusters=(), pods=(), operator=(_crashing_operator(),)),
        ("kuberay-operator-5d8f7b-abcde", "operator", "failed 5 times"),
        (),
        True,
    ),
    "validation": Case(
        lambda: snapshot(
            service=service(
                ready=condition(
                    "Ready",
                    is_true=False,
                    reason="ValidationFailed",
                    message="spec.rayClusterConfig.headGroupSpec.headService.metadata.name should not be set",
                )
            )
        ),
        (f"RayService {NAME}", "refused by KubeRay", "headService.metadata.name"),
        ("Correct the document",),
        True,
    ),
    "initializing timeout": Case(
        lambda: snapshot(
            clusters=(),
            pods=(),
            service=service(
                ready=condition(
                    "Ready",
                    is_true=False,
                    reason="InitializingTimeout",
                    message=(
                        "RayService failed to become ready within the configured timeout of 51m26s. Time spent "
                        "initializing: 51m28s"
                    ),
                )
            ),
        ),
        (f"RayService {NAME}", "not become ready in time", "51m26s"),
        ("diptych down --step service", "diptych up"),
        True,
    ),
    "E4 an operator that does not wait": Case(
        lambda: snapshot(operator=(_old_operator(),)),
        ("kuberay-operator-5d8f7b-abcde", "v0.6.0", "replaces a Ray cluster that takes long to load"),
        ("--step operator",),
    ),
    "E4 thresholds that nobody reads": Case(
        lambda: _with_threshold(),
        (f"RayService {NAME}", "not become ready in time"),
        ("serviceUnhealthySecondThreshold", "no effect", "ray.io/initializing-timeout"),
        True,
    ),
    "suspended": Case(lambda: _suspended(), (f"RayService {NAME}", "is suspended"), ("spec.suspend",)),
    # RayClusters
    "E1 second cluster": Case(
        _second_cluster,
        (f"{NAME}-b9c4d-prefill-worker-1", "1 GPU", CLUSTER, "second Ray cluster"),
        ("in-place", "Free as much"),
    ),
    "E3 one cluster more for each change": Case(
        lambda: snapshot(clusters=tuple(ray_cluster(f"{NAME}-{n}") for n in ("aaaaa", "bbbbb", "x7k2q"))),
        (f"RayCluster {CLUSTER}", "one of 3", "each change made one more"),
        ("Wait",),
    ),
    "E3 rollback": Case(lambda: _rolling_back(), (f"RayService {NAME}", "goes back"), ("Wait",)),
    "E6 operator may not make pods": Case(
        lambda: snapshot(
            pods=(),
            clusters=(
                ray_cluster(
                    CLUSTER,
                    condition(
                        "ReplicaFailure",
                        is_true=True,
                        reason="FailedCreateHeadPod",
                        message=(
                            "failed to create head pod: pods is forbidden: User "
                            '"system:serviceaccount:kuberay-system:kuberay-operator" '
                            'cannot create resource "pods" in API group "" in the namespace "inference"'
                        ),
                    ),
                ),
            ),
        ),
        (f"RayCluster {CLUSTER}", "operator lacks rights"),
        ("ClusterRole",),
    ),
    "quota": Case(
        lambda: snapshot(
            pods=(),
            clusters=(
                ray_cluster(
                    CLUSTER,
                    condition(
                        "ReplicaFailure",
                        is_true=True,
                        reason="FailedCreateWorkerPod",
                        message=(
                            'failed to create worker pod: pods "ray-llm-x" is forbidden: exceeded quota: gpus, '
                            "requested: "
                            "requests.nvidia.com/gpu=1, used: requests.nvidia.com/gpu=2, limited: "
                            "requests.nvidia.com/gpu=2"
                        ),
                    ),
                ),
            ),
        ),
        (f"RayCluster {CLUSTER}", "quota", "requests.nvidia.com/gpu=2"),
        ("Raise the quota",),
    ),
    "E7 head never ready": Case(
        lambda: _unready_head("Readiness probe failed: HTTP probe failed with statuscode: 503"),
        (f"pod {HEAD}", "not been ready for 10 min", "statuscode: 503"),
        ("diptych logs ray",),
    ),
    "E10 image without wget": Case(
        lambda: _unready_head("Readiness probe failed: sh: wget: command not found"),
        (f"pod {HEAD}", "image has no Ray, vLLM, NIXL or wget"),
        ("image.name",),
    ),
    "E10 image without ray": Case(
        lambda: snapshot(
            pods=(
                head(
                    state(
                        "ray-head",
                        waiting("CrashLoopBackOff", "back-off 10s"),
                        last=terminated(127, message="/bin/bash: line 1: ray: command not found"),
                        restarts=3,
                    )
                ),
            )
        ),
        (f"pod {HEAD}", "image has no Ray"),
        ("image.name",),
        True,
    ),
    "E11 head out of memory, again and again": Case(
        lambda: snapshot(
            pods=(
                head(
                    state(
                        "ray-head",
                        waiting("CrashLoopBackOff", "back-off 40s"),
                        last=terminated(137, "OOMKilled"),
                        restarts=3,
                    )
                ),
            )
        ),
        (f"pod {HEAD}", "OOMKilled", "8 GiB"),
        ("kubernetes.head_memory",),
        True,
    ),
    "E11 head stays dead": Case(
        _head_killed, (f"pod {HEAD}", "OOMKilled"), ("Nothing starts this head again", "delete the pod"), True
    ),
    "E12 I6 cluster stuck": Case(
        _stuck_redis,
        (
            f"RayCluster {CLUSTER}",
            "15 min",
            "gcs-ft-redis-cleanup-finalizer",
            "exceeded quota",
            "GPUs stay taken",
        ),
        (f"kubectl patch raycluster {CLUSTER} -n inference", "finalizers"),
        True,
    ),
    "T3 service held without operator": Case(
        lambda: snapshot(service=_deleted(service(), 120, "ray.io/rayservice-finalizer"), operator=()),
        (f"RayService {NAME}", "no KubeRay operator", "ray.io/rayservice-finalizer"),
        ("--step operator",),
    ),
    "T3 service waits for its clusters": Case(
        lambda: snapshot(service=_deleted(service(), 20, "ray.io/rayservice-finalizer")),
        (f"RayService {NAME}", f"waits for RayCluster {CLUSTER}"),
    ),
    "E16 a worker finishes its answers": Case(
        lambda: snapshot(pods=(head(), _ending_pod(20, 190), worker("prefill"))),
        (f"pod {DECODE}", "finishes what it is answering", "3 min 10 s at most"),
    ),
    "a worker that does not end": Case(
        lambda: snapshot(pods=(head(), _ending_pod(900, 190), worker("prefill"))),
        (f"pod {DECODE}", "15 min", "has not ended"),
        (f"kubectl delete pod {DECODE} -n inference --force",),
    ),
    # Pods without a node
    "no such node": Case(
        lambda: _unplaced_prefill(
            "3 node(s) didn't match Pod's node affinity/selector", nodes=(node("system"), node("decode"))
        ),
        (f"pod {PREFILL}", "diptych.dev/phase=prefill"),
        ("nodes.selector",),
    ),
    "B13 huge pages": Case(
        lambda: _asking_for_huge_pages(),
        (f"pod {PREFILL}", "5 GiB of hugepages-2Mi", NODES["prefill"], "no autoscaler foresees"),
        ("hugepages_2mi",),
    ),
    "T1 the EFA plugin and the GPU taint": Case(
        lambda: _unplaced_prefill(
            "1 Insufficient vpc.amazonaws.com/efa, 2 node(s) didn't match Pod's node affinity/selector",
            nodes=_nodes(
                efa="0", taints=[{"key": "nvidia.com/gpu", "value": "true", "effect": "NoSchedule"}]
            ),
        ),
        (
            f"pod {PREFILL}",
            "1 EFA interface (vpc.amazonaws.com/efa)",
            "none on",
            "does not tolerate the taint nvidia.com/gpu=true:NoSchedule",
        ),
        ("Remove the taint",),
    ),
    "B21 no EFA plugin": Case(
        lambda: _unplaced_prefill(
            "1 Insufficient vpc.amazonaws.com/efa, 2 node(s) didn't match Pod's node affinity/selector",
            nodes=_nodes(efa="0"),
        ),
        (f"pod {PREFILL}", "EFA device plugin is not at work"),
        ("aws-efa-k8s-device-plugin",),
    ),
    "no GPU plugin": Case(
        lambda: _unplaced_prefill(
            "1 Insufficient nvidia.com/gpu, 2 node(s) didn't match Pod's node affinity/selector",
            nodes=_nodes(gpu="0"),
        ),
        (f"pod {PREFILL}", "1 GPU (nvidia.com/gpu)", "NVIDIA device plugin"),
        ("Install",),
    ),
    "GPU in others' hands": Case(
        lambda: _unplaced_prefill(
            "1 Insufficient nvidia.com/gpu, 2 node(s) didn't match Pod's node affinity/selector",
            others=(_holder(),),
        ),
        (f"pod {PREFILL}", "needs 1 GPU", NODES["prefill"], "by research/trainer-0"),
        ("add nodes",),
    ),
    "too small nodes": Case(
        lambda: _unplaced_prefill(
            "1 Insufficient memory, 2 node(s) didn't match Pod's node affinity/selector",
            nodes=_nodes(memory="60Gi"),
        ),
        (f"pod {PREFILL}", "113 GiB of memory", "the most on", "60 GiB"),
        ("larger nodes",),
    ),
    "taint, as named until 1.33": Case(
        lambda: _unplaced_prefill(
            "1 node(s) had untolerated taint {dedicated: research}, 2 node(s) didn't match Pod's node "
            "affinity/selector",
            nodes=_nodes(taints=[{"key": "dedicated", "value": "research", "effect": "NoSchedule"}]),
        ),
        (f"pod {PREFILL}", "dedicated=research:NoSchedule", NODES["prefill"]),
        ("nodes.tolerations",),
    ),
    "taint, unnamed as of 1.34": Case(
        lambda: _unplaced_prefill(
            "1 node(s) had untolerated taint(s), 2 node(s) didn't match Pod's node affinity/selector. no "
            "new claims to deallocate, x",
            nodes=_nodes(taints=[{"key": "dedicated", "value": "research", "effect": "NoSchedule"}]),
        ),
        (f"pod {PREFILL}", "dedicated=research:NoSchedule"),
        ("nodes.tolerations",),
    ),
    "a node in trouble": Case(
        lambda: _unplaced_prefill(
            "1 node(s) had untolerated taint {node.kubernetes.io/unreachable: }, 2 node(s) didn't match "
            "Pod's node affinity/selector",
            nodes=_nodes(taints=[{"key": "node.kubernetes.io/unreachable", "effect": "NoSchedule"}]),
        ),
        (f"pod {PREFILL}", "node.kubernetes.io/unreachable", "trouble"),
        ("kubectl describe node",),
    ),
    "a cordoned node": Case(
        lambda: _cordoned(), (f"pod {PREFILL}", NODES["prefill"], "cordoned"), ("uncordon",)
    ),
    "one node for two pods": Case(
        lambda: _two_on_one_node(),
        ("prefill-worker-2", "a node of its own", NODES["prefill"]),
        ("prefill.num_replicas",),
    ),
    "no volume": Case(
        lambda: _unplaced_prefill("pod has unbound immediate PersistentVolumeClaims"),
        (f"pod {PREFILL}", "no volume"),
        ("kubectl get pvc",),
    ),
    "scale-up": Case(lambda: _scaling_up(), (f"pod {PREFILL}", "being added", "0->1")),
    # Images
    "image pull": Case(
        lambda: _pulling(event(worker("prefill"), "Pulling", f'Pulling image "{IMAGE}"', since_s=180)),
        (f"pod {PREFILL}", IMAGE, NODES["prefill"], "3 min"),
    ),
    "image pull with a known size": Case(
        lambda: _pulling(
            event(
                worker("decode"),
                "Pulled",
                f'Successfully pulled image "{IMAGE}" in 3m2s (3m2s including waiting). '
                "Image size: 12194783012 bytes.",
                since_s=200,
                host="ip-10-0-2-21",
            ),
            event(worker("prefill"), "Pulling", f'Pulling image "{IMAGE}"', since_s=100),
        ),
        (f"pod {PREFILL}", "1 min 40 s", "node ip-10-0-2-21 took 12.2 GB in 3 min 2 s, 67 MB/s"),
    ),
    "no such image": Case(
        lambda: _pulling(reason="ImagePullBackOff", message=_NOT_FOUND),
        (f"pod {PREFILL}", IMAGE, "no such image or tag"),
        ("image.name",),
        True,
    ),
    "private image": Case(
        lambda: _pulling(reason="ErrImagePull", message=_DENIED),
        (f"pod {PREFILL}", IMAGE, "does not let it in"),
        ("image.pull_secret",),
        True,
    ),
    "registry out of reach": Case(
        lambda: _pulling(
            reason="ErrImagePull",
            message=f'failed to do request: Head "https://x/{IMAGE}": dial tcp 1.2.3.4:443: i/o timeout',
        ),
        (f"pod {PREFILL}", "can't be reached from the node"),
        ("NAT gateway",),
    ),
    "registry turns away": Case(
        lambda: _pulling(reason="ImagePullBackOff", message="toomanyrequests: Data limit exceeded"),
        (f"pod {PREFILL}", "too many requests"),
        ("It tries again",),
    ),
    "image for other processors": Case(
        lambda: _pulling(reason="ErrImagePull", message="no match for platform in manifest: not found"),
        (f"pod {PREFILL}", "kind of processor"),
        ("x86-64",),
        True,
    ),
    "disk full while pulling": Case(
        lambda: _pulling(
            reason="ErrImagePull", message="failed to extract layer: write /var/lib: no space left on device"
        ),
        (f"pod {PREFILL}", "disk is full"),
        ("nodes.volume_size",),
        True,
    ),
    "missing secret": Case(
        lambda: _pulling(reason="CreateContainerConfigError", message='secret "ray-llm-hf-token" not found'),
        (f"pod {PREFILL}", "wait-gcs-ready", 'secret "ray-llm-hf-token" not found'),
        ("--step service",),
    ),
    "missing volume": Case(
        lambda: _pulling(
            event(
                worker("prefill"),
                "FailedMount",
                'MountVolume.SetUp failed for volume "api-keys" : secret "ray-llm-api-keys" not found',
            )
        ),
        (f"pod {PREFILL}", "can't have a volume", "ray-llm-api-keys"),
        ("--step service",),
    ),
    "no addresses left": Case(
        lambda: _pulling(
            event(
                worker("prefill"),
                "FailedCreatePodSandBox",
                'Failed to create pod sandbox: plugin type="aws-cni" name="aws-cni" failed (add): add cmd: '
                "failed to assign an IP address to container",
            )
        ),
        (f"pod {PREFILL}", "can't have a network", "IP address"),
        ("out of addresses",),
    ),
    # Staging and loading
    "waits for the head": Case(
        lambda: snapshot(
            pods=(
                head(),
                worker("decode"),
                worker(
                    "prefill",
                    state("ray-worker", waiting("PodInitializing")),
                    init=[state("wait-gcs-ready", running(30))],
                ),
            )
        ),
        (f"pod {PREFILL}", "for 30 s", "Ray head to answer"),
    ),
    "staging, cold": Case(
        lambda: _staging("stage: 4.83 GB are here, 402 MB/s"),
        (f"pod {PREFILL}", NODES["prefill"], "4.8 of 19.3 GB at 402 MB/s", "36 s left"),
    ),
    "staging, warm": Case(
        lambda: _staging("stage: Qwen/Qwen3.5-9B is in /models/Qwen--Qwen3.5-9B/main already"),
        (f"pod {PREFILL}", "already (warm)"),
    ),
    "G5 staging is slow": Case(
        lambda: _staging("stage: 1.20 GB are here, 20 MB/s"),
        (f"pod {PREFILL}", "20 MB/s, which is slow", "15 min 6 s left"),
    ),
    "staging waits for its turn": Case(
        lambda: _staging("stage: another pod on this node is fetching the model: waiting for it"),
        (f"pod {PREFILL}", "another pod of its node"),
    ),
    "G1 the hub turns away": Case(
        lambda: _staging(
            "stage: Qwen/Qwen3.5-9B could not be fetched in 6 attempts: 429 Client Error: Too Many "
            "Requests for url: https://huggingface.co/x",
            code=1,
            restarts=3,
        ),
        (f"pod {PREFILL}", "too many requests", "429"),
        ("model.token_env",),
    ),
    "G2 a gated model": Case(
        lambda: _staging(
            "stage: meta-llama/Llama-3.1-8B is gated: accept its terms on its page and set model.token_*",
            code=1,
            restarts=1,
        ),
        (f"pod {PREFILL}", "gated"),
        ("Accept the model's terms", "model.token_secret"),
        True,
    ),
    "G2 a token that is refused": Case(
        lambda: _staging(
            "stage: x could not be fetched in 6 attempts: 401 Client Error: Unauthorized", code=1, restarts=1
        ),
        (f"pod {PREFILL}", "does not accept the token"),
        ("valid one",),
        True,
    ),
    "G2 tried again with the same token": Case(
        lambda: _staging_again("stage: m is gated: accept its terms on its page and set model.token_*"),
        (f"pod {PREFILL}", "fetches the model", "again; before, it failed: the model is gated"),
        ("Accept the model's terms",),
    ),
    "bucket without rights": Case(
        lambda: _staging(
            "stage: s3://b/f can't be read with the rights of this pod: An error occurred (AccessDenied)",
            code=1,
            restarts=1,
        ),
        (f"pod {PREFILL}", "may not read the bucket"),
        ("Pod Identity",),
        True,
    ),
    "node's disk too small": Case(
        lambda: _staging(
            "stage: the node's disk has 12.0 GB free and 20.3 GB are needed: raise nodes.volume_size, or "
            "set staging.path to a larger disk",
            code=1,
            restarts=1,
        ),
        (f"pod {PREFILL}", "disk is full", "20.3 GB are needed"),
        ("nodes.volume_size",),
        True,
    ),
    "loading": Case(
        lambda: _deploying(
            engine=(
                "(EngineCore pid=912) INFO 11-30 12:00:00 [gpu_model_runner.py:5380] Starting to load "
                "model /models/Qwen--Qwen3.5-9B/main...",
                "(EngineCore pid=912) INFO 11-30 12:00:01 [weight_utils.py:853] Filesystem type for "
                "checkpoints: EXT4. Checkpoint size: 17.99 GiB. Available RAM: 100.10 GiB.",
                "\rLoading safetensors checkpoint shards:  50% Completed | 2/4 [00:10<00:10,  5.10s/it]",
            )
        ),
        (f"prefill engine in pod {PREFILL}", "2 of 4 files, 50 %", "966 MB/s", "10 s left"),
    ),
    "G4 loading from a network disk": Case(
        lambda: _deploying(
            engine=(
                "INFO 11-30 12:00:01 [weight_utils.py:853] Filesystem type for checkpoints: NFS4. "
                "Checkpoint size: 894.00 GiB. Available RAM: 100.10 GiB.",
                "Loading safetensors checkpoint shards:   2% Completed | 1/50 [01:00<43:00, 52.00s/it]",
            )
        ),
        (f"pod {PREFILL}", "43 min 0 s left", "network disk (NFS4)", "staging.enabled: true"),
    ),
    "weights are read": Case(
        lambda: _deploying(
            engine=("INFO 11-30 12:00:30 [default_loader.py:431] Loading weights took 18.35 seconds",)
        ),
        (f"pod {PREFILL}", "read the weights, in 18.35 s"),
    ),
    "waits for the proof": Case(
        lambda: _deploying(
            engine=("INFO 2026-11-30 12:00:30 Not up yet, for 20 s: a KV transfer from k2v8x1qz",)
        ),
        (f"pod {PREFILL}", "proof of a KV transfer", "k2v8x1qz"),
    ),
    # Serve
    "nothing told yet": Case(
        lambda: snapshot(service=service(pending={"rayClusterName": CLUSTER})),
        (f"RayService {NAME}", "has not told of the application"),
    ),
    "E5 configuration refused": Case(
        lambda: _refused_config(),
        (f"RayService {NAME}", "can't hand its Serve configuration", "Prefil"),
        ("diptych logs ray",),
    ),
    "E19 a replica fails, tries again": Case(
        lambda: _deploying(
            message=_TRACEBACK.format(
                words="Engine core initialization failed. See root cause above. Failed core proc(s): {}"
            ),
            engine=(
                "(EngineCore pid=9) ERROR 11-30 12:00:00 [core.py:935] ValueError: Unknown engine argument: swap_space",
            ),
        ),
        ("Serve deployment Prefill", "failed to start", "2 more attempts", "swap_space"),
        ("engine_kwargs",),
    ),
    "E19 a replica failed three times": Case(
        lambda: _deploying(
            "DEPLOY_FAILED",
            "The deployment failed to start 3 times in a row. This may be due to a problem with its constructor or "
            "initial health check failing. See controller logs for details. Error:\nray::X\nValueError: "
            "block_size 17 is not supported\n",
            app="DEPLOY_FAILED",
        ),
        ("Serve deployment Prefill", "failed to start 3 times in a row", "block_size 17 is not supported"),
        ("diptych logs prefill",),
        True,
    ),
    "E19 no detail available": Case(
        lambda: _deploying(
            "DEPLOY_FAILED",
            "The deployment failed to start 3 times in a row. See controller logs for details. Error:\nno "
            "detail available",
            app="DEPLOY_FAILED",
            engine=("ERROR 11-30 12:00:00 [core.py:1] RuntimeError: cannot open shared object libfoo.so",),
        ),
        ("Serve deployment Prefill", "cannot open shared object libfoo.so"),
        (),
        True,
    ),
    "E19 the application can't be built": Case(
        lambda: _unbuildable(),
        ("Serve application diptych", "can't be built", "No module named 'diptych'"),
        ("diptych logs",),
        True,
    ),
    "A19 too little GPU memory": Case(
        lambda: _deploying(
            message=_TRACEBACK.format(
                words=(
                    "Free memory on device cuda:0 (10.1/22.03 GiB) on startup is less than desired GPU memory "
                    "utilization (0.9, 19.83 GiB)."
                )
            )
        ),
        ("Serve deployment Prefill", "GPU has too little free memory"),
        ("gpu_memory_utilization",),
    ),
    "E15 shared memory": Case(
        lambda: _deploying(
            message=_TRACEBACK.format(
                words=(
                    "NCCL error: unhandled system error. Error while creating shared memory segment "
                    "/dev/shm/nccl-x (size 9637888)"
                )
            )
        ),
        ("Serve deployment Prefill", "/dev/shm", "NCCL"),
        ("medium: Memory",),
    ),
    "B15 no EFA device in the pod": Case(
        lambda: _deploying(
            message=_TRACEBACK.format(words="libfabric: No network devices found; Topology discovery failed")
        ),
        ("Serve deployment Prefill", "no EFA device in the pod"),
        ("vpc.amazonaws.com/efa",),
    ),
    "B16 libraries that don't belong together": Case(
        lambda: _deploying(
            message=_TRACEBACK.format(
                words="/lib64/libefa.so.1: version `EFA_1.4' not found (required by libfabric.so.1)"
            )
        ),
        ("Serve deployment Prefill", "do not belong together"),
        ("EFA installer",),
    ),
    "B22 locked memory": Case(
        lambda: _deploying(
            message=_TRACEBACK.format(words="UCX: RLIMIT_MEMLOCK is 64 KB; memlock limit is too low")
        ),
        ("Serve deployment Prefill", "lock too little memory"),
        ("IPC_LOCK",),
    ),
    "E14 a resource that nobody offers": Case(
        lambda: _deploying(
            message=_UNPLACED_REPLICA.format(
                required='{"CPU": 1.0, "accelerator_type_h100": 0.001}', there='{"CPU": 2.0}'
            )
        ),
        ("Serve deployment Prefill", "'accelerator_type_h100'", "no worker group offers"),
        ("Correct the resource",),
    ),
    "E14 a bundle": Case(
        lambda: _deploying(message=_UNPLACED_REPLICA.format(required='[{"decod": 0.001}]', there="{}")),
        ("Serve deployment Prefill", "'decod'", "no worker group offers"),
        ("Correct the resource",),
    ),
    "a replica without a place yet": Case(
        lambda: _deploying(message=_UNPLACED_REPLICA.format(required='[{"prefill": 0.001}]', there="{}")),
        ("Serve deployment Prefill", "Ray has not placed yet", "0.001 prefill"),
        ("ray status",),
    ),
    "E8 a replica that stays unwell": Case(
        lambda: _unwell(),
        ("Serve deployment Decode", "health check fails", f"pod {DECODE}"),
        ("delete the pod",),
    ),
    # Up, and not ready
    "E2 no endpoints": Case(
        lambda: _running(
            condition(
                "Ready",
                is_true=False,
                reason="ZeroServeEndpoints",
                message="Number of serve endpoints dropped to 0",
            ),
            pods=(head(), worker("decode"), worker("prefill")),
        ),
        (f"RayService {NAME}", f"no pod behind {NAME}-serve-svc is ready", DECODE),
        ("diptych logs ray",),
    ),
    "E20 root_path": Case(
        _with_root_path, (f"RayService {NAME}", "root_path", "/-/healthz"), ("Remove `root_path`",)
    ),
    "T4 proxies are starting": Case(
        lambda: _running(
            condition("Ready", is_true=False, reason="Initializing"),
            pods=(head(), worker("decode"), worker("prefill")),
        ),
        (f"RayService {NAME}", "Serve proxies on", DECODE, "starting"),
    ),
    "T6 ready is of the old generation": Case(
        lambda: _stale(), (f"RayService {NAME}", "waits for the KubeRay operator")
    ),
    # Nodes and transport
    "B14 two zones": Case(
        _in_two_zones,
        ("service", f"{DECODE} in us-east-2b", f"{PREFILL} in us-east-2a", "EFA does not leave a zone"),
        ("`zone`",),
    ),
    "B21 a phase without EFA": Case(
        _without_efa, (f"pod {PREFILL}", "no EFA interface", DECODE), ("nodes with EFA",)
    ),
    "B1 all devices mounted": Case(
        _all_devices_mounted, (f"pod {PREFILL}", "/dev/infiniband"), ("Take that volume out",)
    ),
    "E21 another node image": Case(
        _unlike_nodes,
        (f"pod {PREFILL}", "failed 4 times", "Segmentation fault"),
        ("2023.10.20260901", "2023.9.20260810"),
        True,
    ),
    "a node that is lost": Case(
        lambda: _lost_node(),
        (f"pod {PREFILL}", NODES["prefill"], "Kubelet stopped posting node status"),
        ("Replace the node",),
    ),
    "evicted": Case(
        lambda: _failed_pod(
            "Evicted",
            "The node was low on resource: ephemeral-storage. Threshold quantity: 8586510417, available: 7842016Ki.",
        ),
        (f"pod {PREFILL}", "evicted", "ephemeral-storage"),
        ("nodes.volume_size",),
    ),
    "devices gone after placing": Case(
        lambda: _failed_pod(
            "UnexpectedAdmissionError",
            "Pod was rejected: Allocate failed due to requested number of devices unavailable for "
            "nvidia.com/gpu. Requested: 1, Available: 0, which is unexpected",
        ),
        (f"pod {PREFILL}", "turned away", "nvidia.com/gpu"),
        ("device plugin",),
    ),
}


def _unseen() -> shapes.Object:
    made = service()
    del made["status"]
    return made


def _crashing_operator() -> shapes.Object:
    made = operator()
    last = terminated(1, message='panic: no matches for kind "RayCronJob" in version "ray.io/v1"')
    made["status"]["containerStatuses"] = [
        state("kuberay-operator", waiting("CrashLoopBackOff", "back-off"), last=last, restarts=5)
    ]
    return made


def _old_operator() -> shapes.Object:
    made = operator()
    made["spec"]["containers"][0]["image"] = "quay.io/kuberay/operator:v0.6.0"
    return made


def _with_threshold() -> Snapshot:
    told = condition(
        "Ready", is_true=False, reason="InitializingTimeout", message="RayService failed to become ready"
    )
    made = service(ready=told)
    made["spec"]["serviceUnhealthySecondThreshold"] = 1200
    return snapshot(service=made)


def _suspended() -> Snapshot:
    made = service(
        ready=condition("Ready", is_true=False, reason="SuspendComplete", message="RayService is suspended.")
    )
    made["status"]["conditions"].append(condition("Suspended", is_true=True, reason="SuspendComplete"))
    return snapshot(service=made, clusters=(), pods=())


def _rolling_back() -> Snapshot:
    made = service(ready=condition("Ready", is_true=True))
    made["status"]["conditions"].append(
        condition("RollbackInProgress", is_true=True, reason="DesiredClusterSpecChanged")
    )
    return snapshot(service=made)


def _unready_head(message: str) -> Snapshot:
    waits = head(state("ray-head", running(620)), is_ready=False, since_s=600)
    return snapshot(
        pods=(waits, worker("decode"), worker("prefill")), events=(event(waits, "Unhealthy", message),)
    )


def _ending_pod(ended_s: float, grace_s: int) -> shapes.Object:
    made = worker("decode")
    made["metadata"] |= {"deletionTimestamp": ago(ended_s - grace_s), "deletionGracePeriodSeconds": grace_s}
    return made


def _asking_for_huge_pages() -> Snapshot:
    seen = _unplaced_prefill(
        "1 Insufficient hugepages-2Mi, 2 node(s) didn't match Pod's node affinity/selector"
    )
    for kind in ("requests", "limits"):
        seen.pods[-1]["spec"]["containers"][0]["resources"][kind]["hugepages-2Mi"] = "5120Mi"
    return seen


def _cordoned() -> Snapshot:
    nodes = _nodes()
    nodes[-1]["spec"]["unschedulable"] = True
    return _unplaced_prefill(
        "1 node(s) were unschedulable, 2 node(s) didn't match Pod's node affinity/selector", nodes=nodes
    )


def _two_on_one_node() -> Snapshot:
    message = f"0/3 nodes are available: 1 node(s) didn't match pod anti-affinity rules, {_OTHERS}."
    second = unplaced(pod(f"{CLUSTER}-prefill-worker-2", "prefill"), message)
    return snapshot(pods=(head(), worker("decode"), worker("prefill"), second))


def _scaling_up() -> Snapshot:
    seen = _unplaced_prefill("3 node(s) didn't match Pod's node affinity/selector")
    told = event(
        seen.pods[-1], "TriggeredScaleUp", "pod triggered scale-up: [{eks-prefill-bad02f24 0->1 (max: 3)}]"
    )
    return _unplaced_prefill("3 node(s) didn't match Pod's node affinity/selector", events=(told,))


def _refused_config() -> Snapshot:
    made = service(pending={"rayClusterName": CLUSTER})
    message = (
        "Failed to update serve applications to the RayCluster inference/ray-llm-x7k2q, UpdateDeployments "
        "fail: 400 Bad Request "
        "ValueError: Deployment \"Prefil\" does not exist. Available: ['Prefill', 'Decode']"
    )
    return snapshot(service=made, events=(event(made, "FailedToUpdateServeApplications", message),))


def _unbuildable() -> Snapshot:
    message = (
        "Deploying app 'diptych' failed with exception:\nTraceback (most recent call last):\n"
        '  File "/opt/venv/lib/python3.13/site-packages/ray/serve/_private/application_state.py", line '
        "1700, in build_serve_application\n"
        "ModuleNotFoundError: No module named 'diptych'\n"
    )
    return snapshot(service=service(pending=serving("DEPLOY_FAILED", message)))


def _unwell() -> Snapshot:
    told = (
        "A replica's health check failed. This deployment will be UNHEALTHY until the replica recovers or a new "
        "deploy happens."
    )
    active = serving(
        "UNHEALTHY",
        "The deployments ['Decode'] are UNHEALTHY.",
        Prefill=("HEALTHY", ""),
        Decode=("UNHEALTHY", told),
    )
    ready_condition = condition("Ready", is_true=True, reason="NonZeroServeEndpoints")
    return snapshot(
        service=service(ready=ready_condition, active=active),
        pods=(head(), ready(worker("decode")), ready(worker("prefill"))),
    )


def _stale() -> Snapshot:
    seen = _running(condition("Ready", is_true=True, reason="NonZeroServeEndpoints"))
    assert seen.service is not None
    seen.service["metadata"] |= {
        "generation": 2,
        "managedFields": [{"manager": "diptych", "operation": "Apply", "time": ago(3)}],
    }
    return seen


def _lost_node() -> Snapshot:
    lost = node("prefill")
    lost["status"]["conditions"] = [
        {
            "type": "Ready",
            "status": "Unknown",
            "reason": "NodeStatusUnknown",
            "message": "Kubelet stopped posting node status.",
        }
    ]
    return snapshot(nodes=(node("system"), node("decode"), lost))


def _failed_pod(reason: str, message: str) -> Snapshot:
    made = worker("prefill")
    made["status"] |= {"phase": "Failed", "reason": reason, "message": message}
    return snapshot(pods=(head(), worker("decode"), made))


def _ids(name: str) -> list[str]:
    return [word for word in name.split() if word[0] in "ABEGIT" and word[1:].isdigit()]


def _parameters() -> list[object]:
    return [
        pytest.param(case, id=name, marks=[pytest.mark.report(report) for report in _ids(name)])
        for name, case in CASES.items()
    ]


@pytest.mark.parametrize("case", _parameters())
def test_what_is_in_the_way_is_named_with_its_object_cause_and_remedy(case: Case) -> None:
    found = first_blocker(case.seen(), NOW)

    assert found is not None
    for words in case.told:
        assert words.lower() in found.text.lower()
    for words in case.do:
        assert words in found.do
    assert found.is_fatal == case.is_fatal


@pytest.mark.parametrize("case", _parameters())
def test_it_is_one_sentence_of_words_and_no_dump(case: Case) -> None:
    found = first_blocker(case.seen(), NOW)

    assert isinstance(found, Blocker)
    assert "\n" not in found.text + found.do
    assert len(found.text) < 800
    assert found.text[0].isupper() and found.text.endswith((".", "…"))
    assert "None" not in found.text and "{'" not in found.text


@pytest.mark.report("T6")
@pytest.mark.parametrize(
    "seen",
    [
        pytest.param(_stale, id="generation not seen"),
        pytest.param(lambda: _deploying(), id="applications only pending"),
        pytest.param(_unwell, id="a deployment unwell"),
        pytest.param(_second_cluster, id="another cluster on its way"),
    ],
)
def test_a_service_is_not_ready_for_its_ready_condition_alone(seen: Callable[[], Snapshot]) -> None:
    assert not is_ready_strictly(seen())


def test_a_service_whose_newest_generation_serves_is_ready_and_has_no_blocker() -> None:
    seen = _running(condition("Ready", is_true=True, reason="NonZeroServeEndpoints"))

    assert is_ready_strictly(seen)
    assert first_blocker(seen, NOW) is None


@pytest.mark.report("T4")
def test_workers_that_run_without_being_ready_are_no_blocker_before_a_proxy_can_be_on_them() -> None:
    found = first_blocker(snapshot(), NOW)

    assert found is not None and "engine" in found.text
    assert "pod" not in found.where


def _fields_named_in(text: str) -> list[list[str]]:
    """Fields of the document that a hint names, as `nodes.selector`."""
    words = re.findall(r"`([a-z_0-9]+(?:\.[a-z_0-9]+)+)(?::[^`]*)?`", text)
    return [path for word in words if (path := word.split("."))[0] in Document.model_fields]


def _has_field(model: object, path: list[str]) -> bool:
    fields = getattr(model, "model_fields", {})
    if path[0] not in fields:
        return False
    kinds = [fields[path[0]].annotation, *get_args(fields[path[0]].annotation)]
    return len(path) == 1 or any(_has_field(kind, path[1:]) for kind in kinds)


def test_every_field_that_a_hint_names_is_one_of_the_document() -> None:
    hints = [each.do for case in CASES.values() if (each := first_blocker(case.seen(), NOW))]
    hints += [each.do for each in KNOWN]
    named = [path for hint in hints for path in _fields_named_in(hint)]

    assert len(named) > 15
    assert [".".join(path) for path in named if not _has_field(Document, path)] == []
