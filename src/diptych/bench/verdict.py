"""Two set-ups under the same load compared: ratios with their spread, and what to make of them, in words.

Each side runs several times, in turn. A difference counts where it is larger than what the repeats of either side
differ by (`is_beyond_noise`); every sentence that claims more than it has says "within the noise".
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from diptych.bench.load import Load
from diptych.bench.results import Result

MEASURES = (
    ("ttft", "p50"),
    ("ttft", "p99"),
    ("tpot", "p50"),
    ("tpot", "p99"),
    ("itl", "p50"),
    ("itl", "p95"),
    ("itl", "p99"),
    ("e2e", "p50"),
)
_DECIDING = ("TPOT p50", "ITL p99")
_SAID = ("TTFT p50", *_DECIDING)
_LEAST_MS = 0.001
"""Gaps between tokens that come in one piece are next to nothing; a ratio to them is still a number."""
_SAME_SHARE = 0.02
"""Shares of requests within the SLO that differ by no more are as good as equal."""


def is_beyond_noise(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether two sides differ by more than the repeats of either; of single runs always.

    >>> is_beyond_noise([7.0, 7.2], [11.0, 11.4]), is_beyond_noise([7.0, 9.0], [9.5, 9.6])
    (True, False)
    """
    widest = max(max(side) - min(side) for side in (one, other))
    return abs(median(one) - median(other)) > widest


@dataclass(frozen=True)
class Ratio:
    """One measure of both sides: medians over the repeats in milliseconds, and all repeats."""

    name: str
    split: tuple[float, ...]
    aggregated: tuple[float, ...]

    @property
    def value(self) -> float:
        """Split by aggregated; below 1 the split is faster."""
        return median(self.split) / max(median(self.aggregated), _LEAST_MS)

    @property
    def sure(self) -> bool:
        return is_beyond_noise(self.split, self.aggregated)

    def to_json(self) -> dict[str, Any]:
        return {
            "split_ms": list(self.split),
            "aggregated_ms": list(self.aggregated),
            "ratio": round(self.value, 4),
            "beyond_noise": self.sure,
        }


@dataclass(frozen=True)
class Comparison:
    """One load on both set-ups, each repeated.

    Args:
        name: of the split: "split", or with its ratio of replicas "split 1:2".
        against: what speaks against the way in which the sides were run; empty where nothing does.
    """

    load: Load
    split: tuple[Result, ...]
    aggregated: tuple[Result, ...]
    name: str = "split"
    against: tuple[str, ...] = ()

    @property
    def ratios(self) -> tuple[Ratio, ...]:
        found = []
        for measure, percent in MEASURES:
            sides = [_values(side, measure, percent) for side in (self.split, self.aggregated)]
            if all(sides):
                found.append(Ratio(f"{measure.upper()} {percent}", sides[0], sides[1]))
        return tuple(found)

    def goodput(self, side: str) -> tuple[float, ...]:
        """Shares of requests within the SLO, one per repeat; empty without an SLO."""
        results: Sequence[Result] = getattr(self, side)
        return tuple(result.goodput for result in results if result.goodput is not None)

    def usd_per_million_tokens(self, side: str) -> float | None:
        """The price of a million output tokens, the median over the repeats; None where it is not known."""
        results: Sequence[Result] = getattr(self, side)
        known = [usd for each in results if (usd := each.usd_per_million_tokens) is not None]
        return median(known) if known else None

    @property
    def doubts(self) -> tuple[str, ...]:
        sides = ((self.name, self.split), ("aggregated", self.aggregated))
        found = [f"{name}: {doubt}" for name, side in sides for result in side for doubt in result.doubts]
        if min(len(self.split), len(self.aggregated)) < 2:
            found.append("a single run of each side does not tell how far repeats would differ")
        found += self.against
        return tuple(dict.fromkeys(found))

    @property
    def pays(self) -> bool | None:
        """Whether the split serves this traffic better; None where the runs can't tell.

        By goodput where there is an SLO; without one by how many requests were answered, where that differs, else by
        TPOT and the tail of ITL, where both don't disagree.
        """
        split, aggregated = self.goodput("split"), self.goodput("aggregated")
        if split and aggregated:
            gain = median(split) - median(aggregated)
            return gain > 0 if abs(gain) > _SAME_SHARE and is_beyond_noise(split, aggregated) else None
        answered = [
            tuple(len(each.answered) / len(each.samples) for each in side)
            for side in (self.split, self.aggregated)
        ]
        more = median(answered[0]) - median(answered[1])
        if abs(more) > _SAME_SHARE:
            return more > 0 if is_beyond_noise(*answered) else None
        gains = {ratio.value < 1 for ratio in self.ratios if ratio.name in _DECIDING and ratio.sure}
        return gains.pop() if len(gains) == 1 else None

    def to_json(self) -> dict[str, Any]:
        return {
            "load": self.load.to_json(),
            "name": self.name,
            "pays": self.pays,
            "verdict": sentence(self),
            "ratios": {ratio.name: ratio.to_json() for ratio in self.ratios},
            "goodput": {side: list(self.goodput(side)) for side in ("split", "aggregated")},
            "usd_per_million_output_tokens": {
                side: self.usd_per_million_tokens(side) for side in ("split", "aggregated")
            },
            "doubts": list(self.doubts),
            "split": [result.to_json() for result in self.split],
            "aggregated": [result.to_json() for result in self.aggregated],
        }


