"""A stand-in for helm 3 and 4, with three charts (`charts`), for a Kubernetes API that its kubeconfig names.

`FAKE_HELM_VERSION` is the version it says it has (4.1.4 by default; 3.19.0 for helm 3's words and flags).
`FAKE_HELM_PAUSE_S` is how many seconds it works on a release after it has written down that it does: killed there, it
leaves the release pending, and the next `upgrade` refuses, as helm does. Interrupted, it marks the release failed.

Commands: `version`, `show crds|values|chart`, `upgrade --install`, `install`, `get values`, `status`, `list`,
`uninstall`. Charts only by `--repo`. CRDs come with a first install only, and stay. Not here: repositories that are
added, hooks, rollbacks, `template`, tests, and flags that would do nothing here. Unlike helm it refuses values that a
chart does not have.
"""

import sys
from collections.abc import Callable, Mapping, Sequence

from fakes.programs.api import ApiError
from fakes.programs.flags import Flags, RefusedError, read
from fakes.programs.helm import changing, telling
from fakes.programs.helm.asked import major

_CLUSTER = {
    "kubeconfig": "text",
    "kube-context": "text",
    "namespace": "text",
}
_SOURCE = {"repo": "text", "version": "text"}
_CHANGE = {
    "values": "text",
    "set": "text",
    "install": "switch",
    "create-namespace": "switch",
    "skip-crds": "switch",
    "history-max": "number",
    "wait": "switch",
    "timeout": "duration",
}
_CHANGE_3 = {"force": "switch"}
_CHANGE_4 = {"force-replace": "switch", "force-conflicts": "switch"}
_SHORT = {"n": "namespace", "f": "values", "o": "output", "i": "install", "a": "all", "q": "short"}


def main(arguments: Sequence[str]) -> int:
    """The exit code."""
    try:
        _run(list(arguments))
    except (RefusedError, ApiError) as error:
        text = str(error)
        if major() == 4 and text.startswith("Kubernetes cluster unreachable"):
            text = text.replace("Kubernetes", "kubernetes", 1)
        sys.stdout.flush()
        print(f"Error: {text}", file=sys.stderr, flush=True)
        return 1
    return 0


def _run(arguments: list[str]) -> None:
    name = arguments.pop(0) if arguments else ""
    if name in {"show", "get"}:
        name = f"{name} {arguments.pop(0) if arguments else ''}".strip()
    change = {**_CHANGE, **(_CHANGE_3 if major() == 3 else _CHANGE_4)}
    commands: Mapping[str, tuple[Callable[[Flags], None], Mapping[str, str]]] = {
        "version": (telling.say_version, {"short": "switch"}),
        "show crds": (telling.show_crds, _SOURCE),
        "show values": (telling.show_values, _SOURCE),
        "show chart": (telling.show_chart, _SOURCE),
        "upgrade": (changing.upgrade, {**_SOURCE, **change}),
        "install": (
            changing.install,
            {**_SOURCE, **{key: kind for key, kind in change.items() if key != "install"}},
        ),
        "get values": (telling.get_values, {"output": "text", "revision": "number"}),
        "status": (telling.say_status, {"output": "text"}),
        "list": (
            telling.list_releases,
            {
                "output": "text",
                "all": "switch",
                "all-namespaces": "switch",
                "filter": "text",
                "pending": "switch",
            },
        ),
        "uninstall": (changing.uninstall, {"ignore-not-found": "switch"}),
    }
    if name not in commands:
        raise RefusedError(f'unknown command "{name}" for "helm"\n\nRun \'helm --help\' for usage.')
    work, known = commands[name]
    work(read(arguments, {**_CLUSTER, **known}, _SHORT))
