"""The charts that the stand-in has: their values, and what they make of them, as far as anything looks at it."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fakes.programs.flags import RefusedError
from fakes.programs.helm.defaults import EFA_VALUES, GPU_VALUES, OPERATOR_VALUES, RAY_JOB

SCHEMAS = Path(__file__).resolve().parents[5] / "shared/schemas"
Values = dict[str, Any]
Thing = dict[str, Any]


@dataclass(frozen=True)
class Chart:
    """A chart of a repository.

    Attributes:
        versions: those that are there, the newest last.
        defaults: its values.yaml; None where a key has no default but is known.
        app_version: where it is not the chart's own.
        make: its objects, by release name, namespace, version and values.
    """

    name: str
    repository: str
    versions: tuple[str, ...]
    defaults: Mapping[str, Any]
    make: Callable[[str, str, str, Values], list[Thing]]

    def version(self, asked: str) -> str:
        """Raises RefusedError where it is not there."""
        if not asked:
            return self.versions[-1]
        for one in self.versions:
            if one.removeprefix("v") == asked.removeprefix("v"):
                return one
        raise RefusedError(f'chart "{self.name}" version "{asked}" not found in {self.repository} repository')

    def values(self, given: Mapping[str, Any]) -> Values:
        """Defaults with what was given over them, as Helm does: maps are merged, null deletes.

        Raises RefusedError for a key that the chart does not know: Helm itself would say nothing.
        """
        known = set(self.defaults)
        if unknown := sorted(set(given) - known):
            raise RefusedError(
                f"the chart {self.name} has no value {', '.join(unknown)} (helm would not have told)"
            )
        return _merge(self.defaults, given)


def find(name: str, repository: str) -> Chart:
    """Raises RefusedError where there is no such repository, or no such chart in it."""
    in_repository = [chart for chart in CHARTS if chart.repository.rstrip("/") == repository.rstrip("/")]
    if not repository:
        raise RefusedError(f"the stand-in needs --repo for the chart {name}")
    if not in_repository:
        raise RefusedError(
            f'looks like "{repository}" is not a valid chart repository or cannot be reached: no such host'
        )
    for chart in in_repository:
        if chart.name == name:
            return chart
    raise RefusedError(f'chart "{name}" not found in {repository} repository')


def custom_resources(chart: Chart) -> str:
    """The YAML of its CRDs; "" where it has none. Raises RefusedError where we don't have them."""
    if chart.name != "kuberay-operator":
        return ""
    files = [SCHEMAS / f"ray.io_{plural}.yaml" for plural in ("rayclusters", "rayservices")]
    if not all(file.is_file() for file in files):
        raise RefusedError("the stand-in has no CRDs: ../shared/schemas is not there")
    texts = [*(file.read_text() for file in files), RAY_JOB]
    return "\n".join(f"---\n{text.removeprefix('---').lstrip()}" for text in texts)


def _merge(below: Any, above: Any) -> Any:
    if not isinstance(below, Mapping) or not isinstance(above, Mapping):
        return copy.deepcopy(above)
    merged = {key: copy.deepcopy(value) for key, value in below.items()}
    for key, value in above.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merge(merged.get(key), value)
    return merged


def _labels(chart: str, version: str, release: str, app: str) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": chart,
        "app.kubernetes.io/instance": release,
        "app.kubernetes.io/version": app.removeprefix("v"),
        "app.kubernetes.io/managed-by": "Helm",
        "helm.sh/chart": f"{chart}-{version}",
    }


