"""Single words of YAML to values and back, as the core schema of YAML 1.2 reads them (chapter 10.3 of the standard).

null                  ~, null, Null, NULL, or nothing
true, false           also True, TRUE, False, FALSE
12, -3, 0o17, 0x1f    whole numbers; 017 is 17
1.5, .5, 1e-3         numbers; .inf, .nan and what is too large for a float are refused
all else              text: yes, on, 1_000, 0b11, 1:30, 2026-11-29
"""

import math
import re
from collections.abc import Callable
from typing import Any

import yaml

Scalar = str | int | float | bool | None

TAG = "tag:yaml.org,2002:"
MERGE = f"{TAG}merge"

PLAIN = {
    f"{TAG}{kind}": re.compile(rf"(?:{words})\Z")
    for kind, words in {
        "null": r"~|null|Null|NULL|",
        "bool": r"true|True|TRUE|false|False|FALSE",
        "int": r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+",
        "float": r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "merge": "<<",
    }.items()
}
"""The words that mean more than their text unless they are quoted, by tag; the first tag that fits wins."""


def read(tag: str, text: str) -> Scalar:
    """The value of a scalar with this tag.

    Raises:
        KeyError: the tag is not known here.
        ValueError: the text is no value of that kind.
    """
    reader = _READERS[tag]
    if tag in PLAIN and not PLAIN[tag].match(text):
        raise ValueError(text)
    return reader(text)


def written(value: Any) -> str:
    """`value` on one line of YAML, quoted so that versions 1.1 and 1.2 read it alike.

    >>> written("on"), written("g6.8xlarge"), written(True), written("1.35"), written({"a": [1, "x"]})
    ("'on'", 'g6.8xlarge', 'true', "'1.35'", '{a: [1, x]}')
    """
    text = yaml.dump(
        value, Dumper=TextDumper, default_flow_style=True, sort_keys=False, width=10**6, allow_unicode=True
    )
    return text.removesuffix("\n").removesuffix("\n...")


def text_of(text: str) -> str:
    r"""`text` with its pairs of surrogates as one character each: JSON writes an emoji as `\ud83d\ude00`.

    Raises:
        ValueError: a surrogate stands alone.
    """
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")


class TextDumper(yaml.SafeDumper):
    """Quotes what means more than its text in YAML 1.1, by itself, or in YAML 1.2; no anchors."""

    LINES = '"'
    """How text of several lines is written."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: TextDumper, text: str) -> yaml.ScalarNode:
    meant = any(pattern.match(text) for pattern in PLAIN.values())
    style = (
        '"' if _LINE_ENDS_OF_1_1.search(text) else dumper.LINES if "\n" in text else "'" if meant else None
    )
    return dumper.represent_scalar(f"{TAG}str", text, style=style)


_LINE_ENDS_OF_1_1 = re.compile("[\\x85\\u2028\\u2029]")
TextDumper.add_representer(str, _represent_text)


def _whole_number(text: str) -> int:
    return int(text, 0 if text.startswith(("0o", "0x")) else 10)


def _number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number


_READERS: dict[str, Callable[[str], Scalar]] = {
    f"{TAG}str": text_of,
    f"{TAG}timestamp": text_of,
    f"{TAG}null": lambda _: None,
    f"{TAG}bool": lambda text: text.lower() == "true",
    f"{TAG}int": _whole_number,
    f"{TAG}float": _number,
    MERGE: text_of,
}
