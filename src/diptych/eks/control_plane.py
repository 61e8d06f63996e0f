"""The control plane of a cluster that exists: what it is like, where it differs, what an interrupted run left out."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from diptych.eks import eksctl, groups, ownership, stacks
from diptych.eks.job import EksJob
from diptych.errors import AccountError
from diptych.render.eksctl import api_access_cidrs, cluster_config
from diptych.render.write import to_yaml


@dataclass(frozen=True)
class EksCluster:
    """A cluster as EKS tells of it.

    Args:
        version: of Kubernetes, "1.35".
        public_access_cidrs: who may reach its API from outside; empty: nobody.
        issuer: of its OIDC tokens; empty without.
    """

    name: str
    arn: str
    status: str
    version: str
    issues: tuple[str, ...]
    public_access_cidrs: tuple[str, ...]
    issuer: str
    tags: Mapping[str, str]
    made_at: datetime | None = None

    @property
    def runs(self) -> bool:
        """Something may run in it; else nothing can have yet, or it is on its way out already."""
        return self.status in ("ACTIVE", "UPDATING")


def find(job: EksJob) -> EksCluster | None:
    """The job's cluster; None where there is none."""
    answer = job.session.find("eks", "describe_cluster", name=job.place.cluster)
    return _cluster(answer["cluster"]) if answer else None


def stack_name(job: EksJob) -> str:
    """What eksctl calls the stack of the control plane and its network."""
    return f"eksctl-{job.place.cluster}-cluster"


def differences(job: EksJob, found: EksCluster) -> tuple[str, ...]:
    """What an existing cluster has otherwise than the document says, in words.

    Where neither the document nor an earlier `up` here says who may reach its API, that is no difference.
    """
    cidrs = api_access_cidrs(job.document, job.facts)
    is_said = bool(cidrs) or job.document.eks.private_access_only
    access = ("its API is open to", _listed(found.public_access_cidrs), _listed(cidrs))
    pairs = (
        ("Kubernetes", found.version, job.document.eks.kubernetes_version),
        *((access,) if is_said else ()),
        *(
            (f"tag {key}", found.tags.get(key, "missing"), value)
            for key, value in job.document.eks.tags.items()
        ),
    )
    return tuple(f"{what} {is_now}, not {should}" for what, is_now, should in pairs if is_now != should)


def complete(job: EksJob, found: EksCluster, stage: str) -> None:
    """Do what an interrupted `eksctl create cluster` has not done: what there is is left as it is."""
    missing = missing_addons(job)
    associations = _missing_associations(job)
    if not missing and not associations:
        return
    job.tell("detail", stage, f"going on where it stopped: {', '.join([*missing, *associations])}")
    file = job.folder / "cluster.yaml"
    files = {file: to_yaml(cluster_config(job.document, job.facts, account=job.place.account))}
    config = f"--config-file={file}"
    if not _has_oidc(job, found):
        _trust_tokens(job, found)
    commands = [["create", "addon", config]] if missing else []
    commands += [["create", "podidentityassociation", config]] if associations else []
    for command in commands:
        finished = eksctl.run(
            job, stage, command, files=files, prefix=f"eksctl-{found.name}-addon", usual_s=groups.USUAL_S
        )
        if finished.code:
            why = stacks.failure(job.session, stacks.of_cluster(job.session, found.name)) or finished.last(3)
            raise AccountError(f"eksctl {' '.join(command[:2])} failed: {why}", f"See {job.log('eksctl')}.")


def missing_addons(job: EksJob) -> list[str]:
    """Names of the add-ons that the document's cluster has, and this one lacks."""
    wanted = [addon["name"] for addon in cluster_config(job.document, job.facts)["addons"]]
    there = set(job.session.pages("eks", "list_addons", "addons", clusterName=job.place.cluster))
    return [name for name in wanted if name not in there]


