"""Documents of earlier versions: one step from each version to the next, on the values before they are checked.

A step renames, moves and rewrites values in a `Tree`, which keeps where each was written, so that errors still name
the right line. Steps run one after another, from the document's version up to the current one; overrides come
afterwards and use the current names. A document that names no version is one of version 1.
"""

from collections.abc import Callable, Mapping
from typing import Any

from diptych.spec.document import VERSION
from diptych.spec.problems import shown
from diptych.spec.tree import Tree

Step = Callable[[Tree], None]

STEPS: Mapping[int, Step] = {}
"""By version: the step that makes a document of that version one of the next."""

FIRST = 1


class UnknownVersionError(Exception):
    """A document's version is none that can be read; `what` and `do` as in `Problem`."""

    def __init__(self, what: str, do: str) -> None:
        super().__init__(what)
        self.what = what
        self.do = do


def migrate(tree: Tree, steps: Mapping[int, Step] = STEPS, current: int = VERSION) -> None:
    """Bring the document in `tree` up to the current version.

    Raises:
        UnknownVersionError: it says another version than the ones that `steps` lead from.
    """
    given = tree.values.get("version")
    version = FIRST if given is None else _known(given, steps, current)
    for each in range(version, current):
        steps[each](tree)
    if given is not None:
        tree.values["version"] = current


def _known(given: Any, steps: Mapping[int, Step], current: int) -> int:
    oldest = min(steps, default=current)
    reads = f"this version of Diptych reads version {current}"
    if oldest < current:
        reads += (
            f", and {oldest} to {current - 1} as well" if oldest < current - 1 else f", and {oldest} as well"
        )
    if type(given) is not int:
        raise UnknownVersionError(f"is {shown(given)}, and {reads}", f"write version: {current}")
    if given > current:
        do = f"use a newer Diptych, or write version: {current} if the document is meant for this one"
        raise UnknownVersionError(f"is {given}, and {reads}", do)
    if given < oldest:
        do = f"write it anew as version: {current}; docs/document.md has the fields"
        raise UnknownVersionError(f"is {given}, and {reads}", do)
    return given
