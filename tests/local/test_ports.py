"""Ports: the usual one, the next one said aloud, one that is held, and those that engines meet on."""

import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from diptych.errors import DocumentError, StartError
from diptych.local import ports
from diptych.local.ports import BLOCK, choose_port, free_ports, holder, is_free


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A server of this very process on a loopback port."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server


def port_of(server: socket.socket) -> int:
    port: int = server.getsockname()[1]
    return port


def test_a_port_that_somebody_listens_on_is_not_free(listener: socket.socket) -> None:
    port = port_of(listener)
    assert not is_free(port)
    listener.close()
    assert is_free(port)


def test_a_port_held_on_every_interface_is_not_free_on_loopback() -> None:
    with socket.socket() as server:
        server.bind(("0.0.0.0", 0))
        server.listen()
        assert not is_free(port_of(server))


def test_the_holder_of_a_port_is_named_with_its_pid(listener: socket.socket) -> None:
    assert re.fullmatch(rf"\S.* \(pid {os.getpid()}\)", holder(port_of(listener)))


def test_a_port_that_was_asked_for_and_is_held_is_an_error_that_names_the_process(
    listener: socket.socket,
) -> None:
    with pytest.raises(DocumentError, match=rf"Port {port_of(listener)} is in use by .*pid {os.getpid()}"):
        choose_port(port_of(listener))


def test_a_port_that_was_asked_for_and_is_free_is_taken_without_a_word(listener: socket.socket) -> None:
    port = port_of(listener)
    listener.close()
    assert choose_port(port) == (port, None)


def test_when_the_usual_port_is_held_the_next_free_one_is_taken_and_said(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = port_of(listener)
    monkeypatch.setattr(ports, "DEFAULT_PORT", usual)
    port, said = choose_port(None)
    assert usual < port < usual + 100
    assert said is not None
    assert f"Port {usual} is in use by" in said
    assert f"pid {os.getpid()}" in said
    assert f"serving on {port}" in said


def test_a_port_that_another_service_is_about_to_take_is_left_to_it() -> None:
    port, said = choose_port(None, taken=frozenset(range(8000, 8003)))
    assert port >= 8003
    assert said == f"Port 8000 is in use by another service of diptych; serving on {port}."


def test_when_no_port_is_free_the_error_says_how_to_name_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "is_free", lambda port: False)
    with pytest.raises(StartError, match="8000 to 8099") as caught:
        choose_port(None)
    assert "--port" in caught.value.hint


def test_engines_meet_on_ports_that_the_kernel_gives_to_nobody() -> None:
    """One of the kernel's own range was taken by Ray in between, and the engine waited for ever."""
    first_of_the_kernels = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    found = free_ports(8)
    assert len({first // BLOCK for first in found}) == 8
    if first_of_the_kernels >= 32768:
        assert all(first + BLOCK <= first_of_the_kernels for first in found)


def test_a_phase_gets_a_whole_block_of_free_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replicas take the ports after the first: one in use further on spoils the block."""
    only_free_block = 20000 + 7 * BLOCK
    taken = {first + BLOCK - 1 for first in range(20000, 32768, BLOCK)} - {only_free_block + BLOCK - 1}
    monkeypatch.setattr(ports, "is_free", lambda port: port not in taken)
    monkeypatch.setattr(ports, "_first_ephemeral_port", lambda: 32768)
    assert free_ports(1) == [only_free_block]
    with pytest.raises(StartError, match="64 ports in a row"):
        free_ports(2)


def test_a_machine_whose_kernel_hands_out_low_ports_gets_some_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_first_ephemeral_port", lambda: 1024)
    assert len(free_ports(2)) == 2
