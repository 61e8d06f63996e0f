"""What comes of a proof, and of all of them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from diptych.serving.outcome import FAILS, HOLDS, SKIPPED, WARNS, State, worst
from diptych.serving.transport import Evidence

__all__ = ["FAILS", "HOLDS", "NAMES", "SKIPPED", "WARNS", "Proof", "Report", "State", "worst"]

NAMES = ("split", "transport", "speed", "answers", "idle")
"""The proofs, in their order."""


@dataclass(frozen=True)
class Proof:
    """One proof.

    Args:
        name: one of `NAMES`.
        state: `holds`; `warns` (it holds, and something is not as it should be); `fails`; `skipped` (it can't be made
            here, and `says` why).
        says: what was seen, in a sentence.
        evidence: what that rests on.
        otherwise: what would have been seen if it were not so.
        do: what to do about it; "" where it holds.
        took_s: seconds that it took.
    """

    name: str
    state: State
    says: str
    evidence: tuple[Evidence, ...] = ()
    otherwise: str = ""
    do: str = ""
    took_s: float = 0.0

    def in_time(self, took_s: float) -> "Proof":
        """The same, with the seconds that it took."""
        return replace(self, took_s=took_s)

    def to_json(self) -> dict[str, Any]:
        """As docs/json.md has it."""
        return {
            "name": self.name,
            "state": self.state,
            "says": self.says,
            "otherwise": self.otherwise,
            "do": self.do,
            "evidence": [
                {"what": one.what, "value": one.value, "verdict": one.verdict} for one in self.evidence
            ],
            "took_s": round(self.took_s, 3),
        }


@dataclass(frozen=True)
class Report:
    """All proofs of one run.

    Args:
        endpoint: its URL.
        model: the name under which it is served.
        topology: `split` or `aggregated`.
        versions: of what runs there, as it tells.
        proofs: in their order.
    """

    endpoint: str
    model: str
    topology: str
    versions: Mapping[str, Any]
    proofs: tuple[Proof, ...]

    @property
    def holds(self) -> bool:
        """Whether no proof fails. One that can't be made in this topology is no failure."""
        return all(proof.state != FAILS for proof in self.proofs)

    def to_json(self) -> dict[str, Any]:
        """As docs/json.md has it."""
        return {
            "holds": self.holds,
            "endpoint": self.endpoint,
            "model": self.model,
            "topology": self.topology,
            "versions": dict(self.versions),
            "proofs": [proof.to_json() for proof in self.proofs],
        }
