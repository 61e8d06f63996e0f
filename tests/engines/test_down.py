"""`diptych down` ends exactly what `up` started: looked for in the process table, not asked of diptych."""

import os
import socket
import subprocess
import sys

import pytest

from engines.service import NAME, PORT, Service, leftovers

pytestmark = pytest.mark.engines


def port_is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def test_down_leaves_no_process_no_port_no_file_and_no_key_and_spares_what_is_not_its_own(
    service: Service,
) -> None:
    assert len(service.processes()) > 8
    assert service.ray_directory.is_dir()
    assert not port_is_free(PORT)
    bystander = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"],
        env=os.environ | {"DIPTYCH_SERVICE": "another"},
    )
    try:
        done = service.down()
        assert done.returncode == 0, done.stderr
        assert "none is left" in done.stdout
        assert leftovers(service) == []
        assert port_is_free(PORT)
        assert not service.ray_directory.exists()
        assert list(service.temporary.iterdir()) == []
        assert {path.name for path in service.directory.iterdir()} & {
            "api-key",
            "curl-header",
            "ray-token",
        } == set()
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_what_is_down_is_not_up(stopped: Service) -> None:
    assert stopped.run("status", "--name", NAME).returncode == 3
    assert stopped.run("chat", "--name", NAME, "Hello").returncode == 3
    again = stopped.down()
    assert again.returncode == 3
    assert "Traceback" not in again.stderr
