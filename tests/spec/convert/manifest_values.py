"""Manifests of the tests: the walk-through's, and small ones made of parts."""

from pathlib import Path
from typing import Any

import yaml

from diptych.spec.convert import Remark, document_from, read

MANIFEST = Path(__file__).parents[1] / "manifests" / "rayservice-qwen3.5-9b.yaml"

SPLIT = "ray.serve.llm:build_pd_openai_app"
WHOLE = "ray.serve.llm:build_openai_app"
IMAGE = "registry.example.com/llm:1"


def engine(name: str = "m", source: str | None = "a/m", **fields: Any) -> dict[str, Any]:
    """An `llm_config`."""
    loading = {"model_id": name} | ({"model_source": source} if source else {})
    return {"model_loading_config": loading, **fields}


def split(prefill: dict[str, Any], decode: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A Serve configuration with prefill and decode apart."""
    args = {"prefill_config": prefill, "decode_config": decode}
    return {"applications": [{"name": "app", "import_path": SPLIT, "args": args, **fields}]}


def whole(*engines: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A Serve configuration with one engine for both phases, for each model."""
    application = {"name": "app", "import_path": WHOLE, "args": {"llm_configs": list(engines)}, **fields}
    return {"applications": [application]}


def pod(labels: dict[str, str] | None = None, **fields: Any) -> dict[str, Any]:
    """A pod template with one container that has `fields`."""
    container = {"name": "ray", "image": IMAGE, **fields}
    return {"spec": {"containers": [container], **({"nodeSelector": labels} if labels else {})}}


def group(name: str, template: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A worker group."""
    return {"groupName": name, "rayStartParams": {}, "template": template, **fields}


def service(serve: dict[str, Any], *groups: dict[str, Any], head: Any = None, **spec: Any) -> dict[str, Any]:
    """A RayService."""
    cluster = {"headGroupSpec": {"rayStartParams": {}, "template": head or pod()}, "workerGroupSpecs": groups}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayService",
        "metadata": {"name": "llm", "namespace": "inference"},
        "spec": {
            "serveConfigV2": yaml.safe_dump(serve),
            "rayClusterConfig": {**cluster, "workerGroupSpecs": list(groups)},
            **spec,
        },
    }


def convert(*objects: dict[str, Any], **options: Any) -> tuple[dict[str, Any], list[Remark]]:
    """The document and the remarks, as from a file with these objects."""
    text = yaml.safe_dump_all(objects)
    return document_from(read(text, "manifest.yaml"), file="manifest.yaml", **options)


def said(remarks: list[Remark], where: str) -> list[str]:
    """The remarks about a place."""
    return [str(each) for each in remarks if each.where == where]
