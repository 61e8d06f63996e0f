"""`diptych verify` on the real service: everything holds, by what the engines themselves tell."""

import json
import threading
from pathlib import Path

import pytest

from engines.service import NAME, PHASES, Service, kill, seconds_until

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


@pytest.mark.long
def test_with_prefill_killed_the_split_fails_by_name_and_holds_again_when_prefill_is_back(
    service: Service,
) -> None:
    engine = service.engine("prefill")
    (replica,) = service.phases()["prefill"]
    kill(engine)
    seconds_until(lambda: not service.status()["ready"], 15.0)
    done = service.run("verify", "--name", NAME, "--json", timeout_s=180)
    report = json.loads(done.stdout)
    states = {proof["name"]: proof["state"] for proof in report["proofs"]}
    assert (done.returncode, states["split"], states["transport"]) == (1, "fails", "skipped"), report
    says = report["proofs"][0]["says"]
    assert says.startswith("Nothing was split: ")
    assert "sees no prefill replica that is ready" in says
    assert "contradicts" not in {one["verdict"] for one in report["proofs"][4]["evidence"]}, report

    seconds_until(lambda: bool(service.status()["ready"]), 90.0, every_s=1.0)
    assert service.phases()["prefill"][0]["replica"] != replica["replica"]
    again = service.run("verify", "--name", NAME, "--json", timeout_s=180)
    assert again.returncode == 0, again.stdout + again.stderr
