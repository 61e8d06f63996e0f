"""Amounts as Kubernetes writes them: "31850m" CPU cores, "100Gi" of memory."""

import re
from decimal import Decimal

_UNITS = {
    "": Decimal(1),
    "m": Decimal("0.001"),
    **{letter: Decimal(1000) ** power for power, letter in enumerate("kMGTPE", start=1)},
    **{f"{letter}i": Decimal(1024) ** power for power, letter in enumerate("KMGTPE", start=1)},
}
_QUANTITY = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(?:([eE][+-]?\d{1,2})|([kMGTPEm]|[KMGTPE]i)?)", re.ASCII)


def quantity(value: object) -> Decimal | None:
    """The amount that `value` stands for; None for what is no quantity.

    >>> quantity("1500m"), quantity("2Gi"), quantity("1e3"), quantity("lots")
    (Decimal('1.500'), Decimal('2147483648'), Decimal('1000'), None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    match = _QUANTITY.fullmatch(str(value).strip())
    if match is None:
        return None
    number, exponent, unit = match.groups()
    return Decimal(f"{number}{exponent}" if exponent else number) * _UNITS[unit or ""]
