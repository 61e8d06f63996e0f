"""`helm version`, `show`, `get values`, `status` and `list`."""

import json

import yaml

from fakes.programs.flags import Flags, RefusedError
from fakes.programs.helm.asked import api_of, chart_of, major, namespace_of, tell, version
from fakes.programs.helm.charts import custom_resources
from fakes.programs.helm.releases import Release, Releases


def say_version(flags: Flags) -> None:
    if flags.on("short"):
        print(f"v{version()}+g05fa379")
        return
    tail = ', KubeClientVersion:"v1.35"' if major() == 4 else ""
    print(
        f'version.BuildInfo{{Version:"v{version()}", GitCommit:"05fa379", GitTreeState:"clean", '
        f'GoVersion:"go1.25.5"{tail}}}'
    )


def show_chart(flags: Flags) -> None:
    chart = chart_of(flags, 0)
    print(
        yaml.safe_dump(
            {"apiVersion": "v2", "name": chart.name, "version": chart.version(flags.text("version"))}
        ),
        end="",
    )


def get_values(flags: Flags) -> None:
    release = _latest(flags)
    if flags.text("output") == "json":
        print(json.dumps(release.values or None))
        return
    print("USER-SUPPLIED VALUES:")
    print(yaml.safe_dump(dict(release.values)) if release.values else "null", end="")


def _latest(flags: Flags) -> Release:
    wanted = int(flags.text("revision", "0"))
    found = Releases(api_of(flags), namespace_of(flags)).all()
    of_name = [one for one in found if one.name == flags.arguments[0] and wanted in (0, one.revision)]
    release = of_name[-1] if of_name else None
    if release is None:
        raise RefusedError("release: not found")
    return release


def say_status(flags: Flags) -> None:
    release = _latest(flags)
    if flags.text("output") == "json":
        print(
            json.dumps(
                {
                    "name": release.name,
                    "namespace": release.namespace,
                    "version": release.revision,
                    "info": {"status": release.status},
                }
            )
        )
        return
    tell(release, upgraded=False)


def list_releases(flags: Flags) -> None:
    api = api_of(flags)
    if flags.on("all-namespaces"):
        spaces = [one["metadata"]["name"] for one in api.call("GET", "/api/v1/namespaces")["items"]]
    else:
        spaces = [namespace_of(flags)]
    newest: dict[tuple[str, str], Release] = {}
    for space in spaces:
        newest |= {(space, one.name): one for one in Releases(api, space).all()}
    # helm 3 leaves out what is pending, unless asked; helm 4 does not.
    whole = major() == 4 or flags.on("all") or flags.on("pending")
    rows = [
        {
            "name": one.name,
            "namespace": one.namespace,
            "revision": str(one.revision),
            "updated": one.updated,
            "status": one.status,
            "chart": f"{one.chart}-{one.chart_version}",
            "app_version": one.app_version,
        }
        for one in newest.values()
        if (whole or one.status in {"deployed", "failed"}) and flags.text("filter", "") in one.name
    ]
    if flags.text("output") == "json":
        print(json.dumps(rows))
        return
    print("NAME\tNAMESPACE\tREVISION\tUPDATED\tSTATUS\tCHART\tAPP VERSION")
    for row in rows:
        print("\t".join(row.values()))


def show_crds(flags: Flags) -> None:
    """The chart's CRDs, as YAML documents."""
    print(custom_resources(chart_of(flags, 0)), end="")


def show_values(flags: Flags) -> None:
    """The chart's own values."""
    print(yaml.safe_dump(dict(chart_of(flags, 0).defaults)), end="")
