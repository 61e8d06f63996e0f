"""`diptych verify` on the real service: everything holds, by what the engines themselves tell."""

import json
import threading
from pathlib import Path

import pytest

from engines.service import NAME, PHASES, Service

pytestmark = pytest.mark.engines


def test_all_proofs_hold_of_a_service_that_is_ready(service: Service) -> None:
    done = service.run("verify", "--name", NAME, "--json", timeout_s=120)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert {proof["name"]: proof["state"] for proof in report["proofs"]} == dict.fromkeys(
        ("split", "transport", "speed", "answers", "idle"), "holds"
    )
    evidence = {one["what"]: one for proof in report["proofs"] for one in proof["evidence"]}
    processes = evidence["engine processes"]["value"]
    for phase in PHASES:
        assert f"{phase} {service.engine(phase).pid} on " in processes
        assert evidence[f"backend made by {phase} rank 0"]["value"] == "UCX"
        maps = Path(f"/proc/{service.engine(phase).pid}/maps").read_text()
        assert evidence[f"plugin mapped into {phase} rank 0"]["value"] in maps


def test_it_holds_beside_other_requests_too(service: Service) -> None:
    over = threading.Event()

    def ask() -> None:
        while not over.is_set():
            service.complete("A village by the sea, once upon a time, where", max_tokens=4)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        done = service.run("verify", "--name", NAME, "--json", timeout_s=180)
    finally:
        over.set()
        asking.join()
    report = json.loads(done.stdout)
    states = {proof["name"]: proof["state"] for proof in report["proofs"]}
    assert done.returncode == 0, report
    assert (states["split"], states["transport"], states["answers"]) == ("holds", "holds", "holds")
    assert "other traffic meanwhile" in {one["what"] for one in report["proofs"][0]["evidence"]}
