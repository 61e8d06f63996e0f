"""What the API server refuses or fills in beyond schemas: names, labels, sizes, fields that never change."""

import base64
import binascii
import re
from typing import Any

from fakes.kubernetes.errors import Json, Refusal
from fakes.kubernetes.kinds import Kind
from fakes.kubernetes.objects import now

_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_RBAC = re.compile(r"[^/%]+")
_LABEL_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
_QUALIFIED = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
MAX_ANNOTATIONS_BYTES = 256 * 2**10
MAX_DATA_BYTES = 2**20
_SECRET_KEYS = {"Opaque": (), "kubernetes.io/tls": ("tls.crt", "tls.key")}
# Of a pod, only these may change.
_POD_MUTABLE = ("tolerations", "activeDeadlineSeconds", "terminationGracePeriodSeconds")
_UNITS = {"": 1.0, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_UNITS |= {f"{letter}i": 2.0 ** (10 * power) for power, letter in enumerate("KMGTP", 1)}


def quantity(text: Any) -> float:
    """A resource quantity like `31850m` or `113Gi` as a number."""
    found = re.fullmatch(r"([0-9.]+(?:e[0-9]+)?)([a-zA-Z]*)", str(text))
    if not found or found[2] not in _UNITS:
        raise Refusal(400, f"quantities must match the regular expression '^([+-]?[0-9.]+)…': {text!r}")
    return float(found[1]) * _UNITS[found[2]]


def fill_in(kind: Kind, thing: Json) -> None:
    """What the server makes of what it is given, before it looks at it."""
    if kind.plural == "secrets" and "stringData" in thing:
        text = thing.pop("stringData") or {}
        encoded = {name: base64.b64encode(value.encode()).decode() for name, value in text.items()}
        thing["data"] = {**(thing.get("data") or {}), **encoded}
    if kind.plural == "secrets":
        thing.setdefault("type", "Opaque")
    if kind.key == ("", "pods"):
        thing["spec"].setdefault("restartPolicy", "Always")
        thing["spec"].setdefault("terminationGracePeriodSeconds", 30)
        thing["spec"].setdefault("serviceAccountName", "default")
        for each in (*thing["spec"].get("initContainers", ()), *thing["spec"]["containers"]):
            resources = each.get("resources", {})
            if resources.get("limits"):
                resources["requests"] = {**resources["limits"], **resources.get("requests", {})}


def begin(kind: Kind, thing: Json, revision: int) -> None:
    """What the server and its controllers give an object when it is new, the store being at `revision`."""
    name = thing["metadata"]["name"]
    if kind.plural == "namespaces":
        thing["spec"] = {"finalizers": ["kubernetes"]}
        thing["status"] = {"phase": "Active"}
        thing["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = name
    elif kind.key == ("", "pods"):
        thing.setdefault("status", {}).setdefault("phase", "Pending")
    elif kind.key == ("", "services") and thing["spec"].get("type") != "ExternalName":
        thing["spec"].setdefault("clusterIP", f"10.100.{revision // 250 % 250}.{revision % 250 + 1}")
    elif kind.name == "CustomResourceDefinition":
        conditions = [
            {"type": each, "status": "True", "lastTransitionTime": now(), "reason": reason, "message": ""}
            for each, reason in (
                ("NamesAccepted", "NoConflicts"),
                ("Established", "InitialNamesAccepted"),
            )
        ]
        names = thing["spec"]["names"]
        stored = [each["name"] for each in thing["spec"]["versions"] if each["storage"]]
        thing["status"] = {"conditions": conditions, "acceptedNames": names, "storedVersions": stored}


def refuse_bad(kind: Kind, thing: Json) -> None:
    """Refuse what the schema lets pass."""
    what, name = kind.titled(thing["metadata"]["name"]), thing["metadata"]["name"]
    form = _LABEL if kind.plural in ("namespaces", "services") else _SUBDOMAIN
    form = _RBAC if kind.group.startswith("rbac.") else form
    longest = 63 if form is _LABEL else 253
    if not form.fullmatch(name) or len(name) > longest:
        words = f"metadata.name: Invalid value: {name!r}: a lowercase RFC 1123 or 1035 name is needed"
        raise _invalid(what, "metadata.name", words)
    metadata = thing["metadata"]
    for key, value in (metadata.get("labels") or {}).items():
        if not _QUALIFIED.fullmatch(key) or not _LABEL_VALUE.fullmatch(value) or len(value) > 63:
            words = f"metadata.labels: Invalid value: {value!r}: a valid label must be alphanumeric, up to 63 long"
            raise _invalid(what, "metadata.labels", words)
    annotations = metadata.get("annotations") or {}
    if sum(len(key) + len(value.encode()) for key, value in annotations.items()) > MAX_ANNOTATIONS_BYTES:
        words = f"metadata.annotations: Too long: may not be more than {MAX_ANNOTATIONS_BYTES} bytes"
        raise _invalid(what, "metadata.annotations", words)
    if kind.plural in ("configmaps", "secrets"):
        _refuse_data(kind, thing, what)
    if kind.key == ("", "pods"):
        _refuse_resources(thing, what)


def _refuse_data(kind: Kind, thing: Json, what: str) -> None:
    encoded = (thing.get("data") or {}) if kind.plural == "secrets" else (thing.get("binaryData") or {})
    size = 0
    for name, value in encoded.items():
        try:
            size += len(base64.b64decode(value, validate=True))
        except (binascii.Error, ValueError) as error:
            raise Refusal(400, f"illegal base64 data in {name}") from error
    if kind.plural == "configmaps":
        size += sum(len(value.encode()) for value in (thing.get("data") or {}).values())
    if size > MAX_DATA_BYTES:
        raise _invalid(what, "data", f"[]: Too long: may not be more than {MAX_DATA_BYTES} bytes")
    if kind.plural == "secrets":
        for key in _SECRET_KEYS.get(thing["type"], ()):
            if key not in encoded:
                raise _invalid(what, f"data[{key}]", f"data[{key}]: Required value")


def _refuse_resources(pod: Json, what: str) -> None:
    for index, each in enumerate(pod["spec"]["containers"]):
        resources = each.get("resources", {})
        limits, requests = resources.get("limits", {}), resources.get("requests", {})
        for name, asked in requests.items():
            where = f"spec.containers[{index}].resources.requests"
            if name in limits and quantity(asked) > quantity(limits[name]):
                limit = f"must be less than or equal to {name} limit of {limits[name]}"
                words = f'{where}: Invalid value: "{asked}": {limit}'
                raise _invalid(what, where, words)
            is_extended = "/" in name or name.startswith("hugepages-")
            if is_extended and quantity(asked) != quantity(limits.get(name, "0")):
                words = f'{where}: Invalid value: "{asked}": must be equal to {name} limit'
                raise _invalid(what, where, words)


def refuse_stale(kind: Kind, before: Json, after: Json) -> None:
    """Refuse an update of another version, or of another object of that name, and new finalizers on what is deleted."""
    old, new = before["metadata"], after.get("metadata", {})
    if new.get("resourceVersion") not in (None, "", old["resourceVersion"]):
        words = "the object has been modified; please apply your changes to the latest version and try again"
        raise Refusal(409, f'Operation cannot be fulfilled on {kind.resource} "{old["name"]}": {words}')
    if new.get("uid") not in (None, "", old["uid"]):
        words = f"UID in precondition: {new['uid']}, UID in object meta: {old['uid']}"
        raise Refusal(409, f"Precondition failed: {words}")
    if old.get("deletionTimestamp") and set(new.get("finalizers", ())) - set(old.get("finalizers", ())):
        words = (
            "metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted"
        )
        raise _invalid(kind.titled(old["name"]), "metadata.finalizers", words, "FieldValueForbidden")


def refuse_change(kind: Kind, before: Json, after: Json) -> None:
    """Refuse a change of what never changes."""
    what = kind.titled(before["metadata"]["name"])
    if kind.plural in ("configmaps", "secrets") and before.get("immutable"):
        for name in ("data", "binaryData", "immutable"):
            if before.get(name) != after.get(name):
                words = f"{name}: Forbidden: field is immutable when `immutable` is set"
                raise _invalid(what, name, words, "FieldValueForbidden")
    if kind.plural == "secrets" and before["type"] != after["type"]:
        raise _invalid(what, "type", f'type: Invalid value: "{after["type"]}": field is immutable')
    if kind.key == ("", "pods"):
        old, new = ({**each["spec"]} for each in (before, after))
        for each in (old, new):
            each["containers"] = [{**one, "image": ""} for one in each["containers"]]
            for name in (*_POD_MUTABLE, "nodeName"):
                each.pop(name, None)
        if old != new:
            words = (
                "spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`,…"
            )
            raise _invalid(what, "spec", words, "FieldValueForbidden")
    selectors = [each.get("spec", {}).get("selector") for each in (before, after)]
    if kind.group == "apps" and selectors[0] != selectors[1]:
        raise _invalid(what, "spec.selector", "spec.selector: Invalid value: field is immutable")
    roles = [each.get("roleRef") for each in (before, after)]
    if roles[0] != roles[1]:
        raise _invalid(what, "roleRef", "roleRef: Invalid value: cannot change roleRef")


def _invalid(what: str, field: str, words: str, reason: str = "FieldValueInvalid") -> Refusal:
    message = words.removeprefix(f"{field}: ")
    cause = {"reason": reason, "field": field, "message": message}
    return Refusal(422, f"{what} is invalid: {words}", causes=[cause])
