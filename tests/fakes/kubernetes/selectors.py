"""Label and field selectors, as query parameters have them."""

import re
from collections.abc import Mapping

from fakes.kubernetes.errors import Json, Refusal

_SET = re.compile(r"(?P<key>[^\s,!=()]+)\s+(?P<op>in|notin)\s+\((?P<values>[^)]*)\)")
_FIELDS = ("metadata.name", "metadata.namespace")
_FIELDS_OF = {
    "pods": ("spec.nodeName", "status.phase", "spec.serviceAccountName", "status.podIP"),
    "events": (
        "involvedObject.kind",
        "involvedObject.name",
        "involvedObject.namespace",
        "involvedObject.uid",
        "reason",
        "type",
    ),
    "nodes": ("spec.unschedulable",),
    "secrets": ("type",),
}


def labels_match(selector: str, labels: Mapping[str, str]) -> bool:
    """Whether `labels` satisfy a selector like `a=b,c!=d,e in (f,g),!h,i`."""
    rest = selector
    for found in _SET.finditer(selector):
        values = {each.strip() for each in found["values"].split(",")}
        if (labels.get(found["key"]) in values) != (found["op"] == "in"):
            return False
        rest = rest.replace(found[0], "")
    return all(_term(term.strip(), labels) for term in rest.split(",") if term.strip())


def _term(term: str, labels: Mapping[str, str]) -> bool:
    if "!=" in term:
        key, _, value = term.partition("!=")
        return labels.get(key.strip()) != value.strip()
    if "=" in term:
        key, _, value = term.replace("==", "=").partition("=")
        return labels.get(key.strip()) == value.strip()
    return term[1:] not in labels if term.startswith("!") else term in labels


def fields_match(selector: str, thing: Json, plural: str) -> bool:
    for term in filter(None, selector.split(",")):
        key, operator, value = re.split(r"(!=|==|=)", term, maxsplit=1)
        if key not in (*_FIELDS, *_FIELDS_OF.get(plural, ())):
            raise Refusal(400, f'field label not supported: "{key}"')
        found: object = thing
        for part in key.split("."):
            found = found.get(part, "") if isinstance(found, dict) else ""
        if (str(found) == value) != (operator != "!="):
            return False
    return True


def matches(selector: Json | None, labels: Mapping[str, str]) -> bool:
    """Whether `labels` satisfy a `LabelSelector` object; an empty one takes all, None takes nothing."""
    if selector is None:
        return False
    if any(labels.get(key) != value for key, value in selector.get("matchLabels", {}).items()):
        return False
    return all(_expression(each, labels) for each in selector.get("matchExpressions", ()))


def _expression(expression: Json, labels: Mapping[str, str]) -> bool:
    found, values = labels.get(expression["key"]), expression.get("values", ())
    match expression["operator"]:
        case "In":
            return found in values
        case "NotIn":
            return found not in values
        case "Exists":
            return found is not None
        case "DoesNotExist":
            return found is None
        case "Gt":
            return found is not None and int(found) > int(values[0])
        case "Lt":
            return found is not None and int(found) < int(values[0])
    raise Refusal(422, f"{expression['operator']} is not a valid selector operator")
