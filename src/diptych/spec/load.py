"""From a file, `--set` options and variables to a checked document that knows where each value came from.

Precedence, strongest first: `--set`, environment, document, defaults. A field left empty keeps its default. A
relative path in the document is relative to the document's folder, elsewhere to the current one.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from diptych.spec.document import Document
from diptych.spec.explain import code_of, explain, path_of
from diptych.spec.fields import Section
from diptych.spec.file import read_text
from diptych.spec.migrations import UnknownVersionError, migrate
from diptych.spec.overrides import Override, from_environment, from_options
from diptych.spec.problems import FieldPath, InvalidDocumentError, Origin, Problem, dotted, shown
from diptych.spec.source import parse
from diptych.spec.tree import NotAMappingError, Tree

DEFAULT = "default"
_NOWHERE = Origin(DEFAULT, DEFAULT)
_MOST_ROUNDS = 4

_NO_DOCUMENTS = {
    "apiVersion": "a Kubernetes manifest",
    "applications": "a configuration of Ray Serve",
}
"""Files that are taken for documents, by the fields that give them away."""


@dataclass(frozen=True)
class LoadedDocument:
    """A document, and where it came from.

    Args:
        document: the checked document; paths in it are absolute.
        provenance: for each field by dotted path (free mappings by their first level) "document line 3",
            "--set", "environment DIPTYCH_A__B" or "default".
        path: the file, None without one.
        origins: where each value that is no default was written, mappings and lists included.
    """

    document: Document
    provenance: Mapping[str, str]
    path: Path | None
    origins: Mapping[FieldPath, Origin] = field(default_factory=dict, repr=False)

    def origin(self, name: str) -> Origin:
        """Where the field with this dotted path was written; if it was not, the nearest thing around it."""
        path = tuple(int(step) if step.isdecimal() else step for step in name.split("."))
        around = (path[:depth] for depth in range(len(path), 0, -1))
        return next((self.origins[part] for part in around if part in self.origins), _NOWHERE)


def load(
    path: Path | None, overrides: Sequence[str] = (), environ: Mapping[str, str] | None = None
) -> Document:
    """The document in `path`, with overrides; without a file, the defaults with overrides.

    Args:
        path: a YAML file in UTF-8, 256 KiB at most.
        overrides: `a.b=value` for each `--set`, the value in YAML; the last one wins.
        environ: variables to look for `DIPTYCH_A__B` in; this process's without it.

    Raises:
        InvalidDocumentError: the file can't be read, or all that is wrong with what it and the overrides say.
    """
    return load_with_provenance(path, overrides, environ).document


def load_with_provenance(
    path: Path | None, overrides: Sequence[str] = (), environ: Mapping[str, str] | None = None
) -> LoadedDocument:
    """As `load`, and where each value came from."""
    loaded, problems = load_leniently(path, overrides, environ)
    if loaded is None or problems:
        raise InvalidDocumentError(problems)
    return loaded


def load_leniently(
    path: Path | None, overrides: Sequence[str] = (), environ: Mapping[str, str] | None = None
) -> tuple[LoadedDocument | None, list[Problem]]:
    """The document without the fields that are wrong, and what is wrong with them.

    None in place of a document that is none without those fields.

    Raises:
        InvalidDocumentError: the file can't be read, or holds no fields that could be.
    """
    tree, problems = (Tree(), []) if path is None else _read(path)
    by_environment, environment_problems = from_environment(os.environ if environ is None else environ)
    by_options, option_problems = from_options(overrides)
    problems += environment_problems + option_problems
    problems += [p for override in (*by_environment, *by_options) for p in _apply(override, tree)]
    tree.drop_empty()
    tree.make_paths_absolute(lambda origin: _folder(path) if origin.line is not None else Path.cwd())
    document = _validate(tree, problems)
    if document is None:
        return None, problems
    provenance = {dotted(leaf): _label(tree, leaf) for leaf in _leaves(document, ())}
    return LoadedDocument(document, provenance, path, tree.origins), problems


def validate_options(options: Mapping[str, tuple[str, Any]]) -> None:
    """Check single fields: by option of the command line, the field and the value it gives (None: not given).

    Raises:
        InvalidDocumentError: what is wrong with them, by option.
    """
    tree = Tree()
    problems: list[Problem] = []
    for option, (name, value) in options.items():
        if value is not None:
            problems += _apply(Override(tuple(name.split(".")), value, Origin(option, option)), tree)
    _validate(tree, problems)
    if problems:
        raise InvalidDocumentError(replace(problem, field="") for problem in problems)


def _read(path: Path) -> tuple[Tree, list[Problem]]:
    text = read_text(path)
    parsed = parse(text)

    def problem(line: int, field: FieldPath, what: str, do: str, code: str, excerpt: str = "") -> Problem:
        return Problem(f"{path}:{line}", dotted(field), what, do, line, excerpt, code)

    def origin(field: FieldPath) -> Origin:
        line = next(parsed.lines[field[:n]] for n in range(len(field), -1, -1) if field[:n] in parsed.lines)
        return Origin(f"document line {line}", f"{path}:{line}", line)

    keys = (
        parsed.value if isinstance(parsed.value, dict) else {}
    )  # as JSON or in braces no line begins with them
    kind = next(
        (kind for name, kind in _NO_DOCUMENTS.items() if name in keys or _begins_line(name, text)), None
    )
    if kind is not None:
        do = f"make a document out of it: diptych init NEW.yaml --from {path.name}"
        raise InvalidDocumentError([problem(1, (), f"it is {kind}, and no document of Diptych", do, "S101")])
    problems = [problem(f.line, f.path, f.what, f.do, f.code, f.excerpt) for f in parsed.faults]
    if problems and parsed.value is None:  # nothing of it was read: what is left would be another document
        raise InvalidDocumentError(problems)
    values = {} if parsed.value is None else parsed.value
    if not isinstance(values, dict):
        what = f"the document is {shown(values)}, and must be a mapping"
        raise InvalidDocumentError([*problems, problem(1, (), what, "write `name: value` lines", "S106")])
    tree = Tree()
    for name, value in values.items():
        tree.put((name,), value, origin)
    try:
        migrate(tree)
    except UnknownVersionError as error:
        line = parsed.lines["version",]
        raise InvalidDocumentError([problem(line, ("version",), error.what, error.do, "S110")]) from None
    return tree, problems


def _begins_line(name: str, text: str) -> bool:
    return re.search(f"^{name}:", text, re.MULTILINE) is not None


def _apply(override: Override, tree: Tree) -> list[Problem]:
    try:
        tree.put(override.path, override.value, lambda _: override.origin)
    except NotAMappingError as error:
        what = f"can't be set: {dotted(error.path)} is no mapping"
        do = f"set {dotted(error.path)} as a whole"
        return [Problem(override.origin.where, dotted(override.path), what, do, code="S111")]
    return []


def _validate(tree: Tree, problems: list[Problem]) -> Document | None:
    """The document in `tree`; fields that are wrong go into `problems` and out of `tree`."""
    for attempt in range(_MOST_ROUNDS):
        try:
            return Document.model_validate(tree.values)
        except ValidationError as error:
            details = error.errors(include_url=False)
        if attempt == 0:  # what is wrong only without the wrong fields is not the user's to correct
            problems += [_problem(detail, tree) for detail in details]
        for detail in details:
            tree.drop(path_of(detail))
    return None


def _problem(error: ErrorDetails, tree: Tree) -> Problem:
    path = path_of(error)
    origin = tree.origin(path) or _NOWHERE
    what, do = explain(error)
    return Problem(origin.where, dotted(path), what, do, origin.line, code=code_of(error))


def _leaves(section: Section, path: FieldPath) -> Iterator[FieldPath]:
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, Section):
            yield from _leaves(value, (*path, name))
        elif isinstance(value, dict) and value:
            yield from ((*path, name, key) for key in value)
        else:
            yield (*path, name)


def _label(tree: Tree, field: FieldPath) -> str:
    return tree.origins[field].label if field in tree.origins else DEFAULT


def _folder(path: Path | None) -> Path:
    return path.parent if path is not None and path.is_file() else Path.cwd()
