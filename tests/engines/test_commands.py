"""The commands beside a service that is up: what they print, and in which shape."""

import json
import shlex
import subprocess
import sys
import time

import pytest

from engines.service import NAME, PHASES, Service

pytestmark = pytest.mark.engines


def test_status_json_has_the_documented_shape(service: Service) -> None:
    done = service.run("status", "--name", NAME, "--json")
    assert done.returncode == 0
    status = json.loads(done.stdout)
    assert status["name"] == NAME
    assert status["place"] == "local"
    assert status["endpoint"] == service.url
    assert status["ready"] is True
    assert status["blocker"] is None
    assert set(status["phases"]) == set(PHASES)
    for phase in PHASES:
        told = status["phases"][phase]
        assert (told["replicas"], told["ready"], told["model"]) == (1, 1, service.model)
        assert told["pid"] == service.engine(phase).pid
        assert told["memory_bytes"] > 2**29
        assert told["requests"] >= 1
    assert status["memory_bytes"] > sum(status["phases"][phase]["memory_bytes"] for phase in PHASES)
    assert abs(status["processes"] - len(service.processes())) <= 1


def test_status_for_people_names_phases_memory_and_requests(service: Service) -> None:
    shown = service.run("status").stdout
    assert "ready" in shown
    for word in (*PHASES, "GiB", service.url, service.model):
        assert word in shown


def test_chat_json_has_the_documented_shape(service: Service) -> None:
    done = service.run("chat", "--name", NAME, "--json", "--max-tokens", "12", "Name a colour.")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["text"]
    assert answer["usage"]["completion_tokens"] <= 12
    timing = answer["timing"]
    assert set(timing) == {"ttft_ms", "prefill_ms", "kv_transfer_ms", "kv_transfer_bytes", "tokens_per_s"}
    assert 0 < timing["prefill_ms"] < timing["ttft_ms"]
    assert timing["kv_transfer_bytes"] > 0
    assert timing["kv_transfer_ms"] > 0
    assert timing["tokens_per_s"] > 0
    assert answer["path"] == "remote"
    assert answer["computed"] == []


def test_chat_prints_the_answer_and_below_it_what_it_cost(service: Service) -> None:
    done = service.run("chat", "--max-tokens", "12", "--temperature", "0", "Name a colour.")
    assert done.returncode == 0
    assert done.stdout.strip()
    for word in ("prompt tokens", "prefill", "KV transfer", "MiB in", "first token", "tokens/s"):
        assert word in done.stderr


@pytest.mark.parametrize("phase", PHASES)
def test_logs_show_each_engines_own_lines(service: Service, phase: str) -> None:
    done = service.run("logs", phase, "--lines", "5000")
    assert done.returncode == 0
    engine, other = service.engine(phase), service.engine(PHASES[1 - PHASES.index(phase)])
    assert f"(EngineCore pid={engine.pid})" in done.stdout
    assert f"pid={other.pid})" not in done.stdout


def test_logs_of_decode_have_one_line_for_each_request_and_none_of_its_text(service: Service) -> None:
    answer = service.complete("A word that nobody says: xylophonist", max_tokens=2)
    shown = service.run("logs", "decode", "--name", NAME, "--lines", "5000").stdout
    lines = [line for line in shown.splitlines() if '"route":"/v1/completions"' in line]
    assert f'"prefill_replica":"{answer["diptych"]["prefill_replica"]}"' in lines[-1]
    assert "xylophonist" not in shown


def test_logs_without_a_phase_name_the_phase_of_every_line(service: Service) -> None:
    lines = service.run("logs", "-n", "20").stdout.splitlines()
    assert {line.partition(":")[0] for line in lines} == set(PHASES)


def test_up_again_says_what_is_up_and_leaves_it_alone(service: Service) -> None:
    before = {process.pid for process in service.processes()}
    began = time.monotonic()
    done = service.run("up", "--name", NAME)
    took = time.monotonic() - began
    assert done.returncode == 0
    assert "is up already and was left alone" in done.stdout
    assert service.url in done.stdout
    assert took < 3.0
    assert {process.pid for process in service.processes()} == before


def test_the_printed_curl_and_python_lines_work(service: Service) -> None:
    lines = service.run("up", "--name", NAME).stdout.splitlines()
    first = next(i for i, line in enumerate(lines) if "curl" in line)
    curl = " ".join(line.strip().rstrip("\\") for line in lines[first : first + 3])
    answer = subprocess.run(shlex.split(curl), capture_output=True, text=True, timeout=120, check=True).stdout
    assert json.loads(answer)["choices"][0]["message"]["content"]

    python = next(line.strip() for line in lines if line.strip().startswith("python -c"))
    command = [sys.executable, *shlex.split(python)[1:]]
    assert subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout.strip()
