"""Amounts of memory as people write them: "512MiB", "2 GiB", or a number of bytes."""

import re
from decimal import Decimal

_UNITS = {
    "": 1,
    "b": 1,
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgt", start=1)},
    **{f"{letter}{end}": 1024**power for power, letter in enumerate("kmgt", start=1) for end in ("i", "ib")},
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", re.ASCII)


def parse_size(size: str | int) -> int:
    """An amount of memory in bytes.

    KiB, MiB, GiB, TiB (also Ki, Mi, ... as Kubernetes writes them) count in 1024; kB, MB, GB, TB in 1000; a
    number alone is bytes. Case does not matter; a fraction of a byte is dropped.

    >>> parse_size("1.5 GiB")
    1610612736

    Raises:
        ValueError: it is no amount, or its unit is a lone letter, which could mean either.
    """
    if isinstance(size, int):
        return size
    match = _SIZE.fullmatch(size.strip())
    if match is None:
        raise ValueError("no amount of memory")
    number, unit = match[1], match[2].lower()
    if unit in ("k", "m", "g", "t"):
        letter = unit.upper()
        raise ValueError(f"{letter} could mean {letter}iB or {letter}B")
    if unit not in _UNITS:
        raise ValueError(f"{match[2]} is no unit of memory")
    return int(Decimal(number) * _UNITS[unit])


def format_size(size: int) -> str:
    """`size` bytes in the largest binary unit that is at least one: `512 MiB`, `1.5 GiB`, `17 B`."""
    amount, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{amount:.1f}".removesuffix(".0") + f" {unit}"
