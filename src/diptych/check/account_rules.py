"""N1xx: the AWS account: who asks, what the policies and quotas allow, and what AWS says of the document's versions.

Rules look at what `diptych.eks.account.gather` found out, and stay silent about what it could not (N190 says that
once).
"""

import math
from collections.abc import Iterable
from datetime import date, timedelta

from diptych.catalog.engines import KUBERNETES_VERSIONS
from diptych.catalog.instances import instance_type
from diptych.check.account import Account, Quota
from diptych.check.demand import Demand, demands
from diptych.check.findings import Complaint
from diptych.check.rules import rule
from diptych.check.subject import Subject

_LONG_ENOUGH = timedelta(hours=1)
_SUPPORT_SOON = timedelta(days=60)
_CLOCK_S = 60
"""AWS refuses signatures that are five minutes off."""

VPCS, ADDRESSES = "L-F678F1CE", "L-0263D0A3"
"""Quotas of what a new cluster needs one of: VPCs in a region, Elastic IP addresses (for the NAT gateway)."""


@rule("N101", "error", "An account that nobody is let into")
def caller_is_known(subject: Subject) -> Iterable[Complaint]:
    account = account_of(subject)
    if account is not None and account.refused is not None:
        yield Complaint("on", f"is eks, and {account.refused.why}", account.refused.do)


@rule("N102", "warning", "Credentials that end soon")
def credentials_last(subject: Subject) -> Iterable[Complaint]:
    account = account_of(subject)
    if account is None or account.identity is None or account.identity.expires is None:
        return
    left = account.identity.expires - account.asked_at
    if left < _LONG_ENOUGH:
        minutes = max(0, math.floor(left.total_seconds() / 60))
        do = f"run aws sso login{with_profile(account)} first, or renew them as you got them"
        yield Complaint(
            "on",
            f"is eks, and the AWS credentials end in {minutes} minutes: a new cluster takes about 30, with the "
            "service up to an hour",
            do,
        )


@rule("N103", "error", "Another account or region than before")
def place_is_the_same(subject: Subject) -> Iterable[Complaint]:
    account, name = account_of(subject), subject.document.name
    if account is None:
        return
    if account.expected_region not in (None, account.region):
        yield Complaint(
            "eks.region",
            f"is {account.region}, and {name} is up in {account.expected_region}, where it would stay and cost money",
            f"take it down first (diptych down --name {name}), or give the document another name",
        )
    if account.identity is not None and account.expected not in (None, account.identity.account):
        yield Complaint(
            "on",
            f"is eks, and {name} is up in account {account.expected}, while these credentials are of account "
            f"{account.identity.account} ({account.identity.arn})",
            "set AWS_PROFILE to a profile of that account; or give the document another name",
        )


@rule("N104", "warning", "A region that the document does not name")
def region_is_meant(subject: Subject) -> Iterable[Complaint]:
    account = account_of(subject)
    if account is None or subject.is_written("eks.region") or account.configured_region is None:
        return
    if account.configured_region != account.region:
        yield Complaint(
            "eks.region",
            f"is {account.region} by default, and AWS's configuration here says {account.configured_region}",
            f"write region: {account.configured_region} under eks, or {account.region} if that is meant",
        )


@rule("N105", "warning", "Actions that the caller's policies deny")
def actions_are_allowed(subject: Subject) -> Iterable[Complaint]:
    account = account_of(subject)
    if account is None or not account.denied or account.identity is None:
        return
    named = ", ".join(account.denied)
    yield Complaint(
        "on",
        f"is eks, and by IAM's simulation {account.identity.arn} may not: {named}",
        "have them allowed, or use another role; a policy that allows them for some resources only is well here",
    )


@rule("N106", "error", "A quota that is too small")
def quotas_are_enough(subject: Subject) -> Iterable[Complaint]:
    account = account_of(subject)
    if account is None or account.quotas is None:
        return
    for quota in account.quotas:
        needed, words, field = _needed(subject, account, quota)
        total = (quota.used or 0) + needed
        if not needed or total <= quota.limit:
            continue
        used = "an unknown number" if quota.used is None else f"{quota.used}"
        yield Complaint(
            field,
            f"needs {needed} {quota.unit} ({words}), and the account has {quota.limit} in {account.region}, {used} "
            f"of them in use: {quota.name}",
            f"run aws service-quotas request-service-quota-increase --service-code {quota.service} --quota-code "
            f"{quota.code} --desired-value {total} --region {account.region}{with_profile(account)}",
        )


@rule("N120", "error", "A version of Kubernetes that AWS does not support")
def kubernetes_is_supported(subject: Subject) -> Iterable[Complaint]:
    account, version = account_of(subject), subject.document.eks.kubernetes_version
    if account is None or not account.releases or _table_refuses(version, subject.facts.today):
        return
    release = account.release(version)
    if release is not None and release.status == "standard":
        return
    if release is not None and release.status == "extended":
        what = f"is {version}, whose standard support has ended: the control plane costs six times as much"
    else:
        offered = [each.version for each in account.releases if each.status != "unsupported"]
        what = f"is {version}, and EKS has {', '.join(sorted(offered, key=_number))} in {account.region}"
    yield Complaint("eks.kubernetes_version", what, f'write "{_newest_known(account)}"')


