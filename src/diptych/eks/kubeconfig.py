"""The way into an EKS cluster: a kubeconfig of its own, with tokens from `diptych.eks.token`.

It holds no secret: whoever uses it signs in as themselves, with the AWS profile that it was written for. The user's
own kubeconfig is touched only by `add_to`, which is for those who asked for it, and `remove_from`, which undoes it.
"""

import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from diptych.eks import kubeconfig_file
from diptych.eks.aws import Session
from diptych.errors import AccountError, SetupError
from diptych.remembering import write_private
from diptych.render.write import to_yaml

_PLUGIN = "diptych.eks.token"


def write(session: Session, cluster: str, path: Path) -> str:
    """Write the kubeconfig of a cluster, whole or not at all; its context's name comes back.

    Raises:
        AccountError: there is no such cluster, or it has no address yet.
        SetupError: the file can't be written.
    """
    config = content(session, cluster)
    write_private(path, to_yaml(config))
    return str(config["current-context"])


def content(session: Session, cluster: str) -> dict[str, Any]:
    """A kubeconfig with one cluster, one user and one context.

    Raises:
        AccountError: there is no such cluster, or it has no address yet.
    """
    found = session.call("eks", "describe_cluster", name=cluster)["cluster"]
    authority = found.get("certificateAuthority", {}).get("data")
    if not found.get("endpoint"):
        message = f"The cluster {cluster} is {found.get('status')} and has no address yet."
        raise AccountError(message, "Wait until it is ACTIVE.")
    name = context_of(session, cluster)
    server = {"server": found["endpoint"], **({"certificate-authority-data": authority} if authority else {})}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": server}],
        "users": [{"name": name, "user": {"exec": _token_command(session, cluster)}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    }


def context_of(session: Session, cluster: str) -> str:
    """What the cluster's context is called; its cluster and its user have the same name."""
    return f"{cluster}.{session.region}"


def require_room(path: Path, name: str) -> None:
    """Before anything is made: the entries `name` can be added to a kubeconfig, and it can be written.

    Raises:
        SetupError: the file is no kubeconfig or can't be written, or has entries of that name that are not ours.
    """
    _require_ours(path, kubeconfig_file.read(path), name)
    folder = path.resolve().parent
    there = next(each for each in (folder, *folder.parents) if each.exists())
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise SetupError(
            f"{path} could not be written, in {there}: {error.strerror or error}.",
            "Let yourself write there, have KUBECONFIG name another file, or leave --kubeconfig out.",
        ) from None


def add_to(path: Path, config: Mapping[str, Any]) -> Path | None:
    """Add the entries of `config` to a kubeconfig that may hold others, in place of those that we have added before.

    Its current context stays, unless it has none.

    Returns:
        Where the file is kept as it was; None where nothing but its entries changes.

    Raises:
        SetupError: the file is no kubeconfig or can't be written, or has entries of that name that are not ours.
    """
    kept = kubeconfig_file.read(path)
    _require_ours(path, kept, config["current-context"])
    for kind in kubeconfig_file.LISTS:
        ours = {each["name"] for each in config[kind]}
        kept[kind] = [each for each in kept.get(kind) or [] if each.get("name") not in ours] + config[kind]
    kept.setdefault("apiVersion", "v1")
    kept.setdefault("kind", "Config")
    kept["current-context"] = kept.get("current-context") or config["current-context"]
    return kubeconfig_file.write(path, kept)


def remove_from(path: Path, name: str) -> bool:
    """Remove the context `name` with its cluster and user, unless somebody else has made one of that name since.

    Returns:
        Whether it was there.

    Raises:
        SetupError: the file is no kubeconfig, or can't be written.
    """
    kept = kubeconfig_file.read(path)
    if not _is_ours(kept, name):
        return False
    for kind in kubeconfig_file.LISTS:
        kept[kind] = [each for each in kept.get(kind) or [] if each.get("name") != name]
    if kept.get("current-context") == name:
        kept["current-context"] = ""
    kubeconfig_file.write(path, kept)
    return True


def default_path(environ: Mapping[str, str] | None = None) -> Path:
    """The user's own kubeconfig, to which kubectl adds what is new.

    Of the files of `KUBECONFIG` the first that is there, else the last; without it `~/.kube/config`.
    """
    named = (os.environ if environ is None else environ).get("KUBECONFIG", "").split(os.pathsep)
    files = [Path(each).expanduser() for each in named if each] or [Path("~/.kube/config").expanduser()]
    return next((each for each in files if each.exists()), files[-1])


def _require_ours(path: Path, config: Mapping[str, Any], name: str) -> None:
    taken = [
        kind.removesuffix("s")
        for kind in kubeconfig_file.LISTS
        if any(each.get("name") == name for each in config.get(kind) or [])
    ]
    if taken and not _is_ours(config, name):
        raise SetupError(
            f"{path} has a {' and a '.join(taken)} {name} already, and Diptych did not make it.",
            "Rename it there, have KUBECONFIG name another file, or leave --kubeconfig out.",
        )


def _is_ours(config: Mapping[str, Any], name: str) -> bool:
    """Whether the user `name` signs in by our plugin."""
    users = [each for each in config.get("users") or [] if each.get("name") == name]
    found: Any = users[0] if users else None
    for key in ("user", "exec", "args"):
        found = found.get(key) if isinstance(found, dict) else None
    return isinstance(found, list) and _PLUGIN in found


def _token_command(session: Session, cluster: str) -> dict[str, Any]:
    # Empty counts as unset: keys of a later shell would win over the profile that the file was written for.
    keys = dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"), "")
    environ = {"AWS_PROFILE": session.profile, **keys} if session.profile else {}
    return {
        "apiVersion": "client.authentication.k8s.io/v1beta1",
        "command": sys.executable,
        "args": ["-m", _PLUGIN, "--cluster", cluster, "--region", session.region],
        "env": [{"name": name, "value": value} for name, value in environ.items()] or None,
        "interactiveMode": "Never",
        "provideClusterInfo": False,
    }
