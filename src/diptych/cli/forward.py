"""`diptych forward`: a local port that stays connected to a service on a cluster."""

import time

from diptych.cli import places
from diptych.cli.console import err, out
from diptych.cli.places import LOCAL, Up
from diptych.errors import DocumentError, NotUpError


def run_forward(up: Up, port: int) -> int:
    """Keep a port open until Ctrl-C; 0 then.

    Raises:
        NotUpError: nothing of that name is up.
        DocumentError: the service is on this machine already.
        ClusterError: there is no pod to reach, or the port is in use.
    """
    if up.place == LOCAL and not places.services(up.name):
        raise NotUpError(f"No service called {up.name!r} is up.", "`diptych up` starts one.")
    if up.place == LOCAL:
        raise DocumentError(
            f"{up.name} is on this machine: it needs no port-forward.", "`diptych status` has its address."
        )
    from diptych.kube.endpoint import endpoint
    from diptych.progress import View

    job = places.job_of(up, View())
    with places.cluster_of(up, job) as cluster, endpoint(job, cluster, local_port=port) as found:
        out().print(f"{up.name} is at {found.url}/v1, with the key in {found.api_key_file}.", highlight=False)
        err().print("Press Ctrl-C to end it; it connects again by itself.", style="dim")
        try:
            while True:
                time.sleep(3600)
        except KeyboardInterrupt:
            return 0
