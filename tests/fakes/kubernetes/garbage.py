"""What goes when something is deleted: what it owns, a namespace's content, a definition's instances."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from fakes.kubernetes.errors import Json

if TYPE_CHECKING:
    from fakes.kubernetes.kinds import Kind
    from fakes.kubernetes.store import Store

FOREGROUND, CRD_FINALIZER = "foregroundDeletion", "customresourcecleanup.apiextensions.k8s.io"
Found = list[tuple["Kind", Json]]


def collect(store: Store) -> None:
    """Take away what is deleted and held by nothing, and what belongs to it, until nothing more goes."""
    while _pass(store):
        pass


def orphan(store: Store, uid: str) -> None:
    """Objects of that owner lose it, so that they stay."""
    for kind, thing in _owned(list(store.everything()), uid):
        kept = [each for each in thing["metadata"]["ownerReferences"] if each["uid"] != uid]
        store.keep(kind, {**thing, "metadata": {**thing["metadata"], "ownerReferences": kept}}, "MODIFIED")


def _pass(store: Store) -> bool:
    everything = list(store.everything())
    uids = {thing["metadata"]["uid"] for _, thing in everything}
    for kind, thing in everything:
        metadata = thing["metadata"]
        owners = metadata.get("ownerReferences", ())
        if metadata.get("deletionTimestamp"):
            if _went(store, kind, thing, everything):
                return True
        elif owners and not any(each["uid"] in uids for each in owners):
            store.mark(kind, thing)
            return True
    return False


def _went(store: Store, kind: Kind, thing: Json, everything: Found) -> bool:
    """Whether a deleted object could go, or something that it waits for was deleted."""
    metadata = thing["metadata"]
    finalizers = list(metadata.get("finalizers", ()))
    if kind.key == ("", "namespaces"):
        content = [
            (k, each) for k, each in everything if each["metadata"].get("namespace") == metadata["name"]
        ]
        if content:
            return _delete(store, content) or _say_what_remains(store, kind, thing, content)
    for finalizer, waits_for in (
        (FOREGROUND, _owned(everything, metadata["uid"])),
        (CRD_FINALIZER, _instances(everything, thing)),
    ):
        if finalizer in finalizers:
            if waits_for:
                return _delete(store, waits_for)
            kept = [each for each in finalizers if each != finalizer]
            store.keep(kind, {**thing, "metadata": {**metadata, "finalizers": kept}}, "MODIFIED")
            return True
    awaits_kubelet = kind.key == ("", "pods") and metadata.get("deletionGracePeriodSeconds")
    if finalizers or awaits_kubelet:
        return False
    store.remove(kind, thing)
    return True


def _delete(store: Store, things: Found) -> bool:
    fresh = [(kind, each) for kind, each in things if not each["metadata"].get("deletionTimestamp")]
    for kind, each in fresh:
        store.mark(kind, each)
    return bool(fresh)


def _owned(everything: Found, uid: str) -> Found:
    return [
        (kind, thing)
        for kind, thing in everything
        if any(each["uid"] == uid for each in thing["metadata"].get("ownerReferences", ()))
    ]


def _instances(everything: Found, definition: Json) -> Found:
    spec = definition.get("spec", {})
    key = (spec.get("group"), spec.get("names", {}).get("plural"))
    return [(kind, thing) for kind, thing in everything if kind.key == key]


def _say_what_remains(store: Store, kind: Kind, namespace: Json, content: Found) -> bool:
    counts = Counter(each.resource for each, _ in content)
    finalizers = Counter(name for _, thing in content for name in thing["metadata"].get("finalizers", ()))
    remaining = ", ".join(f"{name} has {count} resource instances" for name, count in sorted(counts.items()))
    held = ", ".join(f"{name} in {count} resource instances" for name, count in sorted(finalizers.items()))
    said = [
        ("NamespaceContentRemaining", "SomeResourcesRemain", f"Some resources are remaining: {remaining}")
    ]
    if held:
        words = f"Some content in the namespace has finalizers remaining: {held}"
        said.append(("NamespaceFinalizersRemaining", "SomeFinalizersRemain", words))
    conditions = [
        {"type": name, "status": "True", "reason": reason, "message": words} for name, reason, words in said
    ]
    if namespace["status"].get("conditions") != conditions:
        status = {**namespace["status"], "conditions": conditions}
        store.keep(kind, {**namespace, "status": status}, "MODIFIED")
        return True
    return False
