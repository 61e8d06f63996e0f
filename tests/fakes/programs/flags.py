"""Flags as Go's pflag reads them, which eksctl and helm do: what is not known is refused in its words."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


class RefusedError(Exception):
    """The program ends with exit code 1 and this after "Error: "."""


@dataclass(frozen=True)
class Flags:
    """What was given.

    Attributes:
        values: by flag, the last wins; "true" or "false" for switches. Those that were not given are not in it.
        lists: all values of flags that may be repeated.
        arguments: what is no flag.
    """

    values: Mapping[str, str] = field(default_factory=dict)
    lists: Mapping[str, list[str]] = field(default_factory=dict)
    arguments: Sequence[str] = ()

    def text(self, name: str, default: str = "") -> str:
        return self.values.get(name, default)

    def on(self, name: str, default: bool = False) -> bool:
        return self.values.get(name, str(default).lower()) == "true"

    def all(self, name: str) -> list[str]:
        """Values of a flag that may be repeated, or hold several with commas between."""
        return [part for one in self.lists.get(name, ()) for part in one.split(",")]


def read(arguments: Sequence[str], known: Mapping[str, str], short: Mapping[str, str]) -> Flags:
    """Raises RefusedError for a flag that is not known or has no good value.

    Args:
        known: kinds by name: "text", "switch", "number", "duration".
        short: names by letter.
    """
    values: dict[str, str] = {}
    lists: dict[str, list[str]] = {}
    rest: list[str] = []
    left = list(arguments)
    while left:
        word = left.pop(0)
        if word == "--":
            rest += left
            break
        if not word.startswith("-") or word == "-":
            rest.append(word)
            continue
        name, given, value = word.lstrip("-").partition("=")
        if not word.startswith("--"):
            if name[0] not in short:
                raise RefusedError(f"unknown shorthand flag: {name[0]!r} in {word}")
            name, attached = short[name[0]], name[1:]
            if attached:
                given, value = "=", attached
        if name not in known:
            raise RefusedError(f"unknown flag: --{name}")
        if not given:
            if known[name] == "switch":
                value = "true"
            elif not left:
                raise RefusedError(f"flag needs an argument: --{name}")
            else:
                value = left.pop(0)
        _check(name, known[name], value)
        values[name] = value
        lists.setdefault(name, []).append(value)
    return Flags(values, lists, rest)


def seconds(text: str) -> float:
    """A duration as Go writes it: "25m", "1h30m", "90s"."""
    units, total, number = {"h": 3600.0, "m": 60.0, "s": 1.0}, 0.0, ""
    for letter in text:
        if letter in units and number:
            total, number = total + float(number) * units[letter], ""
        elif letter.isdigit() or letter == ".":
            number += letter
        else:
            raise ValueError(text)
    if number and float(number):
        raise ValueError(text)
    return total


def _check(name: str, kind: str, value: str) -> None:
    if kind == "switch" and value not in {"true", "false"}:
        raise RefusedError(
            f'invalid argument "{value}" for "--{name}" flag: strconv.ParseBool: parsing "{value}": invalid syntax'
        )
    if kind == "number" and not value.lstrip("-").isdigit():
        raise RefusedError(
            f'invalid argument "{value}" for "--{name}" flag: strconv.ParseInt: parsing "{value}": invalid syntax'
        )
    if kind == "duration":
        try:
            seconds(value)
        except ValueError:
            message = f'invalid argument "{value}" for "--{name}" flag: time: invalid duration "{value}"'
            raise RefusedError(message) from None
