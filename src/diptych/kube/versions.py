"""Versions as numbers."""


def numbers(version: str) -> tuple[int, ...]:
    """A version's numbers, to compare; empty where it is none.

    >>> numbers("v1.7.0"), numbers("1.6.2-eks"), numbers("nightly")
    ((1, 7, 0), (1, 6, 2), ())
    """
    parts = version.removeprefix("v").partition("-")[0].split(".")
    return tuple(int(part) for part in parts) if all(part.isdigit() for part in parts) else ()
