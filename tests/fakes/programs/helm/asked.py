"""What every command is asked: which helm it is, which chart, which cluster, which namespace."""

import os
import time

from fakes.programs.api import Api, ApiError
from fakes.programs.flags import Flags, RefusedError
from fakes.programs.helm.charts import Chart, find
from fakes.programs.helm.releases import Release


def version() -> str:
    return os.environ.get("FAKE_HELM_VERSION", "4.1.4")


def major() -> int:
    return int(version().split(".")[0])


def chart_of(flags: Flags, place: int) -> Chart:
    if len(flags.arguments) <= place:
        raise RefusedError(f'"helm" requires {place + 1} argument(s)')
    chart = find(flags.arguments[place], flags.text("repo"))
    chart.version(flags.text("version"))
    return chart


def api_of(flags: Flags) -> Api:
    api = Api.of_kubeconfig(flags.text("kubeconfig"), flags.text("kube-context"), "helm")
    try:
        api.call("GET", "/version")
    except ApiError as error:
        if error.status:
            raise ApiError(error.status, f"Kubernetes cluster unreachable: {error}") from None
        raise
    return api


def namespace_of(flags: Flags) -> str:
    return flags.text("namespace", "default")


def tell(release: Release, *, upgraded: bool) -> None:
    if upgraded:
        print(f'Release "{release.name}" has been upgraded. Happy Helming!')
    print(f"NAME: {release.name}\nLAST DEPLOYED: {time.ctime()}\nNAMESPACE: {release.namespace}")
    print(f"STATUS: {release.status}\nREVISION: {release.revision}\nTEST SUITE: None")
