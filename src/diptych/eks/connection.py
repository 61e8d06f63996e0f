"""The way into the cluster: Kubernetes' API by a kubeconfig of our own."""

from collections.abc import Sequence
from ipaddress import ip_network

from diptych.eks import address, control_plane, kubeconfig
from diptych.eks.job import EksJob
from diptych.errors import AccountError, ClusterError
from diptych.kube.connection import Cluster, Target, UnreachableError
from diptych.kube.connection import connect as connect_to


def connect(job: EksJob) -> Cluster | None:
    """Connect to the job's cluster; None where there is none, or none that answers any more.

    Raises:
        ClusterError: it is there, and its API can't be reached.
    """
    found = control_plane.find(job)
    if found is None or not found.runs:
        return None
    kubeconfig.write(job.session, job.place.cluster, job.kubeconfig)
    try:
        return connect_to(Target(job.kubeconfig), dry_run=job.dry_run, view=job.view)
    except UnreachableError as error:
        own = _address_outside(found.public_access_cidrs)
        if own is None:
            raise
        raise UnreachableError(error.message, _opening(job, [*found.public_access_cidrs, own])) from error


def require(job: EksJob) -> Cluster:
    """As `connect`, for steps that need a cluster; in a dry run it may be one that is not there yet.

    Raises:
        ClusterError: there is none.
    """
    there = connect(job)
    if there is not None:
        return there
    if job.dry_run:
        return Cluster.absent(job.place.cluster, job.view)
    raise ClusterError(f"There is no cluster {job.place.cluster} yet.", "Make it: diptych up --step cluster.")


def _address_outside(cidrs: Sequence[str]) -> str | None:
    """This machine's address where the cluster's API is not open to it; None where it is, or nobody can tell."""
    if not cidrs:
        return None  # the API is private
    try:
        own = address.own_cidr()
    except AccountError:
        return None
    here = ip_network(own)
    of_same_kind = [network for network in map(ip_network, cidrs) if network.version == here.version]
    is_inside = any(here.network_address in network for network in of_same_kind)
    return own if of_same_kind and not is_inside else None


def _opening(job: EksJob, cidrs: Sequence[str]) -> str:
    return (
        f"Your address has changed: the cluster's API is not open to {cidrs[-1]}. Open it: aws eks "
        f"update-cluster-config --name {job.place.cluster} --region {job.session.region} --resources-vpc-config "
        f"endpointPublicAccess=true,endpointPrivateAccess=true,publicAccessCidrs={','.join(cidrs)}"
    )
