"""`diptych bench`: load on a service that is up, in numbers per phase; `compare`: a split against one engine."""

import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diptych.bench.client import require_client
from diptych.bench.load import PRESETS, Load
from diptych.bench.measure import STAGES, Bench
from diptych.bench.recorded import as_text, compare_recorded
from diptych.bench.results import Result
from diptych.bench.slo import Slo
from diptych.bench.tokens import stand_in
from diptych.bench.verdict import Comparison, verdict
from diptych.bench.workload import OwnPrompts, Trace, Workload
from diptych.cli.bench_cores import OtherPrograms
from diptych.cli.bench_places import AGGREGATED, Side, Turns, brought_up, machines_of, sides_of, tokenizer_of
from diptych.cli.bench_tables import print_comparison, print_result
from diptych.cli.cluster_plan import agreed
from diptych.cli.console import err, out, write
from diptych.cli.files import write_whole
from diptych.cli.places import LOCAL, Up, reached
from diptych.cli.view import LiveView
from diptych.errors import DocumentError
from diptych.spec import load

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from diptych.endpoint import Endpoint

    BringUp = Callable[[Side], AbstractContextManager[Up]]


@dataclass(frozen=True)
class Asked:
    """What the command line asks for.

    Args:
        workloads: what is sent, one after the other.
        tokenizer: a folder; None: the model's own, or one that stands in for it.
        html: where to write the report; None: nowhere.
    """

    workloads: tuple[Workload, ...]
    slo: Slo | None = None
    tokenizer: Path | None = None
    html: Path | None = None
    json_output: bool = False


def workloads_of(
    preset: str | None,
    rates: str | None,
    *,
    trace: Path | None = None,
    speed: float | None = None,
    prompts: Path | None = None,
    **given: Any,
) -> tuple[Workload, ...]:
    """What is sent: a preset, or a plain load, with what was given in place of its own; or what a file has.

    >>> [str(each.load) for each in workloads_of("rag", "1,4", output_tokens=64)]
    ['1 requests/s of 8000/64', '4 requests/s of 8000/64']

    Args:
        rates: requests per second, like "1,4".
        trace: a file whose requests are sent at their own times, `speed` times as fast.
        prompts: a file with prompts of the user's own.
        given: fields of `Load`; None: not given.

    Raises:
        DocumentError: there is no such preset, the rates are no numbers, a file can't be read, or options contradict
            each other.
    """
    wanted = {name: value for name, value in given.items() if value is not None}
    if trace is not None:
        also = {"--preset": preset, "--rate": rates, "--prompts": prompts}
        _require_only(("requests", "concurrency"), "a trace has requests and times of its own", wanted, also)
        limit, concurrency = wanted.get("requests"), wanted.get("concurrency")
        return (Trace.read(trace, limit=limit, speed=speed or 1.0, concurrency=concurrency),)
    if speed is not None:
        raise DocumentError("--speed is for a trace.", "Give one with --trace, or leave --speed out.")
    loads = _loads_of(preset, rates, wanted)
    if prompts is None:
        return tuple(map(Trace.of, loads))
    allowed = ("arrivals", "concurrency", "seed")
    _require_only(allowed, "prompts of your own are sent as they are", wanted, {"--preset": preset})
    return tuple(OwnPrompts.read(prompts, load) for load in loads)


def _require_only(
    allowed: Collection[str], why: str, given: Mapping[str, Any], also: Mapping[str, Any]
) -> None:
    """Refuse options that would do nothing."""
    unused = [f"--{name.removesuffix('_tokens')}" for name in given if name not in allowed]
    unused += [name for name, value in also.items() if value is not None]
    if unused:
        raise DocumentError(f"{', '.join(unused)} would do nothing: {why}.", "Leave one or the other out.")


