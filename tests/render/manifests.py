"""What rendered manifests are checked with: KubeRay's CRDs, made strict, and Kubernetes' own schemas.

A CRD leaves unknown fields alone, and the API server drops them without a word: here they are errors.
"""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

SCHEMAS = Path(__file__).resolve().parents[3] / "shared" / "schemas"
KUBERNETES = "1.35"
_OF_CRDS = ("ray.io/", "gateway.networking.k8s.io/", "monitoring.coreos.com/")


def schema_file(name: str) -> Path:
    """A file of `../shared/schemas`; the test is skipped, and says so, where it is not there."""
    file = SCHEMAS / name
    if not file.is_file():
        pytest.skip(f"{file} is not here")
    return file


@cache
def crd_validator(kind: str) -> jsonschema.Draft202012Validator:
    """KubeRay's schema of "RayService" or "RayCluster", version v1, which refuses unknown fields."""
    text = schema_file(f"ray.io_{kind.lower()}s.yaml").read_text()
    definition = yaml.load(text, yaml.CSafeLoader)
    version = next(each for each in definition["spec"]["versions"] if each["name"] == "v1")
    return jsonschema.Draft202012Validator(_strict(version["schema"]["openAPIV3Schema"], top=True))


def _strict(schema: Any, *, top: bool = False) -> Any:
    """`schema` as JSON Schema has it, closed to what it does not name."""
    if isinstance(schema, list):
        return [_strict(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    if schema.get("x-kubernetes-int-or-string"):
        return {"anyOf": [{"type": "integer"}, {"type": "string"}]}
    found = {name: value for name, value in schema.items() if not name.startswith("x-")}
    if "properties" in found:
        found["properties"] = {name: _strict(value) for name, value in found["properties"].items()}
        open_to_all = schema.get("x-kubernetes-preserve-unknown-fields")
        if "additionalProperties" not in found and not open_to_all:
            found["additionalProperties"] = False
        if top:  # the API server knows what metadata is
            found["properties"]["metadata"] = {"type": "object"}
    for word in ("items", "additionalProperties"):
        if word in found:
            found[word] = _strict(found[word])
    return found


@cache
def eksctl_validator() -> jsonschema.Draft7Validator:
    """eksctl's schema of its ClusterConfig, which is strict by itself."""
    return jsonschema.Draft7Validator(json.loads(schema_file("eksctl-clusterconfig.json").read_text()))


def check(manifest: Mapping[str, Any]) -> None:
    """Refuse an object that Kubernetes, KubeRay or eksctl would refuse, or in which it would overlook something."""
    version, kind = manifest["apiVersion"], manifest["kind"]
    if version.startswith("eksctl.io/"):
        eksctl_validator().validate(manifest)
    elif version.startswith("ray.io/"):
        crd_validator(kind).validate(manifest)
        cluster = manifest["spec"].get("rayClusterConfig", manifest["spec"])
        for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
            check({"apiVersion": "v1", "kind": "Pod", **group["template"]})
    elif not version.startswith(_OF_CRDS):
        _check_core(json.dumps(manifest))


@cache
def _check_core(manifest: str) -> None:
    kubernetes_validate.validate(json.loads(manifest), KUBERNETES, strict=True)


def objects_in(files: Mapping[str, str]) -> list[dict[str, Any]]:
    """The objects with a kind in all rendered files."""
    texts = (text for file, text in files.items() if file.endswith(".yaml"))
    found = (each for text in texts for each in yaml.load_all(text, yaml.CSafeLoader))
    return [each for each in found if "kind" in each and "apiVersion" in each]
