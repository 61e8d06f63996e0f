"""YAML text to plain values, with the line of each.

PyYAML makes the nodes; words mean what YAML 1.2 says (`on` is a word, not a truth value). The nodes are
walked here, not by PyYAML's constructors: every field keeps its line, all doubled keys are found at once, and
aliases that refer to themselves or multiply without end stop at a limit instead of eating the machine.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import yaml
from yaml.reader import ReaderError

from diptych.spec.problems import FieldPath
from diptych.spec.scalars import MERGE, PLAIN, TAG, read, text_of

MAX_VALUES = 10_000
MAX_DEPTH = 50


@dataclass(frozen=True)
class Fault:
    """Something wrong with the text itself; `line` is 1-based, the rest as in `Problem`."""

    line: int
    path: FieldPath
    what: str
    do: str
    excerpt: str = ""
    code: str = "S102"


@dataclass(frozen=True)
class Parsed:
    """Plain values (dict, list, str, int, float, bool, None), the 1-based line of each, and what is wrong."""

    value: Any
    lines: dict[FieldPath, int]
    faults: list[Fault]


def parse(text: str) -> Parsed:
    """The values in `text`; whatever is wrong with it is in `faults`, and nothing is raised."""
    walk = _Walk()
    try:
        root = yaml.compose(text, _Composer)
        value = None if root is None else walk.value(root, ())
    except (yaml.MarkedYAMLError, ReaderError, _StopError) as error:
        return Parsed(None, {}, [_fault(error, text)])
    return Parsed(value, walk.lines, walk.faults)


def parse_all(text: str) -> list[Parsed]:
    """The values of each document in `text`, which `---` separates; lines are those of the whole text."""
    found: list[Parsed] = []
    try:
        loader = _Composer(text)
        while (root := loader.next_node()) is not None:
            walk = _Walk()
            found.append(Parsed(walk.value(root, ()), walk.lines, walk.faults))
    except (yaml.MarkedYAMLError, ReaderError, _StopError) as error:
        found.append(Parsed(None, {}, [_fault(error, text)]))
    return found


class _StopError(Exception):
    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.what)
        self.fault = fault


class _Composer(yaml.BaseLoader):
    """Text to nodes, up to a depth and a number of nodes.

    PyYAML follows YAML 1.1. As in 1.2, an anchor may be set again here, tabs may indent what is in brackets,
    and only CR and LF end a line (what else does in 1.1 is refused).
    """

    depth = 0
    count = 0

    def check_printable(self, data: str) -> None:
        super().check_printable(data)
        if (end := _OLD_LINE_END.search(data)) is not None:
            raise ReaderError(None, end.start(), ord(end[0]), "unicode", "it ended a line in YAML 1.1")

    def scan_to_next_token(self) -> None:
        super().scan_to_next_token()
        while self.flow_level and self.peek() == "\t":  # JSON may be indented with tabs
            self.forward()
            super().scan_to_next_token()

    def get_single_node(self) -> yaml.Node | None:
        return self._guarded(super().get_single_node)

    def next_node(self) -> yaml.Node | None:
        """The next document's node; None after the last one."""
        return self._guarded(lambda: self.get_node() if self.check_node() else None)

    def _guarded(self, compose: Callable[[], yaml.Node | None]) -> yaml.Node | None:
        try:
            return compose()
        except (ValueError, OverflowError) as error:  # "\UFFFFFFFF", %YAML 1.<5000 digits>
            problem = "a number is too large here"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=self.get_mark()) from error

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        line = int(event.start_mark.line) + 1
        self.count += 1
        if self.depth > MAX_DEPTH:
            raise _StopError(_too_deep(line))
        if self.count > 2 * MAX_VALUES:  # values and their names
            raise _StopError(_too_many(line))
        if not isinstance(event, yaml.AliasEvent):
            self.anchors.pop(event.anchor, None)
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


for _tag, _words in PLAIN.items():
    _Composer.add_implicit_resolver(_tag, _words, None)


