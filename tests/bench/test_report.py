"""The report in a real browser: all pictures are drawn, nothing is asked of any network, no script fails."""

import random
import re
from dataclasses import replace
from pathlib import Path

import pytest

from bench.browser import Shown, show
from diptych.bench import report
from diptych.bench.load import Load
from diptych.bench.report import comparison_page, require_plotly, results_page
from diptych.bench.results import Parts, Result, Sample
from diptych.bench.slo import Slo
from diptych.bench.verdict import Comparison
from diptych.errors import SetupError

pytest.importorskip("plotly")


def result(topology: str, load: Load, ttft_ms: float, gap_ms: float, seed: int) -> Result:
    """A run of 60 requests with some chance in it, by a seed."""
    chance = random.Random(seed)
    samples = []
    for number in range(60):
        gaps = tuple(gap_ms * chance.lognormvariate(0, 0.1) for _ in range(30))
        samples.append(Sample(float(number), 8000, 31, ttft_ms * chance.lognormvariate(0, 0.4), gaps))
    records = [{"path": "remote", "ttft_ms": each.ttft_ms} for each in samples]
    if topology == "split":
        took = {"prefill_ms": 0.8 * ttft_ms, "queue_ms": 0.3 * ttft_ms, "kv_transfer_ms": 7.0}
        records = [each | took | {"kv_transfer_bytes": 9e8} for each in records]
    return Result(
        load=load,
        topology=topology,
        model="<b>tiny</b>",
        began_at=1_760_000_000.0,
        lasted_s=61.0,
        samples=tuple(samples),
        parts=Parts(tuple(records)),
        slo=Slo.parse("ttft=1s,tpot=15ms"),
        devices="2 cores",
        usd_per_hour=2.5,
        versions={"vllm": "0.29.0"},
    )


def compared(rate: float, name: str = "split") -> Comparison:
    load = Load(input_tokens=8000, output_tokens=31, rate=rate)
    split = tuple(result("split", load, 350 * rate, 7.0, seed) for seed in range(2))
    aggregated = tuple(result("aggregated", load, 250 * rate, 11.0, 9 + seed) for seed in range(2))
    return Comparison(load, split, aggregated, name)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    page = tmp_path_factory.mktemp("report") / "report.html"
    page.write_text(comparison_page([compared(1.0), compared(2.0), compared(4.0)]))
    return show(page)


def test_the_three_pictures_are_drawn(shown: Shown) -> None:
    assert shown.dom.count('class="main-svg"') >= 3
    titles = re.findall("<h2>([^<]*)</h2>", shown.dom)
    assert titles[-3:] == [
        "Latency against rate",
        "Where the time to first token goes (means)",
        "Gaps between tokens over time, with the prompts that arrived",
    ]
    for text in ("TTFT p50, ms", "within the SLO", "KV transfer", "a prompt arrives"):
        assert re.search(f">{text}</text>", shown.dom), text


def test_marks_are_drawn_for_each_side(shown: Shown) -> None:
    against_rate, waterfall, gaps = shown.dom.split('class="plotly-graph-div')[1:]
    assert len(re.findall('class="trace scatter', against_rate)) >= 10
    assert len(re.findall('class="trace bars"', waterfall)) == 4
    assert gaps.count('class="point"') > 1000


def test_it_is_a_picture_with_something_in_it(shown: Shown) -> None:
    assert shown.picture.read_bytes().startswith(b"\x89PNG")
    assert shown.picture.stat().st_size > 50_000


def test_no_script_fails(shown: Shown) -> None:
    assert "Error" not in shown.console


def test_the_verdict_comes_first_and_prices_are_in_the_table(shown: Shown) -> None:
    assert shown.dom.index("At 1 requests/s of 8000/31 the split keeps") < shown.dom.index("<h2>")
    assert "USD per million output tokens" in shown.dom


def test_names_from_outside_are_text(shown: Shown) -> None:
    assert "&lt;b&gt;tiny&lt;/b&gt;" in shown.dom
    assert "<b>tiny" not in shown.dom


def test_it_needs_no_network(shown: Shown) -> None:
    page = comparison_page([compared(1.0)])
    assert not re.search(r"<(script|link|img)[^>]*(src|href)=", page)


def test_each_ratio_has_a_line_of_its_own() -> None:
    page = comparison_page([compared(1.0, "split 1:1"), compared(1.0, "split 1:2")])
    assert '"name":"split 1:1"' in page
    assert '"name":"split 1:2"' in page


def test_one_run_has_its_table_by_phase() -> None:
    doubted = replace(result("split", Load(rate=1.0), 300.0, 7.0, 1), doubts=("it lasted 3 s",))
    page = results_page([doubted])
    assert "Doubtful: it lasted 3 s." in page
    assert all(f"<td>{name}</td>" in page for name in ("TTFT", "TPOT", "prefill queue", "KV transfer"))


def test_several_runs_of_one_service_are_drawn_against_their_rates(tmp_path: Path) -> None:
    runs = [result("split", Load(rate=rate), 300.0 * rate, 7.0, 1) for rate in (1.0, 2.0)]
    page = tmp_path / "page.html"
    page.write_text(results_page(runs))
    shown = show(page)
    assert "Latency against rate" in shown.dom
    assert "Latency against rate" not in results_page(runs[:1])
    assert shown.dom.count("<table>") == 2
    assert "Error" not in shown.console


def test_without_plotly_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SetupError, match="plotly"):
        require_plotly()
