"""The endpoint of a service in a cluster, as one on this machine: through a port-forward that is kept up."""

from collections.abc import Iterator
from contextlib import contextmanager

from diptych.endpoint import Endpoint
from diptych.kube.connection import Cluster
from diptych.kube.forward import PATIENCE_S, Forward
from diptych.kube.job import Job
from diptych.kube.secrets import key_file
from diptych.render import names
from diptych.spec import Document


@contextmanager
def endpoint(
    job: Job, cluster: Cluster, *, admin: bool = False, local_port: int = 0, patience_s: float = PATIENCE_S
) -> Iterator[Endpoint]:
    """The endpoint, for as long as the context lasts.

    Args:
        admin: with a key that opens admin routes, else with one for clients.
        local_port: 0: any that is free.
        patience_s: for how long a pod is waited for.

    Raises:
        ClusterError: there is no pod to reach, or no key.
    """
    keys = key_file(job, cluster, admin=admin)
    with forward_to(cluster, job.document, local_port, patience_s=patience_s) as forward:
        yield Endpoint(forward.url, keys, job.document.model.name)


def forward_to(
    cluster: Cluster, document: Document, local_port: int = 0, *, patience_s: float = PATIENCE_S
) -> Forward:
    """A port-forward to the service's endpoint: to the pods behind its Service, before that one is made to the head.

    KubeRay makes the Service only once all applications have been up (trap T5).
    """
    return Forward(
        cluster,
        document.kubernetes.namespace,
        f"service/{names.serve_service(document)}",
        names.serve_port(document),
        local_port,
        otherwise=head_labels(document),
        patience_s=patience_s,
    )


def head_labels(document: Document) -> str:
    """Labels of the service's Ray head."""
    return f"ray.io/node-type=head,{names.SERVICE_LABEL}={document.name}"
