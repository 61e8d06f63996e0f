"""The objects of the fake cluster and their life: versions, events, status apart, finalizers, owners, namespaces.

What is stored is never changed in place: each write stores a new object, so that readers need no copies.
"""

import json
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from fakes.kubernetes import garbage, kinds, rules
from fakes.kubernetes.errors import Json, Refusal, not_found
from fakes.kubernetes.fields import track
from fakes.kubernetes.kinds import Kind
from fakes.kubernetes.objects import NOBODY, Writer, changed, content, copied, now, random_name, without_nulls

Key = tuple[str, str]  # namespace ("" where there is none) and name
_SYSTEM_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
CRDS = ("apiextensions.k8s.io", "customresourcedefinitions")


@dataclass(frozen=True)
class Event:
    """One change, for watches."""

    revision: int
    type: str
    kind: Kind
    thing: Json
    before: Json | None


class Store:
    """All objects. Every method that writes holds `lock`.

    Attributes:
        keeps_pods: whether a pod on a node stays until its kubelet has ended it (there is one), or goes at once.
        history: the latest changes; a watch from before them gets 410.
    """

    def __init__(self, kubernetes: str) -> None:
        self.kubernetes = kubernetes
        self.lock = threading.RLock()
        self.kinds: dict[tuple[str, str], Kind] = {each.key: each for each in kinds.built_in(kubernetes)}
        self.revision = 1
        self.history: deque[Event] = deque(maxlen=20_000)
        self.forgotten = 1
        self.keeps_pods = False
        self.listeners: list[Callable[[Event], None]] = []
        self._objects: dict[tuple[str, str], dict[Key, Json]] = {key: {} for key in self.kinds}
        for name in _SYSTEM_NAMESPACES:
            self.create(self.kind("Namespace"), {"metadata": {"name": name}}, "", Writer())

    def kind(self, name: str, group: str | None = None) -> Kind:
        """A kind by its name or plural."""
        for each in self.kinds.values():
            if name in (each.name, each.plural) and group in (None, each.group):
                return each
        raise KeyError(f"the fake API serves no {name}")

    def find(self, kind: Kind, namespace: str, name: str) -> Json | None:
        return self._objects[kind.key].get((namespace, name))

    def get(self, kind: Kind, namespace: str, name: str) -> Json:
        found = self.find(kind, namespace, name)
        if found is None:
            raise not_found(kind.resource, name)
        return found

    def all(self, kind: Kind, namespace: str = "") -> list[Json]:
        """Objects of a kind, in one namespace or ("") in all, in the order in which they are listed."""
        with self.lock:
            found = sorted(self._objects[kind.key].items(), key=lambda item: item[0])
        return [thing for (where, _), thing in found if namespace in ("", where)]

    def everything(self) -> Iterator[tuple[Kind, Json]]:
        for kind in list(self.kinds.values()):
            for thing in self.all(kind):
                yield kind, thing

    def create(
        self, kind: Kind, thing: Json, namespace: str, writer: Writer, *, status: bool = False
    ) -> Json:
        """A new object; its status is dropped as the API server does, unless `status`."""
        thing = copied(thing) if kind.is_custom else without_nulls(thing)
        metadata = thing.setdefault("metadata", {})
        with self.lock:
            self._refuse_place(kind, namespace)
            if not metadata.get("name"):
                if not metadata.get("generateName"):
                    why = "metadata.name: Required value: name or generateName is required"
                    raise Refusal(422, f"{kind.titled('')} is invalid: {why}")
                metadata["name"] = metadata["generateName"] + random_name()
            if self.find(kind, namespace, metadata["name"]):
                words = f'{kind.resource} "{metadata["name"]}" already exists'
                raise Refusal(409, words, "AlreadyExists")
            if kind.has_status and not status:
                thing.pop("status", None)
            thing |= {"apiVersion": thing.get("apiVersion") or kind.api_version(), "kind": kind.name}
            self._refuse_invalid(kind, thing)
            self._refuse_account(kind, thing, namespace)
            if not metadata.get("managedFields"):
                track({"metadata": {}}, thing, kind.schema, writer.entry(kind, "Update", ""))
            metadata |= {"uid": str(uuid.uuid4()), "creationTimestamp": now()}
            if kind.namespaced:
                metadata["namespace"] = namespace
            if "spec" in thing:
                metadata["generation"] = 1
            rules.begin(kind, thing, self.revision)
            return self.keep(kind, thing, "ADDED", writer)

    def replace(
        self,
        kind: Kind,
        before: Json,
        after: Json,
        writer: Writer,
        subresource: str = "",
        *,
        tracked: bool = False,
    ) -> Json:
        """`after` instead of `before`, as far as that subresource may change it.

        Args:
            tracked: its `managedFields` are right already (it was applied).
        """
        after = copied(after) if kind.is_custom else without_nulls(after)
        rules.refuse_stale(kind, before, after)
        after = changed(kind, before, after, subresource)
        self._refuse_invalid(kind, after)
        rules.refuse_change(kind, before, after)
        if not tracked:
            track(before, after, kind.schema, writer.entry(kind, "Update", subresource))
        if content(after) == content(before):
            return before
        if "spec" in after and after["spec"] != before.get("spec"):
            after["metadata"]["generation"] = before["metadata"].get("generation", 1) + 1
        with self.lock:
            kept = self.keep(kind, after, "MODIFIED", writer)
            if not writer.dry_run and before["metadata"].get("deletionTimestamp"):
                garbage.collect(self)
        return kept

    def delete(
        self,
        kind: Kind,
        thing: Json,
        writer: Writer,
        *,
        propagation: str = "Background",
        grace_s: float | None = None,
    ) -> Json:
        """Delete an object, or mark it when finalizers or a kubelet hold it. Returns it as it is then."""
        if kind.plural == "namespaces" and thing["metadata"]["name"] in _SYSTEM_NAMESPACES:
            name = thing["metadata"]["name"]
            raise Refusal(403, f'namespaces "{name}" is forbidden: this namespace may not be deleted')
        if writer.dry_run:
            return thing
        with self.lock:
            if propagation == "Orphan":
                garbage.orphan(self, thing["metadata"]["uid"])
            marked = self.mark(kind, thing, foreground=propagation == "Foreground", grace_s=grace_s)
            garbage.collect(self)
        return marked

    def mark(
        self, kind: Kind, thing: Json, *, foreground: bool = False, grace_s: float | None = None
    ) -> Json:
        """Mark an object as deleted: it goes when nothing holds it."""
        metadata = copied(thing["metadata"])
        finalizers = metadata.setdefault("finalizers", [])
        if foreground and garbage.FOREGROUND not in finalizers:
            finalizers.append(garbage.FOREGROUND)
        if kind.key == CRDS and garbage.CRD_FINALIZER not in finalizers:
            finalizers.append(garbage.CRD_FINALIZER)
        is_pod = kind.key == ("", "pods")
        if is_pod:
            default = thing["spec"].get("terminationGracePeriodSeconds", 30)
            seconds = default if grace_s is None else grace_s
            if not (self.keeps_pods and thing["spec"].get("nodeName")):
                seconds = 0
            metadata["deletionGracePeriodSeconds"] = int(seconds)
        else:
            seconds = 0
        metadata["deletionTimestamp"] = metadata.get("deletionTimestamp") or now(seconds)
        if not finalizers:
            del metadata["finalizers"]
        if "generation" in metadata and "deletionTimestamp" not in thing["metadata"]:
            metadata["generation"] += 1
        marked = {**thing, "metadata": metadata}
        if kind.plural == "namespaces":
            marked["status"] = {**thing["status"], "phase": "Terminating"}
        is_held = finalizers or metadata.get("deletionGracePeriodSeconds") or kind.plural == "namespaces"
        if not is_held:
            self.remove(kind, marked)
        elif content(marked) != content(thing):
            self.keep(kind, marked, "MODIFIED")
        return marked

    def forget_history(self) -> None:
        """As etcd's compaction: watches and lists that go on from before now get 410."""
        with self.lock:
            self.history.clear()
            self.forgotten = self.revision

    def _refuse_place(self, kind: Kind, namespace: str) -> None:
        """A namespace must be there, and not on its way out."""
        if not kind.namespaced:
            return
        found = self.get(self.kind("Namespace"), "", namespace)
        if found["metadata"].get("deletionTimestamp"):
            cause = {"reason": "NamespaceTerminating", "field": "metadata.namespace"}
            why = f"unable to create new content in namespace {namespace} because it is being terminated"
            raise Refusal(403, f"{kind.resource} is forbidden: {why}", causes=[cause])

    def _refuse_account(self, kind: Kind, thing: Json, namespace: str) -> None:
        """A pod's service account must be there."""
        if kind.key != ("", "pods"):
            return
        account = thing["spec"]["serviceAccountName"]
        if self.find(self.kind("ServiceAccount"), namespace, account) is None:
            why = f'error looking up service account {namespace}/{account}: serviceaccount "{account}" not found'
            raise Refusal(403, f'pods "{thing["metadata"]["name"]}" is forbidden: {why}')

    def _refuse_invalid(self, kind: Kind, thing: Json) -> None:
        rules.fill_in(kind, thing)
        _, _, version = thing["apiVersion"].rpartition("/")
        kind.versions[version].refuse_invalid(thing, kind.titled(thing["metadata"]["name"]))
        rules.refuse_bad(kind, thing)
        if len(json.dumps(thing)) > 1.5 * 2**20:
            raise Refusal(500, "etcdserver: request is too large")

    def keep(self, kind: Kind, thing: Json, what: str, writer: Writer = NOBODY) -> Json:
        """Store an object as it is, with a new version, and tell who watches."""
        metadata = thing["metadata"]
        key = (metadata.get("namespace", ""), metadata["name"])
        if writer.dry_run:
            metadata.setdefault("resourceVersion", "")
            return thing
        self.revision += 1
        metadata["resourceVersion"] = str(self.revision)
        before = self._objects[kind.key].get(key)
        self._objects[kind.key][key] = thing
        if kind.key == CRDS:
            served = kinds.defined_by(thing, self.kubernetes)
            self.kinds[served.key] = served
            self._objects.setdefault(served.key, {})
        self._tell(Event(self.revision, what, kind, thing, before))
        if kind.plural == "namespaces" and what == "ADDED":
            self._furnish(metadata["name"])
        return thing

    def _furnish(self, namespace: str) -> None:
        self.create(self.kind("ServiceAccount"), {"metadata": {"name": "default"}}, namespace, Writer())
        certificates = {"metadata": {"name": "kube-root-ca.crt"}, "data": {"ca.crt": "-"}}
        self.create(self.kind("ConfigMap"), certificates, namespace, Writer())

    def _tell(self, event: Event) -> None:
        if len(self.history) == self.history.maxlen:
            self.forgotten = self.history[0].revision
        self.history.append(event)
        for listener in self.listeners:
            listener(event)

    def remove(self, kind: Kind, thing: Json) -> None:
        metadata = thing["metadata"]
        del self._objects[kind.key][metadata.get("namespace", ""), metadata["name"]]
        self.revision += 1
        last = {**thing, "metadata": {**metadata, "resourceVersion": str(self.revision)}}
        self._tell(Event(self.revision, "DELETED", kind, last, thing))
        if kind.key == CRDS:
            self.kinds.pop((thing["spec"]["group"], thing["spec"]["names"]["plural"]), None)
