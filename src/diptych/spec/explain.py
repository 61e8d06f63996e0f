"""Pydantic's errors in plain words: what is wrong with the value that was seen, and what to do."""

import re
from collections.abc import Callable, Sequence

from pydantic_core import ErrorDetails

from diptych.catalog.arguments import known_in
from diptych.spec.document import REFUSED_FIELDS, Document
from diptych.spec.fields import Section
from diptych.spec.phases import PhaseSection
from diptych.spec.problems import FieldPath, dotted, nearest, shown
from diptych.spec.tree import item_section_at, section_at

Words = tuple[str, str]
"""What is wrong, and what to do."""


def path_of(error: ErrorDetails) -> FieldPath:
    """The field that `error` is about."""
    return tuple(step for step in error["loc"] if step != "[key]")


def explain(error: ErrorDetails) -> Words:
    """`error` in plain words."""
    return _RULES.get(error["type"], _other)(error)


def code_of(error: ErrorDetails) -> str:
    """The code of `error`, by its kind."""
    if error["type"] == "extra_forbidden":
        return "S105" if dotted(path_of(error)) in REFUSED_FIELDS else "S104"
    return _CODES.get(error["type"], "S106" if error["type"].endswith(("_type", "_parsing")) else "S109")


def _unknown(error: ErrorDetails) -> Words:
    path = path_of(error)
    if dotted(path) in REFUSED_FIELDS:
        why, do = REFUSED_FIELDS[dotted(path)]
        return f"can't be set: {why}", do
    section = _section_around(path)
    names = list(section.model_fields)
    like = nearest(str(path[-1]), names)
    if like is not None:
        return "there is no such field", f"did you mean {like}?"
    elsewhere = [dotted(known) for known in _all_fields(Document, ()) if known[-1] == path[-1]]
    if elsewhere:
        return "there is no such field here", f"did you mean {_either(elsewhere[:_MOST_NAMED])}?"
    if known_in(str(path[-1]).lstrip("-").replace("-", "_")):
        return "there is no such field here", "arguments of vLLM go into engine_kwargs"
    do = f"the fields here are {', '.join(names)}"
    if section in (Document, PhaseSection):
        do += "; arguments of vLLM go into engine_kwargs"
    return "there is no such field", do


def _literal(error: ErrorDetails) -> Words:
    options = [word or number for word, number in re.findall(r"'([^']+)'|(\d+)", error["ctx"]["expected"])]
    like = nearest(error["input"], options) if isinstance(error["input"], str) else None
    do = f"did you mean {like}?" if like else "write one of them"
    return f"is {shown(error['input'])}, and can be {_either(options)}", do


def _text(error: ErrorDetails) -> Words:
    value = error["input"]
    scalar = isinstance(value, int | float)
    return f"is {shown(value)}, and must be text", "put it in quotes" if scalar else "write a plain word"


def _whole_number(error: ErrorDetails) -> Words:
    value = error["input"]
    quoted = isinstance(value, str) and value.strip().isdecimal()
    do = "write it without quotes" if quoted else "write digits only"
    return f"is {shown(value)}, and must be a whole number", do


def _too_large(error: ErrorDetails) -> Words:
    return f"is {shown(error['input'])}, and is too large a number", "give a smaller one"


def _number(error: ErrorDetails) -> Words:
    value = error["input"]
    quoted = isinstance(value, str) and re.fullmatch(r"\s*[-+]?\d+(\.\d*)?\s*", value) is not None
    return (
        f"is {shown(value)}, and must be a number",
        "write it without quotes" if quoted else "write it like 2 or 1.5",
    )


def _truth_value(error: ErrorDetails) -> Words:
    value = error["input"]
    meant = {"true": "true", "yes": "true", "on": "true", "false": "false", "no": "false", "off": "false"}
    word = meant.get(value.lower()) if isinstance(value, str) else None
    return f"is {shown(value)}, and must be true or false", f"write {word or 'true or false, without quotes'}"


def _at(word: str, key: str, other: str) -> Callable[[ErrorDetails], Words]:
    def words(error: ErrorDetails) -> Words:
        limit = _plain(error["ctx"][key])
        return f"is {shown(error['input'])}, and must be at {word} {limit}", f"give {limit} or {other}"

    return words


def _beyond(word: str, key: str) -> Callable[[ErrorDetails], Words]:
    def words(error: ErrorDetails) -> Words:
        limit = _plain(error["ctx"][key])
        return f"is {shown(error['input'])}, and must be {word} than {limit}", f"give {word} than {limit}"

    return words


def _mapping(error: ErrorDetails) -> Words:
    return (
        f"is {shown(error['input'])}, and must be a mapping",
        "write `name: value` lines, indented below it",
    )


def _list(error: ErrorDetails) -> Words:
    value = error["input"]
    what = f"is {shown(value)}, and must be a list"
    return what, "write `- ` before each value, or put them into [ ]"


def _path(error: ErrorDetails) -> Words:
    return f"is {shown(error['input'])}, and must be a path", "write the path of a file"


def _refused(error: ErrorDetails) -> Words:
    return error["ctx"]["what"], error["ctx"]["do"]


def _other(error: ErrorDetails) -> Words:
    message = error["msg"].replace("Input", "the value")
    return f"is {shown(error['input'])}: {message[:1].lower()}{message[1:]}", "correct the value"


_CODES = {
    "literal_error": "S108",
    "greater_than": "S107",
    "greater_than_equal": "S107",
    "less_than": "S107",
    "less_than_equal": "S107",
}

_RULES: dict[str, Callable[[ErrorDetails], Words]] = {
    "extra_forbidden": _unknown,
    "literal_error": _literal,
    "string_type": _text,
    "int_type": _whole_number,
    "int_parsing_size": _too_large,
    "float_type": _number,
    "bool_type": _truth_value,
    "greater_than_equal": _at("least", "ge", "more"),
    "less_than_equal": _at("most", "le", "less"),
    "greater_than": _beyond("more", "gt"),
    "list_type": _list,
    "dict_type": _mapping,
    "model_type": _mapping,
    "path_type": _path,
    "refused": _refused,
}


def _plain(limit: float) -> str:
    return str(limit).removesuffix(".0")


_MOST_NAMED = 3
"""Fields named in one message, at most."""


def _either(options: Sequence[str]) -> str:
    *others, last = options
    return f"{', '.join(others)} or {last}" if others else last


def _section_around(path: FieldPath) -> type[Section]:
    section: type[Section] = Document
    for step in path[:-1]:
        section = section_at(section, str(step)) or item_section_at(section, str(step)) or section
    return section


def _all_fields(section: type[Section], path: FieldPath) -> list[FieldPath]:
    """Every field in `section`, sections included, those that are nearer to the top first."""
    found: list[FieldPath] = []
    for name in section.model_fields:
        inner = section_at(section, name)
        found += [(*path, name), *(_all_fields(inner, (*path, name)) if inner else [])]
    return sorted(found, key=len)
