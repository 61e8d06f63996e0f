"""PodMonitor, board, and every query: names that Ray and vLLM export, PromQL that parses, one service at a time."""

import json
import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from diptych.render import monitoring, pods
from diptych.spec import Document
from render.exported_metrics import exported_by_diptych, exported_by_ray, exported_by_vllm, source_of

FROM_THE_POD_MONITOR = {"up"}
SERIES = re.compile(r"\b([a-z_][a-z0-9_]*)\{")


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


def board(**fields: Any) -> dict[str, Any]:
    (text,) = monitoring.dashboard(document(**fields))["data"].values()
    made: dict[str, Any] = json.loads(text)
    return made


def board_queries() -> list[str]:
    targets = [target for panel in board()["panels"] for target in panel.get("targets", [])]
    return [target["expr"] for target in targets]


def queries() -> list[str]:
    many = {"prefill": {"num_replicas": 2}, "decode": {"num_replicas": 3}}
    split = rules(**many).values()
    aggregated = rules(topology="aggregated", decode={"num_replicas": 2}).values()
    return [rule["expr"] for rule in [*split, *aggregated]] + board_queries()


def used(prefix: str) -> set[str]:
    names = {name for query in queries() for name in SERIES.findall(query)}
    return {name for name in names if name.startswith(prefix)}


def test_every_series_is_one_whose_origin_is_tested() -> None:
    names = {name for query in queries() for name in SERIES.findall(query)}
    origins = ("ray_diptych_", "ray_vllm_", "ray_serve_", "ray_node_")
    assert names == {name for prefix in origins for name in used(prefix)} | FROM_THE_POD_MONITOR


def test_our_replicas_export_every_series_of_our_name_with_the_labels_that_are_asked_for() -> None:
    exported = exported_by_diptych(Path(pods.__file__).parents[1])
    assert used("ray_diptych_")
    assert used("ray_diptych_") - set(exported) == set()
    for query in queries():
        for name, selector in re.findall(r"(ray_diptych_\w+)\{([^}]*)\}", query):
            asked = set(re.findall(r"(\w+)=", selector)) - {"namespace", "diptych_service", "phase"}
            assert asked <= exported[name], query


def test_our_own_series_are_kept_together_by_labels_that_exist() -> None:
    exported = exported_by_diptych(Path(pods.__file__).parents[1])
    for query in queries():
        for by, name in re.findall(r"by \(([^)]*)\) \((?:rate\()?(ray_diptych_\w+)", query):
            given = exported[name] | {"phase", "pod", "le"}
            assert {each.strip() for each in by.split(",")} <= given, query


def test_vllm_exports_every_series_of_its_name() -> None:
    source = source_of("vllm")
    if source is None:
        pytest.skip("vllm is not installed")
    exported = exported_by_vllm(source)
    assert used("ray_vllm_") - exported == set()
    nixl = {name for name in exported if name.startswith("ray_vllm_nixl_num_") and name.endswith("_total")}
    assert nixl <= used("ray_vllm_nixl_")  # every way in which a KV transfer can fail is watched


def test_vllm_knows_the_sources_of_prompt_tokens() -> None:
    source = source_of("vllm")
    if source is None:
        pytest.skip("vllm is not installed")
    text = (source / "v1/metrics/stats.py").read_text()
    sources = {name for query in queries() for name in re.findall(r'source="(\w+)"', query)}
    assert sources == {"external_kv_transfer", "local_compute"}
    assert all(f'"{name}"' in text for name in sources)


@pytest.mark.parametrize("prefix", ["ray_serve_", "ray_node_"])
def test_ray_exports_every_series_of_its_name(prefix: str) -> None:
    source = source_of("ray")
    if source is None:
        pytest.skip("ray is not installed")
    assert used(prefix)
    assert used(prefix) - exported_by_ray(source) == set()


def test_deployments_have_the_names_that_our_builder_gives_them() -> None:
    builder = Path(pods.__file__).parents[1] / "serving/builder.py"
    prefixes = set(re.findall(r'"([A-Z][a-z]+):"', builder.read_text()))
    patterns = {
        name for query in queries() for name in re.findall(r'deployment=~"\(?([\w|]+)\)?:\.\*"', query)
    }
    assert prefixes == {"Prefill", "Decode", "Aggregated"}
    assert {part for pattern in patterns for part in pattern.split("|")} == prefixes


def test_every_query_is_about_one_service() -> None:
    for query in queries():
        for selector in re.findall(r"\{([^}]*)\}", query):
            assert "namespace=" in selector and "diptych_service=" in selector, query
        assert not re.search(r"@|<\w+>", query), query
        assert query.count("(") == query.count(")"), query


def test_every_query_is_promql() -> None:
    parser = pytest.importorskip("promql_parser")
    for query in queries():
        parser.parse(query.replace("$__rate_interval", "5m"))


