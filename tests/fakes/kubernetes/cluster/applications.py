"""What Ray Serve says of the applications of a RayService."""

from fnmatch import fnmatchcase
from functools import lru_cache

import yaml

from fakes.kubernetes.errors import Json

NO_ROOM = (
    "Deployment has 1 replicas that have taken more than 30s to be scheduled. This may be due to waiting for the "
    "cluster to auto-scale or for a runtime environment to be installed. Use `ray status` for more details."
)


def statuses(
    config: str,
    status: str,
    message: str,
    each: str,
    words: str,
    said: dict[str, tuple[str, str]] | None = None,
) -> Json:
    """What Serve says of all applications in a config."""
    found = {}
    for app in _applications(config):
        deployments = {}
        for name in _deployments(app):
            own = next(
                (value for pattern, value in (said or {}).items() if fnmatchcase(name, pattern)),
                (each, words),
            )
            deployments[name] = {"status": own[0], "message": own[1]}
        found[app["name"]] = {"status": status, "message": message, "serveDeploymentStatuses": deployments}
    return found


@lru_cache(maxsize=16)
def _applications(config: str) -> list[Json]:
    return list((yaml.load(config, yaml.CSafeLoader) or {}).get("applications", ()))


def _deployments(app: Json) -> list[str]:
    """The deployments' names: Ray Serve LLM's for phases, else those that the config names."""
    names = []
    for field, prefix in (
        ("prefill_config", "Prefill:"),
        ("decode_config", "Decode:"),
        ("llm_config", "Aggregated:"),
    ):
        model = app.get("args", {}).get(field, {}).get("model_loading_config", {}).get("model_id")
        if model:
            names.append(prefix + model.replace("/", "--").replace(".", "_"))
    return names or [each["name"] for each in app.get("deployments", ())] or [app["name"]]
