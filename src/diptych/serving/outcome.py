"""What comes of a proof, in one word.

Standard library only: `diptych verify` imports this module as well.
"""

from collections.abc import Iterable
from typing import Literal

State = Literal["holds", "warns", "fails", "skipped"]
HOLDS: State = "holds"
WARNS: State = "warns"
FAILS: State = "fails"
SKIPPED: State = "skipped"


def worst(states: Iterable[State]) -> State:
    """The worst of some states; `holds` for none.

    >>> worst(["holds", "fails", "warns"])
    'fails'
    """
    order: tuple[State, ...] = (HOLDS, SKIPPED, WARNS, FAILS)
    return max(states, key=order.index, default=HOLDS)
