"""Files with the endpoint's keys: what a line may say.

One key per line and, behind it, `admin` (it opens admin routes too) or `priority=N` (a lower number is served earlier)
or both. Empty lines and those that begin with `#` are left out. `diptych.serving.keys` reads the same inside Ray.
"""

import re
from collections.abc import Iterable

_WORD = re.compile(r"admin|priority=-?[0-9]{1,9}")


def key_lines(text: str) -> dict[int, list[str]]:
    """The words of each line that should hold a key, by its 1-based number.

    >>> key_lines("# ours\\ndk-1 priority=2\\n")
    {2: ['dk-1', 'priority=2']}
    """
    lines = ((number, line.split()) for number, line in enumerate(text.splitlines(), 1))
    return {number: words for number, words in lines if words and not words[0].startswith("#")}


def faulty_lines(text: str) -> list[int]:
    """Numbers of lines that let nobody in: with another word, or with words and no key before them."""
    return [number for number, words in key_lines(text).items() if not _is_good(words)]


def _is_good(words: Iterable[str]) -> bool:
    key, *others = words
    forgotten = key == "admin" or key.startswith("priority=")
    return not forgotten and all(_WORD.fullmatch(word) for word in others)
