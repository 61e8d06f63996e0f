"""The request models of the installed vLLM: what each POST route of the endpoint takes, field by field.

Run as `python request_models.py`; prints `{"version": …, "models": {name: {"paths": […], "fields": […]}}}`. A field
is a path: those of vLLM's own classes within follow after a dot (`stream_options.include_usage`), through lists
and unions alike.
"""

import dataclasses
import inspect
import json
import typing
from argparse import Namespace
from typing import Any

import vllm
from fastapi import FastAPI
from pydantic import BaseModel
from vllm.entrypoints.generate.api_router import register_generate_api_routers
from vllm.entrypoints.serve import register_vllm_serve_api_routers

from diptych.serving.front import ENGINE_PATHS


def request_models() -> dict[str, dict[str, list[str]]]:
    """Every class that a route of the endpoint reads from its body, by name."""
    app = FastAPI()
    app.state.args = Namespace()  # vLLM's command line, whose default is to profile nothing
    register_generate_api_routers(app)
    register_vllm_serve_api_routers(app)
    found: dict[str, dict[str, list[str]]] = {}
    for route in app.routes:
        body = getattr(route, "body_field", None)
        if body is not None and route.path in ENGINE_PATHS:
            for model in classes_in(body.field_info.annotation):
                own = found.setdefault(model.__name__, {"paths": [], "fields": fields_of(model)})
                own["paths"].append(route.path)
    return found


def classes_in(annotation: Any) -> list[type]:
    """vLLM's own models and dataclasses that an annotation names, however deep in unions and lists."""
    if inspect.isclass(annotation) and not typing.get_args(annotation):
        own = issubclass(annotation, BaseModel) or dataclasses.is_dataclass(annotation)
        return [annotation] if own and annotation.__module__.startswith("vllm.") else []
    return [cls for argument in typing.get_args(annotation) for cls in classes_in(argument)]


def fields_of(model: type, within: tuple[type, ...] = ()) -> list[str]:
    """Paths to all fields of a model, its own and those of the models in it; names as a client writes them."""
    paths: list[str] = []
    for name, annotation in named_fields(model).items():
        paths.append(name)
        for cls in classes_in(annotation):
            if cls not in within:
                paths += [f"{name}.{path}" for path in fields_of(cls, (*within, model))]
    return list(dict.fromkeys(paths))


def named_fields(model: type) -> dict[str, Any]:
    if issubclass(model, BaseModel):
        return {field.alias or name: field.annotation for name, field in model.model_fields.items()}
    hints = typing.get_type_hints(model)
    return {field.name: hints[field.name] for field in dataclasses.fields(model) if field.init}  # type: ignore[arg-type]


if __name__ == "__main__":
    print(json.dumps({"version": vllm.__version__, "models": request_models()}))
