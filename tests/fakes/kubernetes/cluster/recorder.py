"""What controllers do with objects, over the store: status, labels, events."""

from typing import Any

from fakes.kubernetes.errors import Json
from fakes.kubernetes.objects import Writer, now, random_name
from fakes.kubernetes.store import Store


class Recorder:
    """One component's hand on the store.

    Args:
        component: its name: the field manager, and the source of its events.
    """

    def __init__(self, store: Store, component: str) -> None:
        self.store = store
        self._writer, self._component = Writer(component), component

    def all(self, kind: str, namespace: str = "") -> list[Json]:
        try:
            return self.store.all(self.store.kind(kind), namespace)
        except KeyError:
            return []

    def find(self, kind: str, namespace: str, name: str) -> Json | None:
        return self.store.find(self.store.kind(kind), namespace, name)

    def create(self, kind: str, namespace: str, thing: Json) -> Json:
        return self.store.create(self.store.kind(kind), thing, namespace, self._writer)

    def status(self, thing: Json, status: Json) -> None:
        """Write a status, if the object is still there."""
        self._edit(thing, {"status": status}, "status")

    def edit(self, thing: Json, **fields: Any) -> None:
        """Write an object's fields (`spec=…`) or parts of its metadata (`labels=…`), if it is still there."""
        self._edit(thing, fields, "")

    def _edit(self, thing: Json, fields: Json, subresource: str) -> None:
        kind = self.store.kind(thing["kind"], thing["apiVersion"].rpartition("/")[0])
        metadata = thing["metadata"]
        with self.store.lock:
            current = self.store.find(kind, metadata.get("namespace", ""), metadata["name"])
            if current is None or current["metadata"]["uid"] != metadata["uid"]:
                return
            own = {name: value for name, value in fields.items() if name in ("spec", "status", "endpoints")}
            of_metadata = {name: value for name, value in fields.items() if name not in own}
            after = {**current, **own, "metadata": {**current["metadata"], **of_metadata}}
            self.store.replace(kind, current, after, self._writer, subresource)

    def delete(self, thing: Json, *, grace_s: float | None = None) -> None:
        kind = self.store.kind(thing["kind"], thing["apiVersion"].rpartition("/")[0])
        with self.store.lock:
            current = self.store.find(kind, thing["metadata"].get("namespace", ""), thing["metadata"]["name"])
            if current is not None and current["metadata"]["uid"] == thing["metadata"]["uid"]:
                self.store.delete(kind, current, self._writer, grace_s=grace_s)

    def event(self, thing: Json, reason: str, message: str, *, warning: bool = False) -> None:
        """An event; the same one again counts up."""
        metadata = thing["metadata"]
        namespace = metadata.get("namespace", "default")
        if self.find("Namespace", "", namespace) is None:
            return
        for each in self.all("Event", namespace):
            about = each["involvedObject"]
            if (about.get("uid"), each["reason"], each["message"]) == (metadata["uid"], reason, message):
                changed = {**each, "count": each["count"] + 1, "lastTimestamp": now()}
                self.store.replace(self.store.kind("Event"), each, changed, self._writer)
                return
        involved = {
            "apiVersion": thing["apiVersion"],
            "kind": thing["kind"],
            "name": metadata["name"],
            "namespace": namespace,
            "uid": metadata["uid"],
            "resourceVersion": metadata["resourceVersion"],
        }
        event = {
            "metadata": {"name": f"{metadata['name']}.{random_name()}"},
            "involvedObject": involved,
            "reason": reason,
            "message": message,
            "type": "Warning" if warning else "Normal",
            "source": {"component": self._component},
            "reportingComponent": self._component,
            "firstTimestamp": now(),
            "lastTimestamp": now(),
            "count": 1,
        }
        if not self._is_ending(namespace):
            self.create("Event", namespace, event)

    def _is_ending(self, namespace: str) -> bool:
        found = self.find("Namespace", "", namespace)
        return found is None or "deletionTimestamp" in found["metadata"]


def named(thing: Json) -> str:
    """`NAMESPACE/NAME`, as events have it."""
    return f"{thing['metadata']['namespace']}/{thing['metadata']['name']}"


def owner(thing: Json) -> Json:
    """The owner reference of what `thing` controls."""
    metadata = thing["metadata"]
    return {
        "apiVersion": thing["apiVersion"],
        "kind": thing["kind"],
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def condition(kind: str, status: str, reason: str, message: str, before: list[Json]) -> Json:
    """A condition that keeps the time of its last transition."""
    old = next((each for each in before if each["type"] == kind), None)
    since = old["lastTransitionTime"] if old and old["status"] == status else now()
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": since}
