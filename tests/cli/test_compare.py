"""`diptych bench compare`: who runs when, under which load, and what is made of it; engines and client left out."""

import inspect
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from diptych.bench.load import Load
from diptych.bench.recorded import as_text
from diptych.bench.results import Result, Sample
from diptych.bench.workload import Trace, Workload
from diptych.cli import app as app_module
from diptych.cli import bench
from diptych.cli.bench import Asked, run_compare
from diptych.cli.bench_places import Side
from diptych.cli.places import LOCAL, Up
from diptych.errors import DocumentError, EndpointError

SIDES = (Side("split", ("topology=split",)), Side("aggregated", ("topology=aggregated",)))
LOADS = tuple(Trace.of(Load(rate=rate, requests=10)) for rate in (1.0, 2.0))


class World:
    """What a comparison did, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.did: list[str] = []
        self.fails_at = ""
        monkeypatch.setattr(bench, "require_client", lambda: None)
        monkeypatch.setattr(bench, "sides_of", lambda file, overrides, ratios: SIDES)
        monkeypatch.setattr(bench, "brought_up", self._brought_up)
        monkeypatch.setattr(bench, "reached", self._reached)
        monkeypatch.setattr(bench, "_bench", self._bench)
        monkeypatch.setattr(bench, "_run", self._run)

    @contextmanager
    def _brought_up(self, file: Path | None, overrides: list[str]) -> Iterator[Up]:
        self._side = overrides[-1].partition("=")[2]
        self.did.append(f"{self._side} up")
        try:
            yield Up("one", LOCAL)
        finally:
            self.did.append(f"{self._side} down")

    @contextmanager
    def _reached(self, up: Up, admin: bool) -> Iterator[None]:
        assert admin
        yield

    @contextmanager
    def _bench(self, endpoint: None, up: Up, asked: Asked, first_run: int) -> Iterator[None]:
        assert first_run == 1  # both sides number their runs alike: their tokens are the same
        yield

    def _run(self, _: None, up: Up, workload: Workload, asked: Asked) -> Result:
        self.did.append(f"{self._side} {workload.load.rate:g}/s")
        if self.did[-1] == self.fails_at:
            raise EndpointError("No request was answered.")
        gap_ms = 7.0 if self._side == "split" else 11.0
        samples = tuple(Sample(float(number), 8, 3, 100.0, (gap_ms, gap_ms)) for number in range(60))
        return Result(workload.load, self._side, "m", 0.0, 60.0, samples)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_each_side_is_up_alone_and_gets_each_load_several_times(world: World) -> None:
    assert run_compare(None, [], Asked(LOADS), rounds=1, repeats=2) == 0
    loads = ["1/s", "2/s", "1/s", "2/s"]
    assert world.did == [
        step
        for side in ("split", "aggregated")
        for step in (f"{side} up", *(f"{side} {load}" for load in loads), f"{side} down")
    ]


def test_the_next_round_begins_with_the_other_side(world: World) -> None:
    run_compare(None, [], Asked(LOADS[:1]), rounds=2, repeats=1)
    ups = [step.split()[0] for step in world.did if step.endswith(" up")]
    assert ups == ["split", "aggregated", "aggregated", "split"]


def test_by_default_each_side_is_first_once() -> None:
    defaults = {name: each.default for name, each in inspect.signature(app_module.compare).parameters.items()}
    assert (defaults["rounds"], defaults["repeats"]) == (2, 1)


def test_sides_that_were_up_once_are_doubted_with_their_order(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    run_compare(None, [], Asked(LOADS), rounds=1, repeats=2)
    assert "each side was up once, in this order: split, aggregated;" in capsys.readouterr().out
    run_compare(None, [], Asked(LOADS), rounds=2, repeats=1)
    assert "each side was up once" not in capsys.readouterr().out


def test_the_verdict_is_printed_below_the_tables(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    run_compare(None, [], Asked(LOADS), rounds=2, repeats=1)
    told = capsys.readouterr()
    assert "TPOT p50" in told.out
    assert told.out.splitlines()[-1] == "It pays at all of these rates."
    assert "Round 1 of 2: aggregated" in told.err


def test_json_has_all_runs_and_nothing_else_is_on_standard_output(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    run_compare(None, [], Asked(LOADS, json_output=True), rounds=2, repeats=2)
    told = json.loads(capsys.readouterr().out)
    assert [len(each["split"]) for each in told["comparisons"]] == [4, 4]
    assert [each["load"]["rate"] for each in told["comparisons"]] == [1.0, 2.0]
    assert told["verdict"].endswith("It pays at all of these rates.")


def test_the_report_is_written(world: World, tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    page = tmp_path / "page.html"
    run_compare(None, [], Asked(LOADS, html=page), rounds=1, repeats=1)
    assert "split against aggregated" in page.read_text()


def test_a_side_that_fails_is_taken_down_and_ends_the_comparison(world: World) -> None:
    world.fails_at = "split 2/s"
    with pytest.raises(EndpointError):
        run_compare(None, [], Asked(LOADS), rounds=1, repeats=1)
    assert world.did == ["split up", "split 1/s", "split 2/s", "split down"]


@pytest.fixture
def recorded(tmp_path: Path) -> list[str]:
    """A file of each topology, as `diptych bench --json` writes them."""
    files = []
    for topology, gap_ms in (("split", 7.0), ("aggregated", 11.0)):
        samples = tuple(Sample(float(number), 8, 3, 100.0, (gap_ms, gap_ms)) for number in range(60))
        result = Result(LOADS[0].load, topology, "m", 0.0, 60.0, samples, usd_per_hour=2.0)
        file = tmp_path / f"{topology}.json"
        file.write_text(as_text([result.to_json()]))
        files.append(str(file))
    return files


def test_recorded_results_are_compared_and_nothing_is_brought_up(
    world: World, recorded: list[str], tmp_path: Path
) -> None:
    pytest.importorskip("plotly")
    page = tmp_path / "page.html"
    done = CliRunner().invoke(
        app_module.app, ["bench", "--html", str(page), "--slo", "tpot=9ms", "compare", "--results", *recorded]
    )
    assert done.exit_code == 0, done.output
    assert world.did == []
    assert "TPOT p50" in done.stdout
    assert "the split keeps 100 % of requests within TPOT ≤ 9 ms, aggregated 0 %." in done.stdout
    assert "not in one run" in done.stdout
    assert "split against aggregated" in page.read_text()


def test_json_of_recorded_results_is_that_of_any_comparison(recorded: list[str]) -> None:
    done = CliRunner().invoke(app_module.app, ["bench", "--json", "compare", "--results", *recorded])
    told = json.loads(done.stdout)
    assert told["comparisons"][0]["pays"] is True
    assert told["comparisons"][0]["usd_per_million_output_tokens"]["split"] == pytest.approx(
        185.185, abs=0.01
    )


@pytest.mark.parametrize(
    ("before", "behind", "named"),
    [
        (["--rate", "2"], [], "--rate"),
        ([], ["--rounds", "3"], "--rounds"),
        ([], ["--set", "name=a"], "--set"),
    ],
)
def test_options_that_would_do_nothing_beside_recorded_results_are_refused(
    recorded: list[str], before: list[str], behind: list[str], named: str
) -> None:
    done = CliRunner().invoke(app_module.app, ["bench", *before, "compare", "--results", *recorded, *behind])
    assert isinstance(done.exception, DocumentError)
    assert f"{named} would do nothing" in str(done.exception)
