"""A manifest taken apart: what is used of it, and a remark for everything that is not."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from diptych.errors import DocumentError
from diptych.spec.problems import shown


class ConversionError(DocumentError):
    """No document can be made out of a manifest."""


@dataclass(frozen=True)
class Remark:
    """Something in a manifest that is not in the document made out of it.

    Args:
        where: the place in the manifest, in words: "worker group gpu: env.FI_PROVIDER".
        why: why it was left out, without a full stop.
        do: what to do about it; "" where nothing is lost.
    """

    where: str
    why: str
    do: str = ""

    def __str__(self) -> str:
        return f"{self.where}: {self.why}" + (f"; {self.do}" if self.do else "")


Reason = tuple[str, str]
"""Why something is left out, and what to do about it ("" for nothing)."""

NO_FIELD: Reason = ("a document has no field for it", "add it to what `diptych render` writes if you need it")


@dataclass
class Part:
    """A mapping in a manifest, of which each key is taken or left once; `close` leaves the rest.

    Args:
        values: the mapping.
        where: its place, as remarks begin.
        remarks: where they are collected.
    """

    values: Mapping[str, Any]
    where: str
    remarks: list[Remark]
    seen: set[str] = field(default_factory=set)

    def place(self, name: str) -> str:
        """The place of a key, as remarks name it."""
        return f"{self.where}{'.' if self.where and not self.where.endswith(' ') else ''}{name}"

    def take(self, name: str) -> Any:
        """The value of a key; None where it is missing."""
        self.seen.add(name)
        return self.values.get(name)

    def part(self, name: str, where: str | None = None) -> "Part":
        """The mapping below a key; an empty one where there is none."""
        return self._part(self.take(name), self.place(name) if where is None else where)

    def parts(self, name: str, label: str | None = None, end: str = "") -> Iterator["Part"]:
        """The mappings in the list below a key.

        Their places are their numbers; with `label` it, the name or number of each, and `end`.
        """
        value = self.take(name)
        if not isinstance(value, list):
            if value is not None:
                self.remark(name, (f"it is {shown(value)}, and must be a list", "correct it"))
            return
        for number, each in enumerate(value):
            own = each.get("name") or each.get("groupName") if isinstance(each, dict) else None
            place = f"{self.place(name)}[{number}]" if label is None else f"{label}{own or number}{end}"
            yield self._part(each, place)

    def leave(self, name: str, reason: Reason) -> None:
        """Leave a key out of the document, if it is there and not empty."""
        if self.take(name) not in (None, {}, []):
            self.remark(name, reason)

    def leave_all(self, reasons: Mapping[str, Reason]) -> None:
        """Leave each of these keys out."""
        for name, reason in reasons.items():
            self.leave(name, reason)

    def close(self, reason: Reason = NO_FIELD) -> None:
        """Leave out what was neither taken nor left so far."""
        for name in self.values:
            if name not in self.seen:
                self.leave(name, reason)

    def remark(self, name: str, reason: Reason) -> None:
        """Say that a key is not in the document."""
        self.remarks.append(Remark(self.place(name) if name else self.where.rstrip(": "), *reason))

    def _part(self, value: Any, where: str) -> "Part":
        if value is not None and not isinstance(value, dict):
            do = "correct it"
            self.remarks.append(Remark(where, f"it is {shown(value)}, and must be a mapping", do))
            value = None
        return Part(value or {}, where, self.remarks)
