"""Objects apart from where they are kept: copies, times, names, and who writes them."""

import json
import secrets
import string
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from fakes.kubernetes.errors import Json
from fakes.kubernetes.fields import Entry
from fakes.kubernetes.kinds import Kind


@dataclass(frozen=True)
class Writer:
    """Who writes: the field manager, and whether nothing is to be kept (`dryRun=All`)."""

    manager: str = "fake"
    dry_run: bool = False

    def entry(self, kind: Kind, operation: str, subresource: str) -> Entry:
        return Entry(self.manager, operation, subresource, kind.api_version(), set(), now())


NOBODY = Writer()


def now(later_s: float = 0.0) -> str:
    return (datetime.now(UTC) + timedelta(seconds=later_s)).strftime("%Y-%m-%dT%H:%M:%SZ")


def random_name() -> str:
    """Five characters, as names that are generated end with."""
    return "".join(secrets.choice(string.ascii_lowercase + string.digits) for _ in range(5))


_KEPT = (
    "name",
    "namespace",
    "uid",
    "creationTimestamp",
    "generation",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
)


def changed(kind: Kind, before: Json, after: Json, subresource: str) -> Json:
    """`after` as far as it may change `before`: a status by /status only, and nothing that the server sets."""
    metadata = after.get("metadata", {})
    if kind.has_status and subresource == "status":
        metadata = {**before["metadata"], "managedFields": metadata.get("managedFields")}
        after = {**before, "status": after.get("status", {})}
    elif kind.has_status:
        after = {name: value for name, value in after.items() if name != "status"}
        after |= {"status": before["status"]} if "status" in before else {}
    kept = {name: before["metadata"][name] for name in _KEPT if name in before["metadata"]}
    metadata = {name: value for name, value in metadata.items() if name not in _KEPT} | kept
    version = after.get("apiVersion") or before["apiVersion"]
    return {**after, "apiVersion": version, "kind": kind.name, "metadata": metadata}


def copied(thing: Any) -> Any:
    """A copy that shares nothing; quicker than deepcopy."""
    return json.loads(json.dumps(thing))


def content(thing: Json) -> Json:
    """An object without what changes although nothing changes."""
    metadata = {name: value for name, value in thing["metadata"].items() if name != "resourceVersion"}
    owned = [{**each, "time": ""} for each in metadata.pop("managedFields", None) or ()]
    return {**thing, "metadata": {**metadata, "managedFields": owned}}


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_nulls(each) for name, each in value.items() if each is not None}
    if isinstance(value, list):
        return [without_nulls(each) for each in value]
    return value
