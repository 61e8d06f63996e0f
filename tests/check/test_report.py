"""A check of a file: faults of its shape and what rules find, together; the document with its origins; JSON."""

import json
from pathlib import Path
from typing import Any

import pytest

from diptych.check import Report, check_file

PINNED = "{source: Qwen/Qwen3-8B, revision: 0123456789abcdef0123456789abcdef01234567}"
KEYS = {"code", "severity", "where", "field", "what", "do", "line"}


@pytest.fixture
def checked(tmp_path: Path) -> Any:
    def checked(text: str, *overrides: str, **environ: str) -> Report:
        file = tmp_path / "diptych.yaml"
        file.write_text(text)
        return check_file(file, overrides, offline=True, environ=environ)

    return checked


def test_faults_of_shape_do_not_hide_what_else_is_wrong(checked: Any) -> None:
    report = checked(
        "topologie: split\nprefill:\n  engine_kwargs: {block_size: 32}\ndecode:\n  num_replicas: -1\n"
        "  engine_kwargs: {block_size: 16}\n"
    )
    assert [(f.code, f.line) for f in report.findings if f.severity == "error"] == [
        ("S104", 1),
        ("S107", 5),
        ("P203", 6),
    ]
    assert report.left_out == ("topologie", "decode.num_replicas")


def test_what_stands_beside_a_wrong_field_is_left_alone(checked: Any) -> None:
    """A misspelt zone must not be said to be missing."""
    text = f"on: eks\nmodel: {PINNED}\naccess: {{expose: gateway, gateway_clas: envoy, tls_secret: tls}}\n"
    assert {f.code for f in checked(text).findings} == {"S104"}
    assert "A704" in {f.code for f in checked(text.replace("gateway_clas: envoy, ", "")).findings}


def test_a_field_that_is_wrong_only_without_another_is_not_told(checked: Any) -> None:
    report = checked("model: {source: 'no source at all', revision: main}\n")
    assert [f.field for f in report.findings if f.severity == "error"] == ["model.source"]


def test_a_wrong_item_of_a_list_leaves_out_the_list(checked: Any) -> None:
    report = checked(f"on: eks\nmodel: {PINNED}\neks: {{public_access_cidrs: [0.0.0.0/0, nowhere]}}\n")
    assert [f.code for f in report.findings] == ["S109"]
    assert report.subject is not None
    assert report.subject.document.eks.public_access_cidrs == []


def test_a_file_that_holds_no_document_has_one_finding_and_no_budget(checked: Any) -> None:
    report = checked("- a list\n")
    assert [f.code for f in report.findings] == ["S106"]
    assert report.as_json(show=True) == {
        "ok": False,
        "findings": [report.findings[0].as_json()],
        "left_out": [],
        "budget": None,
        "link": [],
        "document": [],
    }


def test_the_line_of_broken_yaml_is_shown(checked: Any) -> None:
    finding = checked("decode:\n\tnum_replicas: 2\n").findings[0]
    assert (finding.code, finding.line) == ("S102", 2)
    assert "^" in finding.what


def test_errors_come_first_then_lines(checked: Any) -> None:
    text = "on: eks\nmodel: Qwen/Qwen3-8B\nnodes: {market: spot}\ndecode: {engine_kwargs: {nonsense: 1, dtype: half}}\n"
    order = [(f.severity, f.line) for f in checked(text).findings if f.code != "P230"]
    assert order == [("error", 4), ("error", 4), ("warning", 3), ("warning", 3)]


def test_every_field_has_a_value_and_an_origin(checked: Any) -> None:
    rows = checked(
        "model: Qwen/Qwen3-0.6B\nnodes:\n  selector: {example.com/gpu.product: l4}\n",
        "decode.num_replicas=2",
        DIPTYCH_PREFILL__CORES="1",
    ).rows()
    values = {field: (value, origin) for field, value, origin in rows}
    assert values["model.source"] == ("Qwen/Qwen3-0.6B", "document line 1")
    assert values["nodes.selector.example.com/gpu.product"] == ("l4", "document line 3")
    assert values["decode.num_replicas"] == (2, "--set")
    assert values["prefill.cores"] == (1, "environment DIPTYCH_PREFILL__CORES")
    assert values["topology"] == ("split", "default")
    json.dumps([value for _, value, _ in rows])


def test_a_secret_that_should_not_be_there_is_not_shown(checked: Any) -> None:
    report = checked(
        "engine_kwargs: {hf_token: hf_abcdefghijklmnopqrstuvwxyz, additional_config: {a: {api_key: 'x'}}, seed: 1}\n"
    )
    assert {f.code for f in report.findings if f.severity == "error"} == {"A701"}
    text = json.dumps(report.as_json(show=True))
    assert "hf_abc" not in text
    values = {field: value for field, value, _ in report.rows()}
    assert values["engine_kwargs.additional_config"] == "(a secret)"
    assert values["engine_kwargs.seed"] == 1


