"""The few messages that helm and kubectl send as protobuf: their envelope, and the fields that are used, by number."""

import base64
from collections.abc import Iterator
from typing import Any

from fakes.kubernetes.errors import Json, Refusal

CONTENT_TYPE = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\x00"
_METADATA = {
    1: ("name", str),
    2: ("generateName", str),
    3: ("namespace", str),
    5: ("uid", str),
    6: ("resourceVersion", str),
    11: ("labels", {str: str}),
    12: ("annotations", {str: str}),
    14: ("finalizers", [str]),
}
_REVIEWED = {1: "namespace", 2: "verb", 3: "group", 4: "version", 5: "resource", 6: "subresource", 7: "name"}
_KINDS: dict[str, dict[int, Any]] = {
    "Secret": {
        1: ("metadata", _METADATA),
        2: ("data", {str: bytes}),
        3: ("type", str),
        4: ("stringData", {str: str}),
        5: ("immutable", bool),
    },
    "SelfSubjectAccessReview": {
        1: ("metadata", _METADATA),
        2: ("spec", {1: ("resourceAttributes", {number: (name, str) for number, name in _REVIEWED.items()})}),
    },
    "SelfSubjectReview": {1: ("metadata", _METADATA)},
    "DeleteOptions": {
        1: ("gracePeriodSeconds", int),
        2: ("preconditions", {1: ("uid", str), 2: ("resourceVersion", str)}),
        4: ("propagationPolicy", str),
        5: ("dryRun", [str]),
    },
}


def decode(raw: bytes) -> Json:
    """The object in a request's body.

    Raises:
        Refusal: a kind that is not known here (415).
    """
    envelope = dict(_fields(raw.removeprefix(_MAGIC)))
    names = {number: value.decode() for number, value in _fields(envelope[1])}
    kind = names.get(2, "")
    if kind not in _KINDS:
        raise Refusal(415, f"the fake API reads no {kind} as protobuf")
    return {"apiVersion": names.get(1, ""), "kind": kind, **_message(envelope.get(2, b""), _KINDS[kind])}


def _message(raw: bytes, fields: dict[int, Any]) -> Json:
    found: Json = {}
    for number, value in _fields(raw):
        if number not in fields:
            continue
        name, form = fields[number]
        if isinstance(form, list):
            found.setdefault(name, []).append(_value(value, form[0]))
        elif isinstance(form, dict) and str in form:
            pair = dict(_fields(value))
            found.setdefault(name, {})[pair[1].decode()] = _value(pair.get(2, b""), form[str])
        else:
            found[name] = _value(value, form)
    return {name: value for name, value in found.items() if value != ""}


def _value(value: Any, form: Any) -> Any:
    if isinstance(form, dict):
        return _message(value, form)
    if form is bytes:
        return base64.b64encode(value).decode()
    return value.decode() if form is str else form(value)


def _fields(raw: bytes) -> Iterator[tuple[int, Any]]:
    """Number and value of each field on the wire: whole numbers, or bytes."""
    place = 0
    while place < len(raw):
        key, place = _varint(raw, place)
        if key & 7 == 0:
            value, place = _varint(raw, place)
            yield key >> 3, value
        elif key & 7 == 2:
            length, place = _varint(raw, place)
            yield key >> 3, raw[place : place + length]
            place += length
        else:
            raise Refusal(400, f"wire type {key & 7} is not known")


def _varint(raw: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = raw[place]
        value |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return value, place
