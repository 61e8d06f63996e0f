"""The probe of the real service: what both engines tell of themselves, and what their KV transfers carried."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from engines.service import Service
from engines.test_kv_transfer import BLOCK_TOKENS, BYTES_PER_TOKEN

pytestmark = pytest.mark.engines

SIZES = [BLOCK_TOKENS - 1, BLOCK_TOKENS, BLOCK_TOKENS + 1, 1000]
PROBE = "/diptych/v1/probe"


def probed(service: Service, *, key: str | None = None, **body: Any) -> httpx.Response:
    with service.client(key=key or service.admin_key) as client:
        return client.post(PROBE, json=body or None)


def mapped(pid: int) -> str:
    return Path(f"/proc/{pid}/maps").read_text()


def test_the_probe_carries_prompts_of_all_sizes_and_says_over_what(service: Service) -> None:
    answer = probed(service)
    assert answer.status_code == 200, answer.text
    told = answer.json()

    assert (told["asked"]["backend"], told["asked"]["provider"], told["asked"]["device"]) == (
        "UCX",
        None,
        "cpu",
    )
    assert (told["block_tokens"], told["recurrent"], told["model"]) == (BLOCK_TOKENS, False, service.model)
    assert told["problems"] == []
    (pair,) = told["pairs"]
    assert [transfer["tokens"] for transfer in pair["transfers"]] == SIZES
    for transfer in pair["transfers"]:
        blocks = -(-transfer["tokens"] // BLOCK_TOKENS)
        assert (transfer["ok"], transfer["path"]) == (True, "remote")
        assert transfer["bytes"] == blocks * BLOCK_TOKENS * BYTES_PER_TOKEN
        assert transfer["ms"] > 0
        assert transfer["descriptors"] > 0
    assert pair["loopback_bytes_per_s"] > 1e7
    assert pair["memory_bytes_per_s"] > 1e8


def test_each_worker_tells_what_its_own_process_shows(service: Service) -> None:
    (pair,) = probed(service, tokens=[17]).json()["pairs"]
    for phase, signals in pair["after"].items():
        engine = service.engine(phase)
        (worker,) = signals["workers"]
        assert (signals["phase"], signals["engine_pid"], worker["pid"]) == (phase, engine.pid, engine.pid)
        assert (signals["host"], signals["pod"], signals["asked"]["backends"]) == ("127.0.0.1", None, ["UCX"])
        assert worker["backends"] == ["UCX"]
        assert "libplugin_UCX.so" in worker["libraries"]
        assert "libplugin_UCX.so" in mapped(engine.pid)
        assert "libplugin_LIBFABRIC.so" not in worker["libraries"]
        assert (worker["devices"], worker["rails"], worker["warnings"]) == ([], None, [])
        listens = {f"{each.laddr.ip}:{each.laddr.port}" for each in engine.net_connections("tcp")}
        assert worker["side_channel"] in listens
        assert {"net:lo"} <= worker["device_counters"].keys()


def test_decode_counts_what_the_probe_sent(service: Service) -> None:
    (pair,) = probed(service, tokens=[40], repeat=3).json()["pairs"]
    before, after = (pair[moment]["decode"]["counters"] for moment in ("before", "after"))
    risen = {name: after[name] - before[name] for name in after}
    assert (risen["external_kv_tokens"], risen["kv_transfers"]) == (120, 3)
    assert risen["kv_transfer_bytes"] == sum(transfer["bytes"] for transfer in pair["transfers"])


def test_the_service_says_that_its_transport_is_proven(service: Service) -> None:
    with service.client(key=service.admin_key) as client:
        readiness = client.get("/diptych/v1/status").json()["readiness"]
        metrics = client.get("/metrics").text
    assert readiness["state"] == "ready"
    assert readiness["transport"]["state"] == readiness["pairs"][0]["transport"]["state"] == "proven"
    assert readiness["transport"]["says"].startswith("UCX was asked for, and carried the KV cache")
    assert 'diptych_proof_ok{prefill_replica="' in metrics
    assert "diptych_transport_contradicted 0.0" in metrics


@pytest.mark.parametrize("body", [{"tokens": []}, {"tokens": ["x"]}, {"repeat": 21}, {"sizes": [1]}])
def test_what_can_not_be_probed_is_refused(service: Service, body: dict[str, Any]) -> None:
    answer = probed(service, **body)
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")


def test_the_probe_is_for_admins(service: Service) -> None:
    assert probed(service, key=service.key).status_code == 403
    assert probed(service, key="dk-wrong").status_code == 401
