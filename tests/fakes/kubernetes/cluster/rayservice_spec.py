"""What a RayService asks of the operator."""

import hashlib
import json
import re

from fakes.kubernetes.errors import Json


def spec_hash(spec: Json) -> str:
    """Of a RayClusterSpec, without what may change in place."""
    groups = [
        {
            name: value
            for name, value in group.items()
            if name not in ("replicas", "minReplicas", "maxReplicas", "scaleStrategy")
        }
        for group in spec.get("workerGroupSpecs", ())
    ]
    text = json.dumps({**spec, "workerGroupSpecs": groups}, sort_keys=True)
    return hashlib.sha1(text.encode()).hexdigest()


def invalid(service: Json) -> str | None:
    """Why the operator refuses it; None: it does not."""
    name, spec = service["metadata"]["name"], service["spec"]
    if len(name) > 47:
        return f"RayService name should be no more than 47 characters, but it is {len(name)}"
    head_service = spec["rayClusterConfig"]["headGroupSpec"].get("headService", {})
    if head_service.get("metadata", {}).get("name"):
        return "spec.rayClusterConfig.headGroupSpec.headService.metadata.name should not be set"
    known = ("NewCluster", "NewClusterWithIncrementalUpgrade", "None")
    if spec.get("upgradeStrategy", {}).get("type", "None") not in known:
        given = spec["upgradeStrategy"]["type"]
        return f"Spec.UpgradeStrategy.Type value {given} is invalid, valid options are {', '.join(known)}"
    return None


def initializing_timeout(service: Json) -> float | None:
    """Seconds by the annotation, a Go duration or whole seconds; None where there is none."""
    text = service["metadata"].get("annotations", {}).get("ray.io/initializing-timeout")
    if not text:
        return None
    units = {"h": 3600, "m": 60, "s": 1}
    parts = re.findall(r"([0-9.]+)([hms])", text)
    return sum(float(number) * units[unit] for number, unit in parts) if parts else float(text)