def remove_associations(job: EksJob, stage: str) -> None:
    """Remove the pod identities that were made for this document, with their roles, from a cluster that stays.

    Raises:
        AccountError: eksctl could not.
    """
    wanted = cluster_config(job.document, job.facts)["iam"].get("podIdentityAssociations") or []
    there = _associations(job) if wanted else set()
    for each in wanted:
        namespace, account = each["namespace"], each["serviceAccountName"]
        if (namespace, account) not in there or not _has_own_role(job, f"{namespace}-{account}"):
            continue
        finished = eksctl.run(
            job,
            stage,
            [
                *("delete", "podidentityassociation", f"--cluster={job.place.cluster}"),
                *(f"--namespace={namespace}", f"--service-account-name={account}"),
                f"--region={job.place.region}",
            ],
            prefix=f"eksctl-{job.place.cluster}-podidentity",
            usual_s=groups.USUAL_S,
        )
        if finished.code:
            raise AccountError(
                f"eksctl could not remove the pod identity of {account}: {finished.last(3)}",
                f"See {job.log('eksctl')}.",
            )


def _has_own_role(job: EksJob, ending: str) -> bool:
    """Whether the role of a pod identity is in a stack of ours: `up` also takes one that somebody else made."""
    return any(
        "-podidentity" in name and name.endswith(f"-{ending}") and ownership.is_ours(job, stack.tags)
        for name, stack in stacks.of_cluster(job.session, job.place.cluster).items()
    )


def _associations(job: EksJob) -> set[tuple[str, str]]:
    """Namespace and service account of each pod identity in the cluster."""
    found = job.session.pages(
        "eks", "list_pod_identity_associations", "associations", clusterName=job.place.cluster
    )
    return {(each["namespace"], each["serviceAccount"]) for each in found}


def _missing_associations(job: EksJob) -> list[str]:
    """Pod identities that the document asks for (a bucket's), and the cluster lacks."""
    wanted = cluster_config(job.document, job.facts)["iam"].get("podIdentityAssociations") or []
    if not wanted:
        return []
    there = _associations(job)
    return [
        f"pod identity of {each['serviceAccountName']}"
        for each in wanted
        if (each["namespace"], each["serviceAccountName"]) not in there
    ]


def _trust_tokens(job: EksJob, found: EksCluster) -> None:
    """Have IAM trust the cluster's tokens, by which add-ons get their roles; eksctl does so outside of any stack."""
    tags = {**ownership.tags_of(job), "alpha.eksctl.io/cluster-name": found.name}
    job.change(
        "iam",
        "create_open_id_connect_provider",
        found.issuer,
        Url=found.issuer,
        ClientIDList=["sts.amazonaws.com"],
        Tags=[{"Key": key, "Value": value} for key, value in tags.items()],
    )


def distrust_tokens(job: EksJob, found: EksCluster) -> None:
    """Remove what IAM trusts the tokens of a cluster of ours by, where eksctl left it.

    eksctl puts only its own tags on it: once the cluster is gone, nothing says whose it is.
    """
    for arn in _providers(job, found):
        job.change("iam", "delete_open_id_connect_provider", arn, OpenIDConnectProviderArn=arn)


def _has_oidc(job: EksJob, found: EksCluster) -> bool:
    return bool(_providers(job, found))


def _providers(job: EksJob, found: EksCluster) -> list[str]:
    """ARNs of the OIDC providers for the cluster's issuer: one or none."""
    host = found.issuer.removeprefix("https://")
    answer = job.session.call("iam", "list_open_id_connect_providers")
    arns = [each["Arn"] for each in answer["OpenIDConnectProviderList"]]
    return [arn for arn in arns if host and arn.endswith(f"/{host}")]


def _listed(cidrs: object) -> str:
    return ", ".join(sorted(map(str, cidrs if isinstance(cidrs, (list, tuple)) else ()))) or "nobody outside"


def _cluster(answer: Mapping[str, Any]) -> EksCluster:
    network = answer.get("resourcesVpcConfig") or {}
    is_public = network.get("endpointPublicAccess", False)
    return EksCluster(
        name=answer["name"],
        arn=answer.get("arn", ""),
        status=answer["status"],
        version=answer.get("version", ""),
        issues=tuple(each.get("message", "") for each in (answer.get("health") or {}).get("issues") or ()),
        public_access_cidrs=tuple(network.get("publicAccessCidrs") or ("0.0.0.0/0",)) if is_public else (),
        issuer=((answer.get("identity") or {}).get("oidc") or {}).get("issuer", ""),
        tags=answer.get("tags") or {},
        made_at=answer.get("createdAt"),
    )
