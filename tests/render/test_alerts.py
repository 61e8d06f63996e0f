"""The alerts: what each says, where each makes sense, and that each fires when it is due and only then."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from diptych.render import monitoring
from diptych.render.alerts import alerts
from diptych.spec import Document

PROMTOOL = shutil.which("promtool")
SERVICE = 'namespace="inference",diptych_service="qwen"'


def document(**fields: Any) -> Document:
    return Document.model_validate(
        {
            "on": "eks",
            "name": "qwen",
            "model": "Qwen/Qwen3-8B",
            "kubernetes": {"namespace": "inference"},
            **fields,
        }
    )


def rules(**fields: Any) -> dict[str, dict[str, Any]]:
    (group,) = monitoring.alert_rules(document(**fields))["spec"]["groups"]
    return {rule["alert"]: rule for rule in group["rules"]}


@pytest.mark.parametrize("name", sorted(rules(prefill={"num_replicas": 2})))
def test_every_alert_says_what_is_wrong_and_what_to_do(name: str) -> None:
    rule = rules(prefill={"num_replicas": 2})[name]
    assert rule["labels"] == {"severity": rule["labels"]["severity"], "diptych_service": "qwen"}
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert re.fullmatch(r"\d+m", rule["for"])
    assert rule["annotations"]["summary"].startswith("qwen: ")
    description = rule["annotations"]["description"]
    assert len(description) > 60 and not re.search(r"<\w+>", description)


def test_alerts_are_those_of_the_topology() -> None:
    split, aggregated = set(rules()), set(rules(topology="aggregated"))
    assert {"DiptychPrefillLost", "DiptychDecodeLost", "DiptychKVTransfersFailed"} <= split - aggregated
    assert aggregated - split == {"DiptychAggregatedLost", "DiptychAggregatedNotUp"}
    assert {"DiptychDegraded", "DiptychRecovering"} <= split - aggregated
    assert {"DiptychAnswersDiffer", "DiptychProofFails"} <= split - aggregated
    assert {
        "DiptychErrors",
        "DiptychTTFTHigh",
        "DiptychRefusing",
        "DiptychMetricsMissing",
    } <= split & aggregated


def test_a_phase_that_may_have_no_replicas_is_never_missed() -> None:
    none = {"autoscaling_config": {"min_replicas": 0, "max_replicas": 4}}
    assert not [name for name in rules(prefill=none) if name.startswith("DiptychPrefill")]
    assert "DiptychDecodeLost" in rules(prefill=none)


def test_missing_replicas_are_counted_against_what_the_document_asks_for() -> None:
    made = rules(decode={"num_replicas": 3})
    assert "< 3 " in made["DiptychDecodeReplicasMissing"]["expr"]
    assert "DiptychPrefillReplicasMissing" not in made


def test_the_table_has_no_alert_twice() -> None:
    names = [alert.name for alert in alerts()]
    assert len(set(names)) == len(names)


def healthy(deployment: str, values: str, replica: str = "a") -> tuple[str, str]:
    labels = f'{SERVICE},phase="head",deployment="{deployment}:qwen3-8b",replica="{replica}"'
    return f"ray_serve_deployment_replica_healthy{{{labels}}}", values


def series(name: str, values: str, labels: str = 'phase="decode",pod="d-0"') -> tuple[str, str]:
    return f"{name}{{{SERVICE},{labels}}}", values


def tokens(source: str, values: str) -> tuple[str, str]:
    return series("ray_vllm_prompt_tokens_by_source_total", values, f'phase="decode",source="{source}"')


def ttft(values: str, le: str, phase: str = "prefill") -> tuple[str, str]:
    return series("ray_vllm_time_to_first_token_seconds_bucket", values, f'phase="{phase}",le="{le}"')


def ours(counter: str, values: str, labels: str) -> tuple[str, str]:
    return series(f"ray_diptych_{counter}_total", values, f'phase="decode",{labels}')


def contradicted(values: str, replica: str) -> tuple[str, str]:
    return series("ray_diptych_transport_contradicted", values, f'phase="decode",replica="{replica}"')


def degraded(values: str, replica: str) -> tuple[str, str]:
    return series("ray_diptych_degraded", values, f'phase="decode",replica="{replica}"')


def proven(values: str, proof: str, replica: str = "prefill-1") -> tuple[str, str]:
    labels = f'phase="decode",pod="d-0",proof="{proof}",prefill_replica="{replica}"'
    return series("ray_diptych_proof_ok", values, labels)


HEAD = series("up", "1x400", 'phase="head",pod="h"')
FAILED = "ray_vllm_nixl_num_failed_transfers_total"
EXPIRED = "ray_vllm_nixl_num_kv_expired_reqs_total"
WAITING = "ray_vllm_num_requests_waiting"
USED = "ray_vllm_kv_cache_usage_perc"
REQUESTS = "ray_serve_num_http_requests_total"
FAILURES = "ray_serve_num_http_error_requests_total"

# Alert, what Prometheus has seen (one sample each 30 s: "value x times", "start+step x times", "_" is none, "stale" its
# end), minutes after which it is asked, and whether the alert fires.
SCENARIOS: dict[str, tuple[str, list[tuple[str, str]], int, bool]] = {
    "prefill's only replica turns unhealthy": (
        *("DiptychPrefillLost", [HEAD, healthy("Prefill", "1x40 0x40")]),
        *(23, True),
    ),
    "prefill's only replica disappears": (
        *("DiptychPrefillLost", [HEAD, healthy("Prefill", "1x40 stale")]),
        *(23, True),
    ),
    "one of two prefill replicas disappears": (
        *("DiptychPrefillLost", [HEAD, healthy("Prefill", "1x40 stale"), healthy("Prefill", "1x80", "b")]),
        *(23, False),
    ),
    "prefill has never been up": ("DiptychPrefillLost", [HEAD], 23, False),
    "prefill is loading": ("DiptychPrefillNotUp", [HEAD], 40, False),
    "prefill has been loading for too long": ("DiptychPrefillNotUp", [HEAD], 47, True),
    "nothing is known of prefill, since nobody sees the head": (
        *("DiptychPrefillLost", [healthy("Prefill", "1x40 stale")]),
        *(23, False),
    ),
    "decode's replica turns unhealthy": (
        *("DiptychDecodeLost", [HEAD, healthy("Decode", "1x40 0x40")]),
        *(23, True),
    ),
    "one of two decode replicas is missing": (
        *("DiptychDecodeReplicasMissing", [HEAD, healthy("Decode", "1x80")]),
        *(20, True),
    ),
    "the head is not scraped": ("DiptychMetricsMissing", [healthy("Decode", "1x80")], 12, True),
    "a worker is not scraped": (
        *("DiptychMetricsMissing", [HEAD, series("up", "0x80")]),
        *(12, True),
    ),
    "all pods are scraped": ("DiptychMetricsMissing", [HEAD, series("up", "1x80")], 12, False),
    "prefill is lost to one of two decode replicas": (
        "DiptychDegraded",
        [degraded("0x20 1x80", "a"), degraded("0x80", "b")],
        *(14, True),
    ),
    "the KV cache goes another way than was asked for": (
        "DiptychTransportContradicted",
        [contradicted("0x20 1x80", "a"), contradicted("0x100", "b")],
        30,
        True,
    ),
    "one pair's answers differ": (
        *("DiptychAnswersDiffer", [proven("1x20 0x80", "answers"), proven("1x100", "answers", "prefill-2")]),
        *(14, True),
    ),
    "answers differ in one round": ("DiptychAnswersDiffer", [proven("1x20 0x2 1x80", "answers")], 12, False),
    "answers can't be compared": ("DiptychAnswersDiffer", [proven("1x20 _x80", "answers")], 20, False),
    "decode computes what prefill should have": (
        *("DiptychProofFails", [proven("1x20 0x80", "split"), proven("1x100", "split", "prefill-2")]),
        *(27, True),
    ),
    "a link is slow": ("DiptychProofFails", [proven("0x80", "speed")], 20, True),
    "a link is slow now and then": ("DiptychProofFails", [proven("0x10 1x2 " * 8, "speed")], 40, False),
    "a proof that failed once can be told neither before nor after": (
        *("DiptychProofFails", [proven("_x20 0x2 stale _x80", "idle")]),
        *(18, False),
    ),
    "KV cache leaks between others' requests": (
        *("DiptychProofFails", [proven("0x2 stale _x3 " * 10, "idle")]),
        *(25, True),
    ),
    "KV cache leaks": ("DiptychProofFails", [proven("1x10 0x80", "idle")], 25, True),
    "a transport that is contradicted has an alert of its own": (
        *("DiptychProofFails", [proven("0x80", "transport")]),
        *(30, False),
    ),
    "prefill is lost for a moment": ("DiptychDegraded", [degraded("0x20 1x2 0x80", "a")], 12, False),
    "a tenth of the prompts are recovered": (
        "DiptychRecovering",
        [ours("recovered", "0+10x80", 'reason="prefill"'), ours("placements", "0+100x80", 'path="remote"')],
        *(20, True),
    ),
    "a prompt is recovered now and then": (
        "DiptychRecovering",
        [ours("recovered", "0+1x80", 'reason="prefill"'), ours("placements", "0+100x80", 'path="remote"')],
        *(20, False),
    ),
    "what runs on decode on purpose does not hide what fails": (
        "DiptychRecovering",
        [
            ours("recovered", "0+10x80", 'reason="kv_transfer"'),
            ours("placements", "0+100x80", 'path="remote"'),
            ours("placements", "0+9000x80", 'path="local-short"'),
        ],
        *(20, True),
    ),
    "the queues are full": (
        "DiptychRefusing",
        [
            ours("refused", "0+10x80", 'by="orchestrator",status="429"'),
            ours("requests", "0+100x80", 'path="remote",status="200"'),
            ours("requests", "0+10x80", 'path="none",status="429"'),
        ],
        *(20, True),
    ),
    "many have a wrong key, or ask for what can never fit": (
        "DiptychRefusing",
        [
            ours("refused", "0+90x80", 'by="access",status="401"'),
            ours("refused", "0+90x80", 'by="orchestrator",status="400"'),
            ours("requests", "0+100x80", 'path="remote",status="200"'),
        ],
        *(20, False),
    ),
    "a KV transfer took too long": (
        "DiptychKVTransfersFailed",
        [ours("kv_transfers_failed", "_x40 1x80", 'pod="d-0"')],
        *(25, True),
    ),
    "the first failed transfer of a counter that did not exist": (
        *("DiptychKVTransfersFailed", [series(FAILED, "_x40 1x80")]),
        *(25, True),
    ),
    "a failed transfer half an hour ago": (
        *("DiptychKVTransfersFailed", [series(FAILED, "_x10 1x120")]),
        *(35, False),
    ),
    "another failed transfer": (
        *("DiptychKVTransfersFailed", [series(FAILED, "3x40 4x80")]),
        *(25, True),
    ),
    "a failed notification": (
        *("DiptychKVTransfersFailed", [series("ray_vllm_nixl_num_failed_notifications_total", "_x40 1x80")]),
        *(25, True),
    ),
    "a lease expires": (
        *("DiptychKVLeasesExpired", [series(EXPIRED, "_x40 1x80", 'phase="prefill"')]),
        *(25, True),
    ),
    "decode computes every prompt": (
        *("DiptychDecodeComputesPrompts", [tokens("local_compute", "0+100x200")]),
        *(25, True),
    ),
    "KV cache arrives": (
        "DiptychDecodeComputesPrompts",
        [tokens("local_compute", "0+1x200"), tokens("external_kv_transfer", "0+100x200")],
        *(25, False),
    ),
    "KV cache stops arriving": (
        "DiptychDecodeComputesPrompts",
        [tokens("local_compute", "0+100x200"), tokens("external_kv_transfer", "0+100x20 2000x180")],
        *(40, True),
    ),
    "nobody asks": (
        *("DiptychDecodeComputesPrompts", [tokens("local_compute", "5x200")]),
        *(40, False),
    ),
    "the KV cache is full": ("DiptychKVCacheFull", [series(USED, "0.99x80")], 20, True),
    "the KV cache is full for a moment": (
        *("DiptychKVCacheFull", [series(USED, "0.5x20 1x4 0.5x60")]),
        *(15, False),
    ),
    "the queue grows": ("DiptychQueueGrowing", [series(WAITING, "1+1x80")], 20, True),
    "the queue is long and gets shorter": ("DiptychQueueGrowing", [series(WAITING, "200-1x80")], 20, False),
    "the queue empties now and then": (
        *(
            "DiptychQueueGrowing",
            [series(WAITING, "0 5 9 14 0 6 12 18 0 9 16 25 0 9 20 30 0 9 30 50 0 9 60 70")],
        ),
        *(11, False),
    ),
    "first tokens take 8 s": (
        "DiptychTTFTHigh",
        [
            ttft("0x80", "5.0"),
            ttft("0+10x80", "10.0"),
            ttft("0+10x80", "+Inf"),
            ttft("3x80", "+Inf", "decode"),
        ],
        *(20, True),
    ),
    "first tokens take 0.1 s": (
        *("DiptychTTFTHigh", [ttft("0+10x80", "0.1"), ttft("0+10x80", "+Inf")]),
        *(20, False),
    ),
    "a tenth of the requests fail": (
        "DiptychErrors",
        [series(REQUESTS, "0+100x80"), series(FAILURES, "0+10x80", 'error_code="500"')],
        *(15, True),
    ),
    "clients send nonsense": (
        "DiptychErrors",
        [series(REQUESTS, "0+100x80"), series(FAILURES, "0+50x80", 'error_code="400"')],
        *(15, False),
    ),
}


@pytest.mark.skipif(PROMTOOL is None, reason="promtool (of Prometheus) is not installed")
def test_alerts_fire_when_they_should_and_only_then(tmp_path: Path) -> None:
    made = monitoring.alert_rules(document(decode={"num_replicas": 2}))["spec"]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(made))
    tests = [
        {
            "name": name,
            "interval": "30s",
            "input_series": [{"series": each, "values": values} for each, values in seen],
            "promql_expr_test": [
                {
                    "expr": f'count(ALERTS{{alertname="{alert}",alertstate="firing"}}) > bool 0',
                    "eval_time": f"{minutes}m",
                    "exp_samples": [{"labels": "{}", "value": 1}] if fires else [],
                }
            ],
        }
        for name, (alert, seen, minutes, fires) in SCENARIOS.items()
    ]
    (tmp_path / "tests.yaml").write_text(
        yaml.safe_dump({"rule_files": ["rules.yaml"], "evaluation_interval": "30s", "tests": tests})
    )
    assert PROMTOOL is not None
    ran = subprocess.run(
        [PROMTOOL, "test", "rules", "tests.yaml"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_every_alert_has_a_scenario() -> None:
    named = {alert for alert, _, _, fires in SCENARIOS.values() if fires}
    of_each_phase = {"DiptychDecodeNotUp"}
    assert set(rules(decode={"num_replicas": 2})) - named == of_each_phase