def test_one_pod_monitor_takes_head_and_workers_and_tells_their_phases() -> None:
    (monitor,) = monitoring.pod_monitors(document())
    assert (monitor["apiVersion"], monitor["kind"]) == ("monitoring.coreos.com/v1", "PodMonitor")
    selected = monitor["spec"]["selector"]["matchLabels"]
    assert selected == {"diptych.dev/service": "qwen", "ray.io/is-ray-node": "yes"}
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    ports = {port["name"]: port["containerPort"] for port in _head_ports()}
    assert ports[endpoint["port"]] == 8080
    found = [
        relabeled(endpoint["relabelings"], labels)
        for labels in (
            {"ray_io_node_type": "head", "diptych_dev_service": "qwen"},
            {"ray_io_node_type": "worker", "diptych_dev_phase": "decode", "diptych_dev_service": "qwen"},
        )
    ]
    assert found == [
        {"phase": "head", "diptych_service": "qwen"},
        {"phase": "decode", "diptych_service": "qwen"},
    ]


def _head_ports() -> list[dict[str, Any]]:
    ports: list[dict[str, Any]] = pods.head_pod(document())["spec"]["containers"][0]["ports"]
    return ports


def relabeled(steps: list[dict[str, Any]], pod_labels: dict[str, str]) -> dict[str, str]:
    """What Prometheus makes of a pod's labels."""
    found: dict[str, str] = {}
    for step in steps:
        (source,) = step["sourceLabels"]
        value = pod_labels.get(source.removeprefix("__meta_kubernetes_pod_label_"), "")
        if match := re.fullmatch(step["regex"], value):
            found[step["targetLabel"]] = match.expand(step["replacement"].replace("$", "\\"))
    return found


def test_no_series_that_is_used_is_dropped_at_the_scrape() -> None:
    (endpoint,) = monitoring.pod_monitors(document())[0]["spec"]["podMetricsEndpoints"]
    (drop,) = endpoint["metricRelabelings"]
    assert drop["action"] == "drop"
    names = used("ray_")
    assert names and not [name for name in names if re.fullmatch(drop["regex"], name)]
    assert re.fullmatch(drop["regex"], "ray_grpc_server_req_handling_total")


def test_the_board_is_a_config_map_that_grafanas_sidecar_takes() -> None:
    made = monitoring.dashboard(document())
    kubernetes_validate.validate(made, "1.35", strict=True)
    assert made["metadata"]["labels"]["grafana_dashboard"] == "1"
    (file,) = made["data"]
    assert file.endswith(".json")
    assert len(made["data"][file]) < 1_000_000  # a ConfigMap holds 1 MiB


def test_boards_of_two_services_do_not_replace_each_other() -> None:
    first, second = board(), board(kubernetes={"namespace": "other"})
    assert first["uid"] != second["uid"] and len(first["uid"]) <= 40
    assert first["panels"] == second["panels"]


def test_the_board_is_about_the_service_that_is_chosen_in_it() -> None:
    variables = {each["name"]: each for each in board()["templating"]["list"]}
    assert set(variables) == {"datasource", "namespace", "diptych_service"}
    assert variables["namespace"]["current"]["value"] == "inference"
    assert variables["diptych_service"]["current"]["value"] == "qwen"
    for query in board_queries():
        assert 'namespace="$namespace",diptych_service="$diptych_service"' in query


def test_panels_fill_the_board_without_overlapping() -> None:
    taken: set[tuple[int, int]] = set()
    ids = [panel["id"] for panel in board()["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in board()["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24 and not cells & taken, panel["title"]
        taken |= cells


@pytest.mark.parametrize(
    "wanted",
    [
        "ray_vllm_time_to_first_token_seconds_bucket",
        "ray_vllm_inter_token_latency_seconds_bucket",
        "ray_vllm_request_time_per_output_token_seconds_bucket",
        "ray_vllm_prompt_tokens_by_source_total",
        "ray_vllm_nixl_bytes_transferred_sum",
        "ray_vllm_nixl_xfer_time_seconds_bucket",
        "ray_vllm_nixl_num_failed_transfers_total",
        "ray_vllm_kv_cache_usage_perc",
        "ray_vllm_num_requests_waiting",
        "ray_serve_num_http_requests_total",
        "ray_node_gpus_utilization",
        "ray_diptych_requests_total",
        "ray_diptych_time_to_first_token_seconds_bucket",
        "ray_diptych_degraded",
        "ray_diptych_waiting_tokens",
        "ray_diptych_recovered_total",
        "ray_diptych_refused_total",
        "ray_diptych_proof_ok",
        "ray_diptych_proof_speed_ratio",
    ],
)
def test_the_board_shows(wanted: str) -> None:
    assert any(wanted in SERIES.findall(query) for query in board_queries())
