"""Runs that were written as JSON, read back: two sides that could not be measured in one run, compared all the same."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from diptych.bench.load import Load
from diptych.bench.results import KeptRecord, Parts, Result, Sample
from diptych.bench.slo import Slo
from diptych.bench.verdict import Comparison
from diptych.errors import DocumentError, first_fault

_NUMBERS = re.compile(r"\[\s*-?[0-9][-+0-9.eE,\s]*\]")
_DEVICES = re.compile(r"(\d+) × (.+?)(?: and |$)")
_MEASURE = "Measure both sides with the same options: diptych bench … --json > FILE"


def as_text(told: Any) -> str:
    """JSON for people and programs: indented, and lists of numbers in one line each.

    >>> print(as_text({"itl_ms": [1.5, 2.0]}), end="")
    {
      "itl_ms": [1.5, 2.0]
    }
    """
    text = json.dumps(told, indent=2)
    return (
        _NUMBERS.sub(lambda found: re.sub(r"\s+", " ", found[0]).replace("[ ", "[").replace(" ]", "]"), text)
        + "\n"
    )


def read_runs(file: Path) -> tuple[Result, ...]:
    """The runs that `diptych bench --json` wrote into a file.

    Raises:
        DocumentError: it can't be read, or holds something else.
    """
    try:
        told = json.loads(file.read_text("utf-8"))
    except OSError as error:
        raise DocumentError(f"{file} can't be read: {error.strerror}.") from None
    except ValueError:
        raise DocumentError(f"{file} is no JSON.", _MEASURE) from None
    if not isinstance(told, list) or not told or not all(isinstance(each, dict) for each in told):
        raise DocumentError(f"{file} holds no runs as `diptych bench --json` writes them.", _MEASURE)
    if any("samples" not in each or "records" not in each for each in told):
        raise DocumentError(
            f"{file} has sums only and no single requests: an older version of Diptych wrote it.", _MEASURE
        )
    try:
        return tuple(map(_result, told))
    except (ValueError, DocumentError) as error:
        raise DocumentError(
            f"{file} holds no runs as `diptych bench --json` writes them ({error}).", _MEASURE
        ) from None


def compare_recorded(files: Sequence[Path], slo: Slo | None = None) -> list[Comparison]:
    """Two files compared, one of each topology, in either order; runs of the same load in one file are repeats.

    Args:
        slo: in place of the runs' own.

    Raises:
        DocumentError: they are not of the two topologies, or differ in model, loads or SLO.
    """
    runs = {file: read_runs(file) for file in files}
    split, aggregated = (_of_topology(name, runs) for name in ("split", "aggregated"))
    both = [*split, *aggregated]
    if len({each.model for each in both}) > 1:
        names = " and ".join(dict.fromkeys(each.model for each in both))
        raise DocumentError(f"These are runs of different models: {names}.", _MEASURE)
    if slo is not None:
        split, aggregated = (tuple(replace(each, slo=slo) for each in side) for side in (split, aggregated))
    elif len({_bounds(each) for each in both}) > 1:
        raise DocumentError(
            "The runs were held against different SLOs.",
            "Give the one that counts: diptych bench --slo ttft=1s,tpot=15ms compare --results FILE FILE",
        )
    _require_same_loads(split, aggregated)
    return [_comparison(load, split, aggregated) for load in dict.fromkeys(each.load for each in split)]


def _of_topology(topology: str, runs: Mapping[Path, tuple[Result, ...]]) -> tuple[Result, ...]:
    found = [side for side in runs.values() if {each.topology for each in side} == {topology}]
    if len(found) != 1:
        held = "; ".join(
            f"{file} has {' and '.join(dict.fromkeys(each.topology for each in side))}"
            for file, side in runs.items()
        )
        raise DocumentError(f"A comparison needs one file of each topology; {held}.", _MEASURE)
    return found[0]


def _require_same_loads(split: Sequence[Result], aggregated: Sequence[Result]) -> None:
    one, other = ({each.load for each in side} for side in (split, aggregated))
    if one != other:
        raise DocumentError(f"The two sides had different loads: {_unlike(one, other)}.", _MEASURE)
    for load in one:
        prompts = {
            _prompts(each) for each in (*split, *aggregated) if each.load == load and not _failed(each)
        }
        if len(prompts) > 1:
            raise DocumentError(f"The two sides were sent prompts of different lengths at {load}.", _MEASURE)


def _unlike(one: set[Load], other: set[Load]) -> str:
    """In what they differ: the fields of two single loads, else the loads."""
    if len(one) == len(other) == 1:
        (first,), (second,) = one, other
        pairs = [(each.name, getattr(first, each.name), getattr(second, each.name)) for each in fields(Load)]
        return ", ".join(
            f"{name} {ours} for the split, {theirs} aggregated"
            for name, ours, theirs in pairs
            if ours != theirs
        )
    return f"{_named(one)} for the split, {_named(other)} aggregated"


def _named(loads: Iterable[Load]) -> str:
    return ", ".join(sorted(map(str, loads)))


def _prompts(result: Result) -> tuple[int, ...]:
    return tuple(sorted(sample.input_tokens for sample in result.samples))


def _failed(result: Result) -> bool:
    return any(sample.error for sample in result.samples)


def _bounds(result: Result) -> tuple[tuple[str, float], ...] | None:
    return tuple(sorted(result.slo.bounds_ms.items())) if result.slo else None


def _comparison(load: Load, split: Sequence[Result], aggregated: Sequence[Result]) -> Comparison:
    sides = [tuple(each for each in side if each.load == load) for side in (split, aggregated)]
    return Comparison(load, sides[0], sides[1], against=tuple(_against(*sides)))


def _against(split: Sequence[Result], aggregated: Sequence[Result]) -> Iterable[str]:
    """What two sides measured by themselves have against them."""
    began = {
        name: min(each.began_at for each in side)
        for name, side in (("split", split), ("aggregated", aggregated))
    }
    first = min(began, key=lambda name: began[name])
    apart = abs(began["split"] - began["aggregated"])
    yield (
        f"not in one run: {first} was measured first, the other {_minutes(apart)} later; what changed meanwhile falls "
        "on one of them"
    )
    if _count(split[0].devices) != _count(aggregated[0].devices):
        yield f"the devices differ: split on {split[0].devices}, aggregated on {aggregated[0].devices}"
    ours, theirs = split[0].versions, aggregated[0].versions
    if ours and theirs and ours != theirs:  # one engine for both phases may tell none
        yield f"the versions differ: split {_said(ours)}; aggregated {_said(theirs)}"


def _count(devices: str) -> Any:
    """The devices by kind, however they are shared out among phases.

    >>> _count("1 × g6.8xlarge and 1 × g6.8xlarge") == _count("2 × g6.8xlarge")
    True
    """
    found: Counter[str] = Counter()
    for number, kind in _DEVICES.findall(devices):
        found[kind] += int(number)
    return found or devices


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.0f} h"


def _said(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


class _Phases(BaseModel):
    kv_cache_use: dict[str, float]


class _Run(BaseModel):
    """A run as `Result.to_json` tells it, without what follows from the rest."""

    load: Load
    topology: str
    model: str
    began_at: float
    lasted_s: float
    samples: tuple[Sample, ...]
    records: tuple[KeptRecord, ...]
    phases: _Phases
    slo: dict[Literal["ttft", "tpot", "itl", "e2e"], float] | None
    devices: str
    usd_per_hour: float | None
    versions: dict[str, str]
    doubts: tuple[str, ...]


def _result(told: Mapping[str, Any]) -> Result:
    """
    Raises:
        ValueError: something is missing or of another type; the message says where.
        DocumentError: there can't be such a load.
    """
    try:
        run = _Run.model_validate_json(json.dumps(told), strict=True)
    except ValidationError as error:
        raise ValueError(first_fault(error)) from None
    return Result(
        load=run.load,
        topology=run.topology,
        model=run.model,
        began_at=run.began_at,
        lasted_s=run.lasted_s,
        samples=run.samples,
        parts=Parts(
            tuple(each.model_dump(exclude_unset=True) for each in run.records), run.phases.kv_cache_use
        ),
        slo=Slo({str(name): bound for name, bound in run.slo.items()}) if run.slo else None,
        devices=run.devices,
        usd_per_hour=run.usd_per_hour,
        versions=run.versions,
        doubts=run.doubts,
    )
