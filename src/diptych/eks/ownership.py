"""Whose a cluster is: said by tags at its creation, and asked of AWS before anything is changed or deleted.

A cluster with our tag is ours. Several documents may share it; each has a tag of its own on it. On a cluster that
somebody else made only the node groups are ours, and the tags are on the system nodes' group.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from diptych.eks.job import EksJob, Place
from diptych.errors import AccountError
from diptych.render import names
from diptych.render.eksctl import (
    ACCOUNT_TAG,
    CLUSTER_TAG,
    DOCUMENT_TAG,
    REGION_TAG,
    cluster_tags,
    ownership_tags,
)


@dataclass(frozen=True)
class Owner:
    """What our tags say: where the resource was made, for which cluster, and the documents that use it.

    `account` and `region` are empty where the tags don't have them.
    """

    account: str
    region: str
    cluster: str
    documents: frozenset[str]

    @classmethod
    def of(cls, tags: Mapping[str, str]) -> "Owner | None":
        """Read it from a resource's tags; None for what is not ours."""
        if CLUSTER_TAG not in tags:
            return None
        documents = frozenset(key.removeprefix(DOCUMENT_TAG) for key in tags if key.startswith(DOCUMENT_TAG))
        return cls(tags.get(ACCOUNT_TAG, ""), tags.get(REGION_TAG, ""), tags[CLUSTER_TAG], documents)


def tags_of(job: EksJob) -> dict[str, str]:
    """The tags of all that this job makes."""
    return cluster_tags(job.document, job.place.account)


def is_ours(job: EksJob, tags: Mapping[str, str]) -> bool:
    """Whether these tags name this job's cluster."""
    return tags.get(CLUSTER_TAG) == job.place.cluster


def is_of_document(job: EksJob, tags: Mapping[str, str]) -> bool:
    """Whether these tags say that it was made for this document alone."""
    return is_ours(job, tags) and tags.get(names.SERVICE_LABEL) == job.document.name


def require_same_place(job: EksJob, owner: Owner | None = None) -> None:
    """Stop where the account or the region is another one than before.

    Raises:
        AccountError: the tags of what is there, or what is remembered, name another one.
    """
    now, before = job.place, job.remembered
    if before is not None:
        for what, is_now, was in (
            ("account", now.account, before.account),
            ("region", now.region, before.region),
            ("cluster", now.cluster, before.cluster),
        ):
            if is_now != was:
                raise _mismatch(job, what, is_now, was, "it was brought up")
    if owner is not None:
        for what, is_now, was in (
            ("account", now.account, owner.account),
            ("region", now.region, owner.region),
        ):
            if was and is_now != was:
                raise _mismatch(job, what, is_now, was, f"the tags of {now.cluster} say it was made")


def _mismatch(job: EksJob, what: str, is_now: str, was: str, when: str) -> AccountError:
    if what == "account":
        profile = f" (profile {job.identity.profile})" if job.identity.profile else ""
        hint = f"Use credentials of {was}: set AWS_PROFILE. These are {job.identity.arn}{profile}."
    else:
        hint = f"Set eks.{what} to {was}, or give the document another name."
    return AccountError(
        f"{job.document.name} is in another {what}: this is {is_now}, and {when} in {was}. Nothing was changed.",
        hint,
    )


def join(job: EksJob, arn: str, tags: Mapping[str, str]) -> None:
    """Say on a shared resource that this document uses it."""
    mine = {key: value for key, value in ownership_tags(job.document).items() if key.startswith(DOCUMENT_TAG)}
    if not mine.items() <= tags.items():
        job.change("eks", "tag_resource", arn, resourceArn=arn, tags=mine)


def leave(job: EksJob, arn: str) -> None:
    """Say that it no longer does."""
    keys = [f"{DOCUMENT_TAG}{job.document.name}"]
    job.change("eks", "untag_resource", arn, resourceArn=arn, tagKeys=keys)


def others(job: EksJob, tags: Mapping[str, str]) -> tuple[str, ...]:
    """The other documents that use a resource with these tags, by name."""
    owner = Owner.of(tags)
    return tuple(sorted(owner.documents - {job.document.name})) if owner else ()


__all__ = [
    "Owner",
    "Place",
    "is_of_document",
    "is_ours",
    "join",
    "leave",
    "others",
    "require_same_place",
    "tags_of",
]
