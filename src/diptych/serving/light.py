"""What light proofs of a pair come to, beside those of its transport: of the split and the speed, from its probe.

They are told as metrics and in the log, and hold nobody back: `diptych verify` makes them in full.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from diptych.serving.evidence import SIDES
from diptych.serving.outcome import FAILS, HOLDS, SKIPPED, worst
from diptych.serving.speed import Speed
from diptych.serving.split import node_of, of_pair, others_of
from diptych.serving.traffic import look, went_away

TOKENS = 257
"""Of a prompt: long enough that a link shows its speed, short enough to be sent all day."""


@dataclass(frozen=True)
class Outcome:
    """What a light proof came to.

    Args:
        holds: None: it could not be made, or what was seen may be of other requests.
        says: why it is so.
    """

    holds: bool | None
    says: str


UNMADE = Outcome(None, "it was not made yet")


def unless_others(others: str | int, says: str) -> Outcome:
    """Of what should not be: it does not hold, or, with other requests meanwhile, may be theirs."""
    return Outcome(None, f"{says}; other requests were running: {others}") if others else Outcome(False, says)


def split_of(pair: Mapping[str, Any], *, recurrent: bool) -> Outcome:
    """Whether the phases are apart, by what the engines counted.

    Args:
        pair: one of the probe's.
        recurrent: whether the model keeps recurrent state.
    """
    gone = went_away(pair)
    silent = [side for side in SIDES if not look(pair, "after", side).get("counters")]
    if gone or silent:
        return Outcome(None, f"{gone} went away" if gone else f"{silent[0]} did not tell what it counted")
    nodes = {node_of(look(pair, "after", side)) for side in SIDES}
    found = list(of_pair(pair, nodes, recurrent=recurrent))
    state = worst(each for each, _ in found)
    first = next(one for each, one in found if each == state)
    return Outcome({HOLDS: True, FAILS: False}.get(state), f"{first.what}: {first.value}")


def speed_as(speed: Speed | None, pair: Mapping[str, Any]) -> Outcome:
    """Whether a KV transfer was as fast as its link should be: not below what `diptych verify` warns at.

    A slow one beside other requests says nothing of the link: they share it, and decode sees the end of a KV transfer
    after a step, which takes as long as they make it.

    Args:
        speed: of the pair.
        pair: one of the probe's.
    """
    if speed is None or speed.state == SKIPPED:
        return Outcome(None, speed.words if speed else "no KV transfer of a megabyte or more was timed")
    return Outcome(True, speed.words) if speed.state == HOLDS else unless_others(others_of(pair), speed.words)