@dataclass
class _Walk:
    """One walk over the nodes of a text; a node that an alias repeats is walked again at each place."""

    lines: dict[FieldPath, int] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    count: int = 0
    open_nodes: set[int] = field(default_factory=set)

    def value(self, node: yaml.Node, path: FieldPath) -> Any:
        line = _line(node)
        self.count += 1
        self.lines.setdefault(path, line)
        if self.count > MAX_VALUES:
            raise _StopError(_too_many(line))
        if id(node) in self.open_nodes:
            raise _StopError(Fault(line, path, "an alias refers to what it is in", "write the value out"))
        if len(self.open_nodes) > MAX_DEPTH:
            raise _StopError(_too_deep(line))
        if isinstance(node, yaml.ScalarNode):
            return self.scalar(node, path)
        self.open_nodes.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return self.mapping(node, path)
            return [self.value(item, (*path, index)) for index, item in enumerate(node.value)]
        finally:
            self.open_nodes.discard(id(node))

    def scalar(self, node: yaml.ScalarNode, path: FieldPath) -> Any:
        try:
            return read(node.tag, node.value)
        except KeyError:
            what = f"the tag {node.tag.replace(TAG, '!!')} is not known here"
        except ValueError:
            what = f"{node.value[:40]!r} is not a value of its kind"
        self.faults.append(Fault(_line(node), path, what, "write a plain value, text in quotes"))
        return None

    def mapping(self, node: yaml.MappingNode, path: FieldPath) -> dict[str, Any]:
        values = self.merged(node, path)
        first: dict[str, int] = {}
        for key, child in node.value:
            if _is_merge(key):
                continue
            line, name = _line(key), _name(key)
            if name is None:
                what = "what is not plain text can't be the name of a field"
                self.faults.append(Fault(line, path, what, "write `name: value`"))
                continue
            if name in first:
                what = f"it is given twice, first on line {first[name]}"
                self.faults.append(Fault(line, (*path, name), what, "keep one of the two", code="S103"))
                continue
            first[name] = self.lines[(*path, name)] = line
            values[name] = self.value(child, (*path, name))
        return values

    def merged(self, node: yaml.MappingNode, path: FieldPath) -> dict[str, Any]:
        """What `<<: *anchor` brings in; of several, the first one wins."""
        values: dict[str, Any] = {}
        for key, child in node.value:
            if not _is_merge(key):
                continue
            for part in child.value if isinstance(child, yaml.SequenceNode) else [child]:
                found = self.value(part, path)
                if isinstance(found, dict):
                    values = found | values
                else:
                    what = "`<<` takes a mapping, or a list of them"
                    self.faults.append(
                        Fault(_line(key), path, what, "give it an alias of a mapping: `<<: *name`")
                    )
        return values


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _name(key: yaml.Node) -> str | None:
    try:
        return text_of(key.value) if isinstance(key, yaml.ScalarNode) else None
    except ValueError:
        return None


def _is_merge(key: yaml.Node) -> bool:
    return key.tag == MERGE


def _too_many(line: int) -> Fault:
    return Fault(line, (), f"it holds more than {MAX_VALUES} values", "check aliases (*) that multiply")


def _too_deep(line: int) -> Fault:
    return Fault(line, (), "it is nested too deeply", "check that this is the right file")


_OLD_LINE_END = re.compile("[\x85\u2028\u2029]")
"""Characters that end a line for PyYAML and not in YAML 1.2: what follows would be read as another field."""

_SYNTAX = {
    "expected the node content": (
        "a value is missing here, or a bracket is never closed",
        "complete the line",
    ),
    "'\\t' that cannot start any token": ("a tab indents this line", "indent with spaces"),
    "mapping values are not allowed": (
        "a `:` can't stand here",
        "check the indentation, or put the text in quotes",
    ),
    "but got '?'": ("a `?` can't stand between brackets", "put the text in quotes"),
    "found unexpected end of stream": ("a quote is opened and never closed", "close it"),
    "but found another document": ("a second document begins here", "keep one document in a file"),
    "expected alphabetic or numeric": (
        "this can't be in the name that follows &, * or %",
        "use letters, digits, - and _, or put the text in quotes",
    ),
    "that cannot start any token": ("this character can't begin a value", "put the text in quotes"),
}


def _fault(error: yaml.MarkedYAMLError | ReaderError | _StopError, text: str) -> Fault:
    if isinstance(error, _StopError):
        return error.fault
    return _character_fault(error, text) if isinstance(error, ReaderError) else _syntax_fault(error, text)


def _syntax_fault(error: yaml.MarkedYAMLError, text: str) -> Fault:
    problem = str(error.problem or error.context or "it can't be read")
    what, do = next(
        (words for sign, words in _SYNTAX.items() if sign in problem), (problem, "correct this line")
    )
    unclosed = "unexpected end of stream" in problem and error.context_mark is not None
    mark = error.context_mark if unclosed else error.problem_mark or error.context_mark
    line, column = (0, 0) if mark is None else (int(mark.line), int(mark.column))
    return Fault(
        line + 1, (), f"it is not valid YAML at column {column + 1}: {what}", do, _excerpt(text, line, column)
    )


def _character_fault(error: ReaderError, text: str) -> Fault:
    position = int(error.position)
    line = text.count("\n", 0, position)
    column = position - (text.rfind("\n", 0, position) + 1)
    what = f"a character that is not allowed stands at column {column + 1}: U+{ord(text[position]):04X}"
    return Fault(line + 1, (), what, "remove it, and check that this is a text file")


def _excerpt(text: str, line: int, column: int) -> str:
    lines = text.splitlines()
    if line >= len(lines):
        return ""
    start = max(0, column - 80)
    piece = lines[line][start : start + 100].replace("\t", "→")
    return f"    {piece}\n    {' ' * (column - start)}^"
