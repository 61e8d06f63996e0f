"""Goodput: how many requests were answered within what they were promised."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from diptych.errors import DocumentError

if TYPE_CHECKING:
    from diptych.bench.results import Sample

_UNITS_MS = {"ms": 1.0, "s": 1000.0, "": 1000.0}
_BOUND = re.compile(r"(ttft|tpot|itl|e2e)\s*=\s*([0-9.]+)\s*(ms|s|)")


@dataclass(frozen=True)
class Slo:
    """Bounds in milliseconds, by measure: `ttft`, `tpot` (mean gap of a request), `itl` (its longest gap), `e2e`."""

    bounds_ms: Mapping[str, float]

    @classmethod
    def parse(cls, text: str) -> "Slo":
        """
        >>> Slo.parse("ttft=1s,tpot=15ms").bounds_ms
        {'ttft': 1000.0, 'tpot': 15.0}

        Raises:
            DocumentError: it is no list of bounds.
        """
        bounds = {}
        for part in filter(None, (each.strip() for each in text.split(","))):
            found = _BOUND.fullmatch(part)
            if not found or not _number(found[2]):
                raise DocumentError(
                    f"{part!r} is no bound of an SLO.", "Write them like ttft=1s,tpot=15ms; also itl and e2e."
                )
            bounds[found[1]] = float(found[2]) * _UNITS_MS[found[3]]
        if not bounds:
            raise DocumentError("The SLO holds no bound.", "Write one like ttft=1s,tpot=15ms.")
        return cls(bounds)

    def kept_by(self, sample: "Sample") -> bool:
        """Whether one answer kept all bounds; a failed one keeps none."""
        if sample.error:
            return False
        measured = {
            "ttft": sample.ttft_ms,
            "tpot": sample.tpot_ms,
            "itl": max(sample.itl_ms, default=0.0),
            "e2e": sample.total_ms,
        }
        return all((measured[name] or 0.0) <= bound for name, bound in self.bounds_ms.items())

    def share(self, samples: Iterable["Sample"]) -> float:
        """The share of requests within the SLO, 0 to 1."""
        kept = [self.kept_by(sample) for sample in samples]
        return sum(kept) / len(kept) if kept else 0.0

    def __str__(self) -> str:
        """
        >>> str(Slo({"ttft": 1000.0, "tpot": 15.0}))
        'TTFT ≤ 1000 ms and TPOT ≤ 15 ms'
        """
        return " and ".join(f"{name.upper()} ≤ {bound:g} ms" for name, bound in self.bounds_ms.items())


def _number(text: str) -> bool:
    try:
        return float(text) > 0
    except ValueError:
        return False
