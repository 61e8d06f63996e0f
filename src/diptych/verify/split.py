"""The proof of the split: for prompts of every length, decode received what prefill, another process, computed.

`diptych.serving.split` has the rule, and compares what the engines of each pair counted.
"""

from collections.abc import Mapping
from typing import Any

from diptych.serving.split import SIDES, Found, node_of, of_pair
from diptych.serving.traffic import look, went_away
from diptych.serving.transport import Evidence
from diptych.verify.proof import FAILS, HOLDS, WARNS, Proof, worst
from diptych.verify.transport import named

OTHERWISE = (
    "Decode computes a prompt whose KV cache never came, and answers right: then it counts fewer tokens from outside "
    "than the prompt has, and prefill counts no token of its own."
)
_DO = "`diptych logs decode` and `diptych logs prefill` show why; docs/proof.md#split has the usual causes."


def prove(told: Mapping[str, Any]) -> Proof:
    """Compare what the engines counted with what was sent through each pair.

    Args:
        told: the probe's answer.
    """
    gone = [name for pair in told["pairs"] if (name := went_away(pair))]
    pairs = [pair for pair in told["pairs"] if not went_away(pair)]
    problems = [str(each) for each in told.get("problems") or ()]
    if not pairs:
        problems += [f"{name} went away meanwhile" for name in gone]
        says = "; ".join(problems) or "no prefill replica is there for decode to take KV cache from"
        evidence = tuple(Evidence("probe", each, "contradicts") for each in problems)
        return Proof("split", FAILS, f"Nothing was split: {says}.", evidence, OTHERWISE, _DO)
    found: list[Found] = [(FAILS, Evidence("probe", each, "contradicts")) for each in problems]
    found += [(WARNS, Evidence(name, "it went away meanwhile: not compared", "silent")) for name in gone]
    nodes = {node_of(look(pair, "after", side)) for pair in pairs for side in SIDES}
    for pair in pairs:
        prefix = f"{named(pair)}: " if len(pairs) > 1 else ""
        for state, one in of_pair(pair, nodes, recurrent=bool(told.get("recurrent"))):
            found.append((state, Evidence(f"{prefix}{one.what}", one.value, one.verdict)))
    state = worst(each for each, _ in found)
    evidence = tuple(one for _, one in found)
    if state == HOLDS:
        return Proof("split", HOLDS, _sum(pairs), evidence, OTHERWISE)
    first = next(one for each, one in found if each == state)
    return Proof("split", state, f"{_capital(first.what)}: {first.value}.", evidence, OTHERWISE, _DO)


def _sum(pairs: list[Mapping[str, Any]]) -> str:
    transfers = [one for pair in pairs for one in pair["transfers"]]
    tokens = sum(one["tokens"] for one in transfers)
    through = "one pair" if len(pairs) == 1 else f"{len(pairs)} pairs"
    return f"All {tokens} tokens of {len(transfers)} prompts came to decode from another process, through {through}."


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