@rule("N121", "warning", "A version of Kubernetes whose support ends soon, by AWS's word")
def kubernetes_stays_supported(subject: Subject) -> Iterable[Complaint]:
    account, version = account_of(subject), subject.document.eks.kubernetes_version
    today = subject.facts.today
    release = account.release(version) if account is not None else None
    if account is None or release is None or release.status != "standard":
        return
    if _ends_soon(release.standard_until, today) and not _ends_soon(KUBERNETES_VERSIONS.get(version), today):
        what = f"is {version}, whose standard support on EKS ends on {release.standard_until}"
        yield Complaint("eks.kubernetes_version", what, f'write "{_newest_known(account)}"')


@rule("N130", "error", "An image that the registry does not have")
def image_is_there(subject: Subject) -> Iterable[Complaint]:
    facts = subject.facts.account or subject.facts.cluster
    image = facts.image if facts else None
    if image is not None and image.exists is False:
        yield Complaint("image.name", f"is {image.name}, and {image.why}", "correct it, or push the image")


@rule("N150", "error", "A program that is needed")
def programs_are_there(subject: Subject) -> Iterable[Complaint]:
    facts = subject.facts.account or subject.facts.cluster
    for program in facts.programs if facts else ():
        if program.problem:
            problem = program.problem.strip().rstrip(".")
            yield Complaint("on", f"is {subject.document.on}, and {problem}", program.do)


@rule("N160", "warning", "A clock that is wrong")
def clock_is_right(subject: Subject) -> Iterable[Complaint]:
    account = account_of(subject)
    ahead = account.clock_ahead_s if account else None
    if ahead is not None and abs(ahead) > _CLOCK_S:
        way = "ahead of" if ahead > 0 else "behind"
        yield Complaint(
            "on",
            f"is eks, and this machine's clock is {abs(ahead):.0f} s {way} AWS's, which refuses signatures that are "
            "five minutes off",
            "set it by the network: timedatectl set-ntp true",
        )


@rule("N190", "warning", "Something that could not be asked")
def everything_was_asked(subject: Subject) -> Iterable[Complaint]:
    facts = subject.facts.account or subject.facts.cluster
    for each in facts.unasked if facts else ():
        yield Complaint("on", f"{each.what} could not be checked: {each.why}", each.do or "check it by hand")
    if facts and facts.image is not None and facts.image.exists is None:
        what = f"is {facts.image.name}, which could not be looked up: {facts.image.why}"
        yield Complaint("image.name", what, "check it by hand: nodes pull it with their own role")


def account_of(subject: Subject) -> Account | None:
    """The account's facts, where the document is for EKS and they were asked for."""
    return subject.facts.account if subject.document.on == "eks" else None


def with_profile(account: Account) -> str:
    """What a command of the AWS CLI needs to ask as the same caller: " --profile NAME", or nothing."""
    profile = account.identity.profile if account.identity else None
    return f" --profile {profile}" if profile else ""


def _needed(subject: Subject, account: Account, quota: Quota) -> tuple[int, str, str]:
    """How much of a quota the document needs: amount, in words, and the field that says so."""
    if quota.code in (VPCS, ADDRESSES):
        return (1 if account.cluster is None else 0), "for a new cluster", "eks.cluster"
    asked = [each for each in demands(subject.document) if each.quota == quota.code]
    needed = sum(each.count * _vcpus(account, each) for each in asked)
    words = " + ".join(f"{each.count} × {each.instance_type}" for each in asked)
    return needed, words, field_of(subject, asked[0]) if asked else "on"


def field_of(subject: Subject, asked: Demand) -> str:
    """The field that says the instance type of a node group."""
    views = (view for view in subject.phases if view.group and view.group.name == asked.name)
    view = next(views, None)
    return view.nodes_path("instance_type") if view else "eks.system_nodes.instance_type"


def _vcpus(account: Account, asked: Demand) -> int:
    offer = (account.offers or {}).get(asked.instance_type)
    known = instance_type(asked.instance_type)
    return offer.vcpus if offer else known.vcpus if known else 0


def _table_refuses(version: str, today: date) -> bool:
    """Whether C804 or C805 says so already."""
    end = KUBERNETES_VERSIONS.get(version)
    return version not in KUBERNETES_VERSIONS or (end is not None and end < today)


def _ends_soon(end: date | None, today: date) -> bool:
    return end is not None and end <= today + _SUPPORT_SOON


def _newest_known(account: Account) -> str:
    """The newest version in standard support, for a while yet, that this version of Diptych knows too."""
    today = account.asked_at.date()
    standard = [each for each in account.releases or () if each.status == "standard"]
    lasting = [each.version for each in standard if not _ends_soon(each.standard_until, today)]
    both = [version for version in lasting if version in KUBERNETES_VERSIONS]
    return max(both or lasting or KUBERNETES_VERSIONS, key=_number)


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())