def _operator(release: str, namespace: str, version: str, values: Values) -> list[Thing]:
    name = values["fullnameOverride"]
    own = _labels("kuberay-operator", version, release, version) | values["labels"]
    about = {"name": name, "namespace": namespace, "labels": own}
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": about}
    watched = values.get("watchNamespace") or ([namespace] if values["singleNamespaceInstall"] else [])
    arguments = ["--watch-namespace", ",".join(watched)] if watched else []
    arguments += [f"--enable-leader-election={str(values['leaderElectionEnabled']).lower()}"]
    gates = ",".join(f"{gate['name']}={str(gate['enabled']).lower()}" for gate in values["featureGates"])
    container = {
        "name": "kuberay-operator",
        "image": f"{values['image']['repository']}:{values['image']['tag'] or 'v' + version}",
        "command": [values["operatorCommand"]],
        "args": [*arguments, f"--feature-gates={gates}"],
        "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}],
        "resources": values["resources"],
    }
    pod = {"serviceAccountName": name, "containers": [container]}
    pod |= {key: values[key] for key in ("nodeSelector", "affinity", "tolerations") if values.get(key)}
    selector = {"app.kubernetes.io/name": "kuberay-operator", "app.kubernetes.io/instance": release}
    labels = {**selector, "app.kubernetes.io/component": "kuberay-operator", **values["labels"]}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": about,
        "spec": {
            "replicas": values["replicas"],
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": selector},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }
    return [
        account,
        *_rights(name, namespace, own, watched if values["singleNamespaceInstall"] else None),
        deployment,
    ]


def _rights(
    name: str, namespace: str, labels: Mapping[str, str], watched: Sequence[str] | None
) -> list[Thing]:
    """A Role in each watched namespace, or a ClusterRole."""
    rules = [
        {"apiGroups": ["ray.io"], "resources": ["rayclusters", "rayservices", "rayjobs"], "verbs": ["*"]},
        {"apiGroups": [""], "resources": ["pods", "services", "events"], "verbs": ["*"]},
    ]
    group = "rbac.authorization.k8s.io"
    subject = {"kind": "ServiceAccount", "name": name, "namespace": namespace}
    found: list[Thing] = []
    for place in watched if watched is not None else [None]:
        kind = "ClusterRole" if place is None else "Role"
        about: Thing = {
            "name": name,
            "labels": dict(labels),
            **({} if place is None else {"namespace": place}),
        }
        found.append({"apiVersion": f"{group}/v1", "kind": kind, "metadata": about, "rules": rules})
        reference = {"apiGroup": group, "kind": kind, "name": name}
        binding = {"apiVersion": f"{group}/v1", "kind": f"{kind}Binding", "metadata": about}
        found.append({**binding, "roleRef": reference, "subjects": [subject]})
    return found


def _efa_plugin(release: str, namespace: str, version: str, values: Values) -> list[Thing]:
    chart = "aws-efa-k8s-device-plugin"
    name = values["fullnameOverride"] or (release if chart in release else f"{release}-{chart}")
    supported = values["supportedInstanceLabels"]
    terms = [
        {"matchExpressions": [{"key": key, "operator": "In", "values": supported["values"]}]}
        for key in supported["keys"]
    ]
    pod = {
        "hostNetwork": True,
        "tolerations": [{"key": "CriticalAddonsOnly", "operator": "Exists"}, *values["tolerations"]],
        "affinity": {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        },
        "containers": [{"name": chart, "image": f"{values['image']['repository']}:{values['image']['tag']}"}],
    }
    return [_daemon_set(name, namespace, _labels(chart, version, release, version), pod, values)]


def _gpu_plugin(release: str, namespace: str, version: str, values: Values) -> list[Thing]:
    chart = "nvidia-device-plugin"
    name = values["fullnameOverride"] or (release if chart in release else f"{release}-{chart}")
    image = f"{values['image']['repository']}:{values['image']['tag'] or 'v' + version}"
    pod: Thing = {
        "tolerations": values["tolerations"],
        "containers": [{"name": "nvidia-device-plugin-ctr", "image": image}],
        **({"affinity": values["affinity"]} if values.get("affinity") else {}),
    }
    return [_daemon_set(name, namespace, _labels(chart, version, release, version), pod, values)]


def _daemon_set(name: str, namespace: str, labels: Mapping[str, str], pod: Thing, values: Values) -> Thing:
    if values.get("nodeSelector"):
        pod["nodeSelector"] = values["nodeSelector"]
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": name, "namespace": namespace, "labels": dict(labels)},
        "spec": {
            "selector": {"matchLabels": {"name": name}},
            "template": {"metadata": {"labels": {"name": name}}, "spec": pod},
        },
    }


CHARTS = (
    Chart(
        "kuberay-operator",
        "https://ray-project.github.io/kuberay-helm/",
        ("1.4.2", "1.5.1", "1.6.0", "1.6.1", "1.6.2", "1.7.0"),
        OPERATOR_VALUES,
        _operator,
    ),
    Chart(
        "aws-efa-k8s-device-plugin",
        "https://aws.github.io/eks-charts",
        ("v0.5.5", "v0.5.13", "v0.5.30"),
        EFA_VALUES,
        _efa_plugin,
    ),
    Chart(
        "nvidia-device-plugin",
        "https://nvidia.github.io/k8s-device-plugin",
        ("0.17.1", "0.18.2", "0.20.0"),
        GPU_VALUES,
        _gpu_plugin,
    ),
)