def _loads_of(preset: str | None, rates: str | None, wanted: dict[str, Any]) -> tuple[Load, ...]:
    if preset is not None and preset not in PRESETS:
        raise DocumentError(f"There is no preset {preset!r}.", f"One of: {', '.join(PRESETS)}.")
    base = PRESETS[preset] if preset is not None else Load()
    if rates is None:
        if "concurrency" in wanted and preset is None:
            wanted = {**wanted, "rate": None}  # as many as may be at once, and no more to wait for
        return (replace(base, **wanted),)
    try:
        numbers = [float(each) for each in rates.split(",")]
    except ValueError:
        raise DocumentError(
            f"{rates!r} are no rates.", "Write requests per second, like 4 or 1,2,4."
        ) from None
    return tuple(replace(base, **wanted, rate=number) for number in numbers)


def run_bench(up: Up, asked: Asked) -> int:
    """Load a service that is up and print what came of it; 0 when all requests were answered, else 1.

    Raises:
        DiptychError: the split is not real, nothing is answered, or the client is not there.
    """
    _require(asked)
    results = []
    # The service may have been measured before: its caches must not know these tokens.
    with reached(up, admin=True) as endpoint, _bench(endpoint, up, asked, int(time.time())) as bench:
        for workload in asked.workloads:
            results.append(_run(bench, up, workload, asked))
            if not asked.json_output:
                print_result(results[-1])
    if asked.json_output:
        write(as_text([each.to_json() for each in results]))
    if asked.html:
        from diptych.bench.report import results_page

        _save(asked.html, results_page(results))
    return 0 if all(len(each.answered) == len(each.samples) for each in results) else 1


def run_compare(
    file: Path | None,
    overrides: list[str],
    asked: Asked,
    *,
    rounds: int,
    repeats: int,
    ratios: str | None = None,
    yes: bool = False,
    timeout_s: float | None = None,
) -> int:
    """Bring the document up as a split and aggregated in turn, load both alike, and give a verdict; 0 when it could.

    On a cluster the service that is there becomes each side, after a question; 1 where that was answered no.

    Args:
        rounds: how often each side is brought up; every other round goes through them backwards, so that what
            changes with time (a machine that warms up, others' work on it) falls on both.
        repeats: how often each load is sent while a side is up.
        ratios: replicas of prefill and decode to try, like "1:1,1:2"; None: the document's.
        yes: nothing is asked.
        timeout_s: on a cluster, deadline of each wait; None: derived.

    Raises:
        DiptychError: a side does not come up, or its proof fails.
    """
    _require(asked)
    sides = sides_of(file, overrides, ratios)
    turns = Turns(sides, rounds, repeats)
    if load(file, overrides).on == LOCAL:
        _tell(_measured(turns, asked, lambda side: brought_up(file, [*overrides, *side.overrides])), asked)
        return 0
    from diptych.cli.bench_clusters import prepare_comparison, tell_plan
    from diptych.cli.bench_turns import taking_turns

    fresh = any(isinstance(workload, OwnPrompts) for workload in asked.workloads)
    comparing = prepare_comparison(file, overrides, sides, timeout_s=timeout_s, fresh=fresh)
    if comparing is None:
        return 2
    tell_plan(comparing, turns.order, turns.loads_s(asked.workloads))
    if not yes and not agreed():
        err().print("Nothing was changed.")
        return 1
    with taking_turns(comparing) as become:
        # Engines may stay from one turn to the next: none has seen the tokens of any.
        found = _measured(turns, asked, lambda side: nullcontext(become(side)), first_run=int(time.time()))
        _tell(found, asked)  # before the way back, which takes its time
    return 0


def run_recorded(files: tuple[Path, Path], asked: Asked, given: Collection[str]) -> int:
    """Compare what `diptych bench --json` wrote, one file of each topology, and give a verdict; 0 when it could.

    Args:
        given: what else the command line has, by option.

    Raises:
        DocumentError: the files can't be read or compared, or an option would do nothing.
    """
    if unused := [each for each in given if each not in ("--slo", "--html", "--json", "--results")]:
        raise DocumentError(
            f"{', '.join(unused)} would do nothing: recorded results are compared as they are.",
            "Leave it out.",
        )
    _require_html(asked)
    _tell(compare_recorded(files, asked.slo), asked)
    return 0


