"""Two runs that were written as JSON: read back as they were, compared, and refused where that would mean nothing."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from diptych.bench.load import Load
from diptych.bench.recorded import as_text, compare_recorded, read_runs
from diptych.bench.report import comparison_page
from diptych.bench.results import Parts, Result, Sample
from diptych.bench.slo import Slo
from diptych.bench.verdict import verdict
from diptych.errors import DocumentError

LOAD = Load(input_tokens=8, output_tokens=3, rate=1.0, requests=60)
RECORD = {
    "path": "remote",
    "ttft_ms": 100.0,
    "prefill_ms": 60.0,
    "queue_ms": 10.0,
    "kv_transfer_ms": 5.0,
    "kv_transfer_bytes": 9_000_000,
    "request": "b1946ac9",
}


def run(topology: str, gap_ms: float = 7.0, **fields: Any) -> Result:
    samples = tuple(Sample(float(number), 8, 3, 100.0, (gap_ms, gap_ms + 0.5)) for number in range(60))
    fields = {
        "load": LOAD,
        "slo": Slo.parse("ttft=1s,tpot=10ms"),
        "began_at": 1e9,
        "usd_per_hour": 2.0,
    } | fields
    fields = {"devices": "1 × g6.8xlarge and 1 × g6.8xlarge", "versions": {"vllm": "0.29.0"}} | fields
    parts = Parts((RECORD,) * 60, {"decode": 0.5})
    return Result(topology=topology, model="m", lasted_s=60.0, samples=samples, parts=parts, **fields)


SPLIT = run("split")
AGGREGATED = run("aggregated", 11.0, began_at=1e9 + 1800, devices="2 × g6.8xlarge")

Written = Callable[..., Path]


@pytest.fixture
def written(tmp_path: Path) -> Written:
    def write(name: str, *results: Result) -> Path:
        file = tmp_path / name
        file.write_text(as_text([each.to_json() for each in results]))
        return file

    return write


def test_a_run_is_read_back_as_it_was(written: Written) -> None:
    failed = replace(
        SPLIT, samples=(*SPLIT.samples, Sample(60.0, 8, 0, None, (), "HTTP 503")), doubts=("few",)
    )
    (found,) = read_runs(written("split.json", failed))
    assert found.samples == failed.samples
    assert found.to_json() == failed.to_json()


def test_gaps_stand_in_one_line_and_the_text_is_the_same_json(written: Written) -> None:
    text = written("split.json", SPLIT).read_text()
    assert json.loads(text) == json.loads(json.dumps([SPLIT.to_json()]))
    assert text.count('"itl_ms": [7.0, 7.5]') == 60
    odd = {
        "texts": ["[\n 1,\n 2]", "1"],
        "mixed": [1, "a"],
        "empty": [],
        "deep": [[1, 2], [3]],
        "bad": [-1e-9],
    }
    assert json.loads(as_text(odd)) == odd


def test_neither_names_of_requests_nor_of_replicas_are_kept(written: Written) -> None:
    assert "b1946ac9" not in written("split.json", SPLIT).read_text()


@pytest.mark.parametrize("turned", [False, True])
def test_two_files_get_a_verdict_a_price_and_the_doubt_that_they_are_two_runs(
    written: Written, turned: bool
) -> None:
    files = [written("split.json", SPLIT), written("aggregated.json", AGGREGATED)]
    (found,) = compare_recorded(files[::-1] if turned else files)
    assert found.pays is True
    said = verdict([found])
    assert said.startswith("At 1 requests/s of 8/3 the split keeps 100 % of requests within")
    assert "A million output tokens cost 185.19 USD, aggregated 185.19" in said
    assert "not in one run: split was measured first, the other 30 min later" in said
    assert "a single run of each side" in said
    assert "the devices differ" not in said


def test_runs_of_one_load_are_repeats_and_each_load_is_compared(written: Written) -> None:
    fast = replace(LOAD, rate=2.0)
    sides = [
        written(f"{each.topology}.json", each, each, replace(each, load=fast)) for each in (SPLIT, AGGREGATED)
    ]
    found = compare_recorded(sides)
    assert [(each.load.rate, len(each.split), len(each.aggregated)) for each in found] == [
        (1.0, 2, 2),
        (2.0, 1, 1),
    ]
    assert not any("a single run" in doubt for doubt in found[0].doubts)


def test_other_devices_and_versions_are_doubts(written: Written) -> None:
    other = replace(AGGREGATED, devices="1 × g6e.8xlarge", versions={"vllm": "0.26.0"})
    (found,) = compare_recorded([written("a.json", SPLIT), written("b.json", other)])
    doubts = " ".join(found.doubts)
    assert (
        "the devices differ: split on 1 × g6.8xlarge and 1 × g6.8xlarge, aggregated on 1 × g6e.8xlarge"
        in doubts
    )
    assert "the versions differ: split vllm 0.29.0; aggregated vllm 0.26.0" in doubts


def test_a_side_that_tells_no_versions_is_no_doubt(written: Written) -> None:
    silent = replace(AGGREGATED, versions={})
    (found,) = compare_recorded([written("a.json", SPLIT), written("b.json", silent)])
    assert "the versions differ" not in " ".join(found.doubts)


def test_the_pictures_can_be_drawn_of_it(written: Written) -> None:
    pytest.importorskip("plotly")
    files = [written("split.json", SPLIT), written("aggregated.json", AGGREGATED)]
    page = comparison_page(compare_recorded(files))
    assert "Where the time to first token goes" in page
    assert '"name":"KV transfer"' in page
    assert "Gaps between tokens over time" in page


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (SPLIT, "one file of each topology; .*a.json has split; .*b.json has split"),
        (replace(AGGREGATED, model="n"), "different models: m and n"),
        (replace(AGGREGATED, load=replace(LOAD, seed=1)), "seed 0 for the split, 1 aggregated"),
        (replace(AGGREGATED, load=replace(LOAD, rate=4.0)), "rate 1.0 for the split, 4.0 aggregated"),
        (replace(AGGREGATED, slo=None), "different SLOs"),
        (
            replace(AGGREGATED, samples=tuple(replace(each, input_tokens=9) for each in AGGREGATED.samples)),
            "prompts of different lengths",
        ),
    ],
)
def test_what_can_not_be_compared_is_refused(written: Written, other: Result, why: str) -> None:
    with pytest.raises(DocumentError, match=why):
        compare_recorded([written("a.json", SPLIT), written("b.json", other)])


def test_more_loads_on_one_side_are_refused(written: Written) -> None:
    more = written("a.json", SPLIT, replace(SPLIT, load=replace(LOAD, rate=2.0)))
    with pytest.raises(
        DocumentError, match="1 requests/s of 8/3, 2 requests/s of 8/3 for the split, 1 requests/s"
    ):
        compare_recorded([more, written("b.json", AGGREGATED)])


def test_an_slo_that_is_given_holds_for_both(written: Written) -> None:
    files = [written("a.json", SPLIT), written("b.json", replace(AGGREGATED, slo=None))]
    (found,) = compare_recorded(files, Slo.parse("tpot=9ms"))
    assert (found.goodput("split"), found.goodput("aggregated")) == ((1.0,), (0.0,))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "is no JSON"),
        ('{"verdict": "it pays"}', "holds no runs"),
        ("[]", "holds no runs"),
        ('[{"topology": "split"}]', "sums only"),
        ('[{"topology": "split", "samples": [], "records": []}]', r"holds no runs .*load: Field required"),
    ],
)
def test_a_file_of_something_else_is_refused(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "some.json"
    file.write_text(text)
    with pytest.raises(DocumentError, match=why):
        read_runs(file)


@pytest.mark.parametrize(
    ("path", "value", "where"),
    [
        (("samples", 3, "ttft_ms"), "x", r"samples\.3\.ttft_ms"),
        (("samples", 3, "itl_ms", 0), None, r"samples\.3\.itl_ms\.0"),
        (("samples", 3, "output_tokens"), 1.5, r"samples\.3\.output_tokens"),
        (("records", 0, "kv_transfer_ms"), "x", r"records\.0\.kv_transfer_ms"),
        (("records", 0), 5, r"records\.0"),
        (("load", "pause_s"), "x", r"load\.pause_s"),
        (("load", "requests"), 0, "requests must be at least 1"),
        (("phases", "kv_cache_use", "decode"), "x", r"phases\.kv_cache_use\.decode"),
        (("slo",), {"speed": 1.0}, r"slo\.speed"),
        (("usd_per_hour",), "x", "usd_per_hour"),
        (("doubts",), "x", "doubts"),
        (("versions",), ["x"], "versions"),
    ],
    ids=str,
)
def test_a_value_of_another_kind_is_refused_with_its_place(
    written: Written, path: tuple[str | int, ...], value: Any, where: str
) -> None:
    file = written("split.json", SPLIT)
    runs = json.loads(file.read_text())
    inner = runs[0]
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    file.write_text(json.dumps(runs))
    with pytest.raises(DocumentError, match=rf"split\.json holds no runs .*\({where}"):
        read_runs(file)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match=r"no\.json can't be read"):
        read_runs(tmp_path / "no.json")