def test_json_has_the_documented_keys(checked: Any) -> None:
    shape = checked("on: eks\nmodel: Qwen/Qwen3-8B\nnodes: {market: spot}\n").as_json()
    assert set(shape) == {"ok", "findings", "left_out", "budget", "link"}
    assert shape["ok"] is True
    assert all(set(finding) == KEYS for finding in shape["findings"])
    phase = shape["budget"]["phases"][0]
    assert set(phase) == {
        *("phase", "device", "total_bytes", "requested_bytes", "weights_bytes", "activations_bytes"),
        *("outside_torch_bytes", "cuda_graphs_bytes", "kv_cache_bytes", "kv_cache_tokens", "max_model_len"),
        *("sequences", "fits", "notes"),
    }
    assert set(shape["budget"]["kv_transfer"]) == {"tokens", "bytes", "link", "gbps", "at_least_s"}
    parts = ("weights", "activations", "outside_torch", "cuda_graphs", "kv_cache")
    assert sum(phase[f"{part}_bytes"] for part in parts) == phase["requested_bytes"]
    assert json.loads(json.dumps(shape)) == shape


@pytest.mark.parametrize("text", ["on: eks\n\tmodel: a/b\n", "on: eks\nmodel: [a\n", "!!unknown x\n"])
def test_of_a_text_that_can_not_be_read_nothing_is_sized(checked: Any, text: str) -> None:
    """The default document is not what was meant."""
    report = checked(text)
    assert [f.code for f in report.findings] == ["S102"]
    assert (report.subject, report.memory, report.transfer) == (None, (), None)
    assert report.as_json()["budget"] is None


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('{"applications": [{"import_path": "a:b"}]}\n', "a configuration of Ray Serve"),
        ("proxy_location: HeadOnly\napplications: []\n", "a configuration of Ray Serve"),
        ("{applications: []}\n", "a configuration of Ray Serve"),
        ('{"apiVersion": "ray.io/v1", "kind": "RayService"}\n', "a Kubernetes manifest"),
    ],
)
def test_another_kind_of_file_is_told_as_such(checked: Any, text: str, kind: str) -> None:
    [found] = checked(text).findings
    assert found.code == "S101"
    assert kind in found.what
    assert "--from" in found.do


def test_a_dash_is_no_file() -> None:
    [found] = check_file(Path("-"), offline=True, environ={}).findings
    assert found.code == "S101"
    assert "not from standard input" in found.what


def linked(report: Report) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in report.as_json()["link"]}


def test_the_links_settings_are_told_with_where_they_are_from_and_why(checked: Any) -> None:
    link = linked(
        checked(
            f"on: eks\nmodel: {PINNED}\nengine_kwargs: {{block_size: 32}}\n"
            "kv_transfer: {kv_connector_extra_config: {num_threads: 8}}\n"
        )
    )
    assert link["block_size"] == {
        "name": "block_size",
        "value": 32,
        "from": "document",
        "reason": "the document says so",
    }
    assert (link["num_threads"]["value"], link["num_threads"]["from"]) == (8, "document")
    assert (link["kv_transfer.backend"]["value"], link["kv_transfer.backend"]["from"]) == (
        "LIBFABRIC",
        "diptych",
    )
    assert "EFA" in link["kv_transfer.backend"]["reason"]
    assert link["VLLM_KV_CACHE_LAYOUT"]["value"] == "HND"
    assert link["push or pull"]["value"] == "pull"


def test_what_vllm_keeps_is_told_too(checked: Any) -> None:
    link = linked(checked("model: Qwen/Qwen3-8B\n"))
    assert (link["block_size"]["value"], link["block_size"]["from"]) == ("vLLM's own", "vllm")
    assert (link["num_threads"]["value"], link["num_threads"]["from"]) == ("4", "vllm")


def test_a_phases_own_setting_is_told_with_its_phase(checked: Any) -> None:
    text = f"on: eks\nmodel: {PINNED}\nprefill: {{engine_kwargs: {{block_size: 32}}}}\n"
    assert linked(checked(text))["block_size"]["value"] == "prefill: 32"
    both = text + "decode: {engine_kwargs: {block_size: 64}}\n"
    assert linked(checked(both))["block_size"]["value"] == "prefill: 32, decode: 64"


def test_the_backend_that_the_document_names_is_its_own(checked: Any) -> None:
    link = linked(checked(f"on: eks\nmodel: {PINNED}\nkv_transfer: {{backend: UCX}}\n"))
    assert (link["kv_transfer.backend"]["value"], link["kv_transfer.backend"]["from"]) == ("UCX", "document")


def test_one_engine_for_both_phases_has_no_link(checked: Any) -> None:
    assert checked("topology: aggregated\n").as_json()["link"] == []
