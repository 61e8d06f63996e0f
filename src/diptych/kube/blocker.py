"""What is in the way of a service: one thing, in words, with what to do."""

from dataclasses import dataclass, replace

_LONGEST = 600


@dataclass(frozen=True)
class Blocker:
    """The first thing that keeps a service from being ready.

    Args:
        where: the object, as in `pod ray-llm-x7k2q-head`.
        what: what is the matter with it, to be read after `where`: "waits for …", "can't …".
        do: what to do about it; empty: wait.
        is_fatal: waiting would not mend it.
        phase: the phase that it holds up; empty: all.
    """

    where: str
    what: str
    do: str = ""
    is_fatal: bool = False
    phase: str = ""

    @property
    def text(self) -> str:
        """One sentence: where and what."""
        joined = f"{self.where} {self.what}"
        text = joined[:1].upper() + joined[1:]
        return text if text.endswith((".", "…")) else text + "."

    def fatal(self) -> "Blocker":
        """The same, with no hope."""
        return replace(self, is_fatal=True)


def cut(text: str, longest: int = _LONGEST) -> str:
    """A message on one line, no longer than `longest` characters: its end tells most.

    >>> cut("one\\n  two"), cut("abcdefgh", 4)
    ('one two', '…fgh')
    """
    line = " ".join(text.split())
    return line if len(line) <= longest else "…" + line[-longest + 1 :]