def _against(rounds: int, sides: Sequence[Side]) -> tuple[str, ...]:
    """What the order of the sides says against a comparison."""
    if rounds > 1:
        return ()
    order = ", ".join(side.name for side in sides)
    return (f"each side was up once, in this order: {order}; what changed meanwhile falls on one of them",)


def _tell(comparisons: Sequence[Comparison], asked: Asked) -> None:
    if asked.json_output:
        told = {"verdict": verdict(comparisons), "comparisons": [each.to_json() for each in comparisons]}
        write(as_text(told))
    else:
        for comparison in comparisons:
            print_comparison(comparison)
        out().print(verdict(comparisons), highlight=False, soft_wrap=True)
    if asked.html:
        from diptych.bench.report import comparison_page

        _save(asked.html, comparison_page(comparisons))


def _measured(
    turns: Turns, asked: Asked, bring_up: "BringUp", first_run: int | None = None
) -> list[Comparison]:
    """Each side in its turn, loaded while it is up.

    Args:
        first_run: numbers the first run, and the next turn's go on; None: each side's engines are its own, and
            begin with 1.
    """
    found: dict[str, list[list[Result]]] = {side.name: [[] for _ in asked.workloads] for side in turns.sides}
    for number, round_of_sides in enumerate(turns.rounds_of_sides):
        first = 1 if first_run is None else first_run + number * turns.runs(asked.workloads)
        for side in round_of_sides:
            err().print(f"Round {number + 1} of {turns.rounds}: {side.name}", style="bold")
            for which, result in _one_side(bring_up(side), side, asked, turns.repeats, first):
                found[side.name][which].append(result)
    return [
        Comparison(
            workload.load,
            tuple(found[side.name][number]),
            tuple(found[AGGREGATED][number]),
            side.name,
            _against(turns.rounds, turns.sides),
        )
        for number, workload in enumerate(asked.workloads)
        for side in turns.sides[:-1]
    ]


def _one_side(
    bringing_up: "AbstractContextManager[Up]", side: Side, asked: Asked, repeats: int, first_run: int
) -> Iterator[tuple[int, Result]]:
    """The results of one side while it is up: each load in turn, all of them `repeats` times."""
    with (
        bringing_up as up,
        reached(up, admin=True) as endpoint,
        _bench(endpoint, up, asked, first_run) as bench,
    ):
        for repeat in range(repeats):
            for number, workload in enumerate(asked.workloads):
                err().print(f"{side.name}, {workload.load}, {repeat + 1} of {repeats}", style="dim")
                yield number, _run(bench, up, workload, asked)


@contextmanager
def _bench(endpoint: "Endpoint", up: Up, asked: Asked, first_run: int) -> Iterator[Bench]:
    with tempfile.TemporaryDirectory(prefix="diptych-bench-") as name:
        folder = Path(name)
        tokenizer = asked.tokenizer or tokenizer_of(up) or stand_in(folder)
        yield Bench(endpoint, tokenizer, folder, first_run=first_run, **machines_of(up))


def _run(bench: Bench, up: Up, workload: Workload, asked: Asked) -> Result:
    with LiveView(err(), STAGES) as view, OtherPrograms(up) as others:
        result = bench.run(workload, view, asked.slo)
    return replace(result, doubts=(*result.doubts, *others.doubts))


def _require(asked: Asked) -> None:
    """Whatever would end a run at its end is said before its beginning."""
    require_client()
    _require_html(asked)


def _require_html(asked: Asked) -> None:
    if asked.html:
        from diptych.bench.report import require_plotly

        require_plotly()
        if not asked.html.absolute().parent.is_dir():
            raise DocumentError(
                f"{asked.html} can't be written: there is no such folder.", "Choose another file."
            )


def _save(file: Path, page: str) -> None:
    try:
        write_whole(file, page)
    except OSError as error:
        raise DocumentError(f"{file} can't be written: {error.strerror}.", "Choose another file.") from None
    err().print(f"The report is in {file}.", highlight=False)
