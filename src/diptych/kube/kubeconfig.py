"""Which kubeconfig and context a command means, as kubectl decides it; what is wrong with them, in words."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from diptych.errors import ClusterError

_IN_CLUSTER = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")


@dataclass(frozen=True)
class Target:
    """A cluster to talk to.

    Args:
        kubeconfig: its file; None: as kubectl does (KUBECONFIG, ~/.kube/config, the pod's own account).
        context: which of its contexts; None: the current one.
    """

    kubeconfig: Path | None = None
    context: str | None = None


@dataclass(frozen=True)
class Source:
    """What a target comes to: the files that are there, and the context; neither in a pod of the cluster."""

    files: tuple[Path, ...]
    context: str | None


def resolve(target: Target) -> Source:
    """Find a target's files and context.

    Raises:
        ClusterError: there is no kubeconfig, it can't be read, or it has no such context.
    """
    asked = _asked_files(target)
    files = tuple(path for path in asked if path.is_file())
    if not files:
        if target.kubeconfig is None and _IN_CLUSTER.is_file():
            return Source((), None)
        where = " or ".join(map(str, asked))
        raise ClusterError(
            f"There is no kubeconfig: {where} does not exist.",
            "Name one with KUBECONFIG; your provider's command line writes it.",
        )
    contexts, current = _contexts(files)
    context = target.context or current
    known = ", ".join(sorted(contexts)) or "none"
    if not context:
        raise ClusterError(
            f"{_named(files)} has no current context.",
            f"Name one with kubernetes.context; known ones: {known}.",
        )
    if context not in contexts:
        raise ClusterError(f"{_named(files)} has no context {context!r}.", f"Contexts that it has: {known}.")
    return Source(files, context)


def _asked_files(target: Target) -> list[Path]:
    if target.kubeconfig is not None:
        return [target.kubeconfig.expanduser()]
    given = [part for part in os.environ.get("KUBECONFIG", "").split(os.pathsep) if part]
    return [Path(part).expanduser() for part in given or ["~/.kube/config"]]


def _contexts(files: tuple[Path, ...]) -> tuple[set[str], str]:
    """The names of all contexts, and the current one: the first file that names one decides."""
    names: set[str] = set()
    current = ""
    for path in files:
        content = _read(path)
        listed = content.get("contexts")
        contexts = listed if isinstance(listed, list) else []
        names |= {str(each.get("name")) for each in contexts if isinstance(each, dict)}
        current = current or str(content.get("current-context") or "")
    return names, current


def _read(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no YAML"
        raise ClusterError(f"The kubeconfig {path} can't be read: {why}.") from None
    except ValueError as error:  # of a date that is none
        raise ClusterError(f"The kubeconfig {path} can't be read: {error}.", "Quote that value.") from None
    if not isinstance(content, dict):
        raise ClusterError(f"The kubeconfig {path} is empty, or no kubeconfig.")
    return content


def _named(files: tuple[Path, ...]) -> str:
    return "The kubeconfig " + ", ".join(map(str, files))
