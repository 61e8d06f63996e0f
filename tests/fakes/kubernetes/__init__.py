"""A strict Kubernetes API for tests, and a scripted cluster behind it: scheduler, kubelets and KubeRay.

    with FakeKubernetes() as api, KubeRay(api) as cluster:
        install_operator(api)  # its CRDs, Deployment and namespace, as Helm would
        api.add_node("gpu-1", {"cpu": "31850m", "memory": "118312Mi", "nvidia.com/gpu": "1"}, labels={...})
        target = Target(api.kubeconfig(tmp_path / "kubeconfig"), None)

The API (`FakeKubernetes`) answers kr8s, the real kubectl and the real helm: discovery, lists by pages, watches, all
four patches, server-side apply with managers and conflicts, /status apart, generations, finalizers, owners, namespaces
that terminate, `dryRun`, selectors, logs, port-forwards, evictions, access reviews. It refuses what the real one
refuses, and unknown fields too, which the real one drops with a warning.

- Read: `api.get("RayService", name, namespace)` (None: not there), `api.all("Pod")`, `api.objects`, `api.nodes`, and
  `api.requests` (each with method, path, query, body, agent, content_type, status; dropped ones have status 0).
- Set: `api.put(object)` (with its status; validated), `api.delete(kind, name, namespace)`, `api.add_node(…)`.
- Who may: `FakeKubernetes(token="t")`, or what tells of a token whether it is good; HTTPS then, since no client shows
  a token over HTTP. `tls=True`, `api.denied.add(("create", "secrets"))`, and
  `api.kubeconfig(path, user={"exec": …}, trusted=False)`.
- What goes wrong on the way: `api.faults.append(Fault("PATCH", "*/rayservices/*", status=429, retry_after_s=1))`;
  status 0 drops the connection, None only delays, `times` counts down, `after=True` fails once the write is done.
  `api.go_away(3)`: nobody listens for 3 seconds. `api.forget_history()`: older watches get 410.
  `api.cut_forwards()`: port-forwards end.
- Ports: `api.backends[8000] = ("127.0.0.1", port)`: where a port-forward to port 8000 of a pod leads. Ray's pods
  listen on it once Serve's proxies answer (`api.listening`, by namespace and pod).
- Logs: `api.write_log(pod, namespace, container, "line", …, previous=False)`.

The cluster (`KubeRay`) lives by `Script`, given as `KubeRay(api, time_scale=…)` or set at any time:

- `time_scale`: seconds here for one of the cluster's (0.004: an `up` then takes about a second); `seconds["pull"]` and
  so on: how long things take there.
- `held = {"load"}`: nothing goes past that point until it is taken out: operator, schedule, pull, start, init, load,
  run, restart, terminate, finalize.
- `missing_images = {"*:nope"}`: ErrImagePull, ImagePullBackOff.
- `containers["*prefill*/stage-model"] = Behaviour(["stage: …"], exit_code=1, times=2)`: what containers write, and how
  they end. An init container or a pod that is to end does so with 0, others run on, unless said. A head that is
  OOMKilled: `containers["*-head/ray-head"] = Behaviour(exit_code=137, reason="OOMKilled")`.
- `serve = Serve("DEPLOY_FAILED", "The deployment failed…", {"Decode:*": ("DEPLOY_FAILED", "ValueError: …")})`.
- `cluster_finalizer="ray.io/gcs-ft-redis-cleanup-finalizer"` with `held={"finalize"}`: stuck Terminating.
- `invalid="…"`: ValidationFailed. `initializing_timeout_s=60`: instead of the annotation.

The operator works only while its Deployment has a ready pod, in the namespaces that it watches, and behaves as the
version in its image's tag: `install_operator(api, namespace, version, watch=[…], release=None)`; without a release it
is somebody else's. `operator_manifests(…)` and `crds()` are the same as objects, for a stand-in of helm. Secrets and
ConfigMaps that a pod mounts must be there, its service account too; otherwise it waits, as it would.

What it is not: nothing is defaulted by schemas, CEL rules are not run, versions of a kind are not converted, quotas and
network policies bind nobody, ReplicaSets, Jobs and DaemonSets get no pods (a Deployment owns its pods), /scale, exec,
most of protobuf and SPDY (so `kubectl port-forward`) are not there, RayClusters neither autoscale nor suspend, RayJobs
do nothing, and the incremental upgrade is a plain one.
"""

from fakes.kubernetes.cluster.kuberay import KubeRay as KubeRay
from fakes.kubernetes.cluster.kuberay import crds as crds
from fakes.kubernetes.cluster.kuberay import install_operator as install_operator
from fakes.kubernetes.cluster.kuberay import operator_manifests as operator_manifests
from fakes.kubernetes.cluster.script import SECONDS as SECONDS
from fakes.kubernetes.cluster.script import Behaviour as Behaviour
from fakes.kubernetes.cluster.script import Script as Script
from fakes.kubernetes.cluster.script import Serve as Serve
from fakes.kubernetes.fake import FakeKubernetes as FakeKubernetes
from fakes.kubernetes.fake import Request as Request
from fakes.kubernetes.faults import Fault as Fault
