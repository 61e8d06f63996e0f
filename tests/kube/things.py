"""Objects that tests of the fake API make, and where it has them."""

from typing import Any

Json = dict[str, Any]
PODS, MAPS = "/api/v1/namespaces/default/pods", "/api/v1/namespaces/default/configmaps"
POD: Json = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "a", "namespace": "default", "labels": {"app": "a"}},
    "spec": {"containers": [{"name": "main", "image": "busybox"}, {"name": "side", "image": "busybox"}]},
}


def config_map(name: str = "a", **data: str) -> Json:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}
