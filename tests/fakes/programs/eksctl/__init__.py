"""A stand-in for eksctl 0.230.0: what Diptych asks of it, with a fake AWS behind it.

It behaves as `facts/eks.md` 2.3 says: exit code 0 or 1; `create cluster` refuses what exists; `create nodegroup` takes
a rolled-back stack for an existing group and does nothing; `delete nodegroup -f` only plans without `--approve`, drains
and does not wait; device plugins are installed at the end of a run, for the groups made in it. An interrupt ends it at
once; stacks go on by themselves, as CloudFormation does. Config files are checked by eksctl's own schema.

Not here: everything without `--config-file` that makes something, unmanaged node groups, `get`, `utils`, `upgrade`.
"""

import json
import signal
import sys
from collections.abc import Callable, Mapping, Sequence

from fakes.programs.api import ApiError
from fakes.programs.eksctl import creating, deleting
from fakes.programs.eksctl.run import VERSION, print_error
from fakes.programs.fake_aws import AwsRefusedError
from fakes.programs.flags import Flags, RefusedError, read

_COMMON = {
    "config-file": "text",
    "region": "text",
    "profile": "text",
    "timeout": "duration",
    "verbose": "number",
    "color": "text",
}
_CFN = {"cfn-disable-rollback": "switch"}
_NVIDIA = {"install-nvidia-plugin": "switch", "install-neuron-plugin": "switch"}
_CHOICE = {"include": "text", "exclude": "text"}
_GROUP = {"cluster": "text", "name": "text"}
_DRAIN = {
    "disable-eviction": "switch",
    "max-grace-period": "duration",
    "pod-eviction-wait-period": "duration",
    "parallel": "number",
}
_KUBECONFIG = {
    "kubeconfig": "text",
    "write-kubeconfig": "switch",
}
_SHORT = {
    "f": "config-file",
    "r": "region",
    "p": "profile",
    "v": "verbose",
    "C": "color",
    "n": "name",
    "w": "wait",
    "N": "nodes",
    "m": "nodes-min",
    "M": "nodes-max",
}
_NOT_WITH_FILE = ("name", "region", "version", "cluster", "tags", "zones")
_NOT_WITH_DRY_RUN = (
    "cfn-role-arn",
    "cfn-disable-rollback",
    "install-nvidia-plugin",
    "install-neuron-plugin",
    "profile",
    "timeout",
)

_COMMANDS: Mapping[tuple[str, str], tuple[Callable[[Flags], None], Mapping[str, str]]] = {
    ("create", "cluster"): (
        creating.create_cluster,
        {
            **_CFN,
            **_NVIDIA,
            **_KUBECONFIG,
            "dry-run": "switch",
            "without-nodegroup": "switch",
            "name": "text",
        },
    ),
    ("create", "nodegroup"): (
        creating.create_nodegroup,
        {
            **_CFN,
            **_NVIDIA,
            **_CHOICE,
            **_GROUP,
        },
    ),
    ("create", "addon"): (creating.create_addon, _GROUP),
    ("create", "podidentityassociation"): (creating.create_identity, {"cluster": "text"}),
    ("delete", "nodegroup"): (
        deleting.delete_nodegroup,
        {
            **_CHOICE,
            **_GROUP,
            **_DRAIN,
            "approve": "switch",
            "drain": "switch",
            "wait": "switch",
        },
    ),
    ("delete", "cluster"): (
        deleting.delete_cluster,
        {
            **_CFN,
            "name": "text",
            "wait": "switch",
            "disable-nodegroup-eviction": "switch",
            "pod-eviction-wait-period": "duration",
            "parallel": "number",
        },
    ),
    ("delete", "podidentityassociation"): (
        deleting.delete_identity,
        {"cluster": "text", "namespace": "text", "service-account-name": "text"},
    ),
    ("drain", "nodegroup"): (
        deleting.drain_nodegroup,
        {**_CHOICE, **_GROUP, **_DRAIN, "approve": "switch", "undo": "switch"},
    ),
    ("scale", "nodegroup"): (
        deleting.scale_nodegroup,
        {**_GROUP, "nodes": "number", "nodes-min": "number", "nodes-max": "number", "wait": "switch"},
    ),
}


def main(arguments: Sequence[str]) -> int:
    """The exit code."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        _run(arguments)
    except (RefusedError, AwsRefusedError, ApiError) as error:
        print_error(str(error))
        return 1
    return 0


def _run(arguments: Sequence[str]) -> None:
    if list(arguments[:1]) == ["version"]:
        _version(arguments[1:])
        return
    verb, what = [*arguments[:2], "", ""][:2]
    if verb not in {"create", "delete", "drain", "scale"}:
        raise RefusedError(f'unknown command "{verb}" for "eksctl"')
    command = _COMMANDS.get((verb, {"ng": "nodegroup"}.get(what, what)))
    if command is None:
        raise RefusedError(f'unknown resource type "{what}"')
    work, known = command
    flags = read(arguments[2:], {**_COMMON, **known}, _SHORT)
    _check(verb, what, flags)
    work(flags)


def _check(verb: str, what: str, flags: Flags) -> None:
    if flags.arguments:
        raise RefusedError(f"the stand-in takes no name without a flag: {' '.join(flags.arguments)}")
    if flags.text("config-file"):
        for name in _NOT_WITH_FILE:
            if name in flags.values:
                raise RefusedError(f"cannot use --{name} when --config-file/-f is set")
    elif verb == "create":
        raise RefusedError(f"the stand-in needs --config-file/-f for create {what}")
    if flags.on("dry-run"):
        for name in _NOT_WITH_DRY_RUN:
            if name in flags.values:
                raise RefusedError(
                    f"cannot use --{name} with --dry-run as this option cannot be represented in ClusterConfig"
                )


def _version(arguments: Sequence[str]) -> None:
    flags = read(arguments, {"output": "text"}, {"o": "output"})
    if flags.text("output") == "json":
        about = {
            "Version": VERSION,
            "PreReleaseID": "",
            "Metadata": {},
            "EKSServerSupportedVersions": ["1.34", "1.35", "1.36"],
        }
        print(json.dumps(about))
        return
    print(VERSION)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