def sentence(comparison: Comparison) -> str:
    """What one load showed, in a sentence or two."""
    split, aggregated = comparison.goodput("split"), comparison.goodput("aggregated")
    start = f"At {comparison.load} the {comparison.name}"
    if split and aggregated:
        slo = comparison.split[0].slo
        said = f"{start} keeps {_percent(split)} of requests within {slo}, aggregated {_percent(aggregated)}"
        ending = {True: ".", False: ": it does not pay.", None: ": no difference beyond the noise."}
    else:
        said = start
        ending = {True: " pays.", False: " does not pay.", None: " makes no difference beyond the noise."}
    return said + ending[comparison.pays] + _measured(comparison) + _price(comparison)


def verdict(comparisons: Sequence[Comparison]) -> str:
    """What a sweep of rates, and of ratios of replicas, showed: each load's sentence, and from where on it pays."""
    lines = [sentence(each) for each in comparisons]
    names = dict.fromkeys(each.name for each in comparisons)
    for name in names:
        said = _from_where_on([each for each in comparisons if each.name == name])
        lines += [f"{name}: {said}" if len(names) > 1 else said[0].upper() + said[1:]] if said else []
    if len(names) > 1:
        lines += [_best(list(same)) for same in _by_load(comparisons)]
    doubtful = [doubt for each in comparisons for doubt in each.doubts]
    if doubtful:
        lines.append("To be read with care: " + "; ".join(dict.fromkeys(doubtful)) + ".")
    return "\n".join(lines)


def _from_where_on(comparisons: Sequence[Comparison]) -> str:
    """What several rates of one set-up come to; "" where that is nothing."""
    by_rate = {each.load.rate: each.pays for each in comparisons if each.load.rate is not None}
    if len(by_rate) < 2:
        return ""
    paying = [rate for rate, pays in by_rate.items() if pays]
    losing = [rate for rate, pays in by_rate.items() if pays is False]
    if not paying:
        return "it pays at none of these rates."
    if len(paying) == len(by_rate):
        return "it pays at all of these rates."
    highest = max(rate for rate in by_rate if rate not in paying)
    if highest < min(paying):
        below = {by_rate[rate] for rate in by_rate if rate <= highest}
        word = "does not, or makes no difference"
        if len(below) == 1:
            word = "does not" if highest in losing else "makes no difference"
        return f"it pays from {min(paying):g} requests/s on; at {highest:g}/s and below it {word}."
    return f"it pays at {', '.join(f'{rate:g}' for rate in sorted(paying))} requests/s."


def _by_load(comparisons: Sequence[Comparison]) -> Iterable[list[Comparison]]:
    loads = dict.fromkeys(each.load for each in comparisons)
    return ([each for each in comparisons if each.load == load] for load in loads)


def _best(comparisons: Sequence[Comparison]) -> str:
    """Which ratio of replicas serves a load best: by goodput, else by the time of a whole answer."""
    if all(each.goodput("split") for each in comparisons):
        found = max(comparisons, key=lambda each: median(each.goodput("split")))
        return f"At {found.load} the {found.name} keeps most requests within the SLO."
    found = min(comparisons, key=lambda each: median(_values(each.split, "e2e", "p50") or (float("inf"),)))
    return f"At {found.load} answers are there first with the {found.name}."


def _measured(comparison: Comparison) -> str:
    """The measures that an operator asks for first."""
    known = {ratio.name: ratio for ratio in comparison.ratios}
    said = [
        f"{name} {known[name].value:.2f} ×{'' if known[name].sure else ' (within the noise)'}"
        for name in _SAID
        if name in known
    ]
    return f" {', '.join(said)} aggregated." if said else ""


def _price(comparison: Comparison) -> str:
    usd = [comparison.usd_per_million_tokens(side) for side in ("split", "aggregated")]
    if None in usd:
        return ""
    return f" A million output tokens cost {usd[0]:.2f} USD, aggregated {usd[1]:.2f}, by list prices."


def _values(side: Iterable[Result], measure: str, percent: str) -> tuple[float, ...]:
    found = (result.measure(measure) for result in side)
    return tuple(spread[percent] for spread in found if spread is not None)


def _percent(shares: Sequence[float]) -> str:
    """
    >>> _percent([0.8]), _percent([0.78, 0.82, 0.8])
    ('80 %', '80 % (78 to 82)')
    """
    middle = f"{100 * median(shares):.0f} %"
    if len(shares) == 1 or min(shares) == max(shares):
        return middle
    return f"{middle} ({100 * min(shares):.0f} to {100 * max(shares):.0f})"
