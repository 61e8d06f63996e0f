"""`diptych check` as a user runs it: what it prints, its exit codes, JSON and the document with its origins."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

MODEL = "model: {source: Qwen/Qwen3-8B, revision: 0123456789abcdef0123456789abcdef01234567}\n"
WRONG = f"""\
on: eks
{MODEL}prefill:
  engine_kwargs: {{block_size: 32}}
decode:
  engine_kwargs: {{block_size: 16, max_modellen: 4096}}
nodes: {{market: spot}}
"""


def check(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "diptych", "check", "--offline", *arguments],
        env=os.environ | {"COLUMNS": "120"} | environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.fixture
def document(tmp_path: Path) -> Path:
    file = tmp_path / "diptych.yaml"
    file.write_text(WRONG)
    return file


def test_all_findings_are_printed_errors_first_and_the_exit_code_is_2(document: Path) -> None:
    done = check(str(document))
    assert (done.returncode, done.stderr) == (2, "")
    heads = [line for line in done.stdout.splitlines() if line.startswith(("error", "warning"))]
    assert heads == [
        f"error E601  {document}:6: decode.engine_kwargs.max_modellen",
        f"error P203  {document}:6: decode.engine_kwargs.block_size",
        f"warning C813  {document}:7: nodes.market",
        f"warning C813  {document}:7: nodes.market",
    ]
    assert "→ did you mean max_model_len?" in done.stdout
    assert "2 errors, 2 warnings." in done.stdout


def test_the_budget_is_a_table_a_bar_and_the_time_of_a_transfer(document: Path) -> None:
    lines = check(str(document)).stdout.splitlines()
    table = {line.split("  ")[0].strip(): line for line in lines if "  " in line}
    assert table["of"].count("one l4 of g6.8xlarge") == 2
    assert "22.0 GiB" in table["in all"]
    assert "15.3 GiB" in table["weights"]
    bars = [line for line in lines if line.startswith(("prefill  ", "decode  ")) and "█" in line]
    assert len(bars) == 2
    assert all(len(bar.split()[1]) == 60 for bar in bars)
    assert any(
        "A KV transfer of 8,192 tokens carries 1.1 GiB: at least 387 ms over EFA" in line for line in lines
    )


def test_the_links_settings_are_told_with_their_reasons(document: Path) -> None:
    lines = check(str(document), COLUMNS="80").stdout.splitlines()
    link = {line[:28].strip(): line[29:] for line in lines[lines.index("link") + 1 :]}
    assert link["kv_transfer.backend"].split("  ")[0] == "LIBFABRIC"
    assert "all worker pods have EFA" in link["kv_transfer.backend"]
    assert "from the document" in link["block_size"]
    assert "chosen" in link["VLLM_KV_CACHE_LAYOUT"]
    assert "vLLM's own" in link["num_threads"]


def test_without_errors_the_exit_code_is_0(document: Path) -> None:
    document.write_text(f"on: eks\n{MODEL}")
    done = check(str(document))
    assert done.returncode == 0
    assert "Nothing is wrong with it." in done.stdout
    document.write_text(f"on: eks\n{MODEL}nodes: {{market: spot}}\n")
    done = check(str(document))
    assert done.returncode == 0
    assert "no errors, 2 warnings." in done.stdout


def test_json_is_one_object_with_the_same_findings(document: Path) -> None:
    done = check(str(document), "--json")
    shape = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (2, "")
    assert (shape["ok"], [finding["code"] for finding in shape["findings"]]) == (
        False,
        ["E601", "P203", "C813", "C813"],
    )
    assert "document" not in shape
    assert "document" in json.loads(check(str(document), "--json", "--show").stdout)


def test_show_prints_every_field_with_where_it_came_from(document: Path) -> None:
    done = check(str(document), "--show", "--set", "decode.num_replicas=2", DIPTYCH_PREFILL__CORES="1")
    rows = {line.split()[0]: line.split() for line in done.stdout.splitlines() if line.strip()}
    assert rows["model.source"][1:] == ["Qwen/Qwen3-8B", "document", "line", "2"]
    assert rows["decode.num_replicas"][1:] == ["2", "--set"]
    assert rows["prefill.cores"][1:] == ["1", "environment", "DIPTYCH_PREFILL__CORES"]
    assert rows["topology"][1:] == ["split", "default"]
    assert rows["access.hostname"][1:] == ["-", "default"]


def test_a_document_that_can_not_be_read_is_a_finding_too(tmp_path: Path) -> None:
    done = check(str(tmp_path / "none.yaml"))
    assert done.returncode == 2
    assert "error S101" in done.stdout
    assert "there is no such file" in done.stdout


def test_a_shape_error_does_not_hide_the_rest_and_says_what_was_left_out(document: Path) -> None:
    document.write_text(WRONG + "topologie: split\n")
    done = check(str(document))
    assert "error S104" in done.stdout
    assert "error P203" in done.stdout
    assert "without what is wrong in itself (topologie)" in done.stdout


def test_control_characters_in_a_document_are_shown_and_not_obeyed(document: Path) -> None:
    document.write_text('engine_kwargs: {dtype: "\\e[2J"}\n')
    done = check(str(document), "--show")
    assert "\x1b" not in done.stdout
