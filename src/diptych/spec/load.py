"""From a file, `--set` options and variables to a checked document that knows where each value came from.

Precedence, strongest first: `--set`, environment, document, defaults. A field left empty keeps its default. A
relative path in the document is relative to the document's folder, elsewhere to the current one.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from diptych.spec.document import VERSION, Document
from diptych.spec.explain import explain, path_of
from diptych.spec.fields import Section
from diptych.spec.overrides import Override, from_environment, from_options
from diptych.spec.problems import FieldPath, InvalidDocumentError, Origin, Problem, dotted, shown
from diptych.spec.sizes import format_size
from diptych.spec.source import parse
from diptych.spec.tree import NotAMappingError, Tree

MAX_BYTES = 256 * 1024
DEFAULT = "default"


@dataclass(frozen=True)
class LoadedDocument:
    """A document, and where it came from.

    Args:
        document: the checked document; paths in it are absolute.
        provenance: for each field by dotted path (free mappings by their first level) "document line 3",
            "--set", "environment DIPTYCH_A__B" or "default".
        path: the file, None without one.
    """

    document: Document
    provenance: Mapping[str, str]
    path: Path | None


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
    tree, problems = (Tree(), []) if path is None else _read(path)
    by_environment, environment_problems = from_environment(os.environ if environ is None else environ)
    by_options, option_problems = from_options(overrides)
    problems += environment_problems + option_problems
    problems += [p for override in (*by_environment, *by_options) for p in _apply(override, tree)]
    tree.drop_empty()
    tree.make_paths_absolute(lambda origin: _folder(path) if origin.line is not None else Path.cwd())
    document = _validate(tree, problems)
    provenance = {dotted(leaf): _label(tree, leaf) for leaf in _leaves(document, ())}
    return LoadedDocument(document, provenance, path)


def _read(path: Path) -> tuple[Tree, list[Problem]]:
    parsed = parse(_text(path))

    def problem(line: int, field: FieldPath, what: str, do: str, excerpt: str = "") -> Problem:
        return Problem(f"{path}:{line}", dotted(field), what, do, line, excerpt)

    def origin(field: FieldPath) -> Origin:
        line = next(parsed.lines[field[:n]] for n in range(len(field), -1, -1) if field[:n] in parsed.lines)
        return Origin(f"document line {line}", f"{path}:{line}", line)

    problems = [problem(f.line, f.path, f.what, f.do, f.excerpt) for f in parsed.faults]
    values = {} if parsed.value is None else parsed.value
    if not isinstance(values, dict):
        what = f"the document is {shown(values)}, and must be a mapping"
        raise InvalidDocumentError([*problems, problem(1, (), what, "write `name: value` lines")])
    version = values.get("version")
    if version is not None and (type(version) is not int or version != VERSION):
        what = f"is {shown(version)}, and this version of Diptych reads version {VERSION}"
        do = f"write version: {VERSION}, or use the Diptych that the document was written for"
        raise InvalidDocumentError([problem(parsed.lines["version",], ("version",), what, do)])
    tree = Tree()
    for name, value in values.items():
        tree.put((name,), value, origin)
    return tree, problems


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise _unreadable(path, "there is no such file", "check the name") from None
    except IsADirectoryError:
        raise _unreadable(path, "it is a folder", "give the document in it") from None
    except OSError as error:
        raise _unreadable(
            path, f"it can't be read: {error.strerror}", "check the file and its permissions"
        ) from error
    if len(content) > MAX_BYTES:
        what = f"it is larger than {format_size(MAX_BYTES)}"
        raise _unreadable(path, what, "check that this is the right file")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        what = f"byte 0x{content[error.start]:02x} on line {line} is not UTF-8"
        raise _unreadable(path, what, "save the file as UTF-8") from None


def _unreadable(path: Path, what: str, do: str) -> InvalidDocumentError:
    return InvalidDocumentError([Problem(str(path), "", what, do)])


def _apply(override: Override, tree: Tree) -> list[Problem]:
    try:
        tree.put(override.path, override.value, lambda _: override.origin)
    except NotAMappingError as error:
        what = f"can't be set: {dotted(error.path)} is no mapping"
        do = f"set {dotted(error.path)} as a whole"
        return [Problem(override.origin.where, dotted(override.path), what, do)]
    return []


def _validate(tree: Tree, problems: list[Problem]) -> Document:
    document = None
    try:
        document = Document.model_validate(tree.values)
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            field = path_of(detail)
            origin = tree.origin(field) or Origin(DEFAULT, DEFAULT)
            problems.append(Problem(origin.where, dotted(field), *explain(detail), line=origin.line))
    if document is None or problems:
        raise InvalidDocumentError(problems)
    return document


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
