"""Hosts on one machine: network namespaces on a switch of their own, with cables that a test can pull.

A host has its own network, process ids, shared memory and mounts, so that nothing but the network leads from one to
another: UCX takes shared memory wherever it can. The switch is a namespace too, away from this machine's firewall.
Whatever ends the test, a janitor, which waits for that, ends the hosts' processes and removes the namespaces.
"""

import os
import random
import secrets
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from typing import IO

import psutil
import pytest

_TOOLS = ("ip", "unshare", "nsenter", "mount")
_SHARED_MEMORY = "2g"
_CLEAN_UP_S = 30.0
_JANITOR = """
trap '' HUP INT TERM
read -r _
for round in 1 2 3 4 5 6 7 8 9 10; do
    pids=$(for each in {spaces}; do ip netns pids "$each"; done)
    [ -n "$pids" ] || break
    kill -KILL $pids
    sleep 0.2
done
for each in {spaces}; do ip netns del "$each"; done
ip link del {outside}
"""


class Network:
    """Hosts by their names, and this machine, on one switch; until `close`.

    Skips the test where there can be no such thing.
    """

    def __init__(self, hosts: Sequence[str]) -> None:
        _require_tools()
        run = f"dt{secrets.token_hex(3)}"
        subnet = f"198.18.{random.randrange(256)}"  # a range for tests of networks: nobody is there
        self._outside, self._switch = run, f"{run}-switch"
        self._spaces = {host: f"{run}-{host}" for host in hosts}
        self.addresses = {host: f"{subnet}.{number}" for number, host in enumerate(hosts, start=11)}
        spaces = " ".join([*self._spaces.values(), self._switch])
        self._janitor = subprocess.Popen(
            ["sh", "-c", _JANITOR.format(spaces=spaces, outside=run)],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            self._make(subnet)
        except subprocess.CalledProcessError as error:
            self.close()
            pytest.skip(f"network namespaces can't be made here: {error.stderr.strip()}")

    def _make(self, subnet: str) -> None:
        _ip("netns", "add", self._switch)
        _ip("-n", self._switch, "link", "add", "switch", "type", "bridge")
        _ip("-n", self._switch, "link", "set", "switch", "up")
        self._plug("outside", self._outside, str(os.getpid()))
        _ip("address", "add", f"{subnet}.1/24", "dev", self._outside)
        _ip("link", "set", self._outside, "up")
        for host, space in self._spaces.items():
            _ip("netns", "add", space)
            self._plug(host, "eth0", space)
            _ip("-n", space, "address", "add", f"{self.addresses[host]}/24", "dev", "eth0")
            for interface in ("eth0", "lo"):
                _ip("-n", space, "link", "set", interface, "up")

    def _plug(self, port: str, interface: str, space: str) -> None:
        """A cable from a port of the switch to an interface elsewhere."""
        cable = ("link", "add", port, "type", "veth", "peer", "name", interface, "netns", space)
        _ip("-n", self._switch, *cable)
        _ip("-n", self._switch, "link", "set", port, "master", "switch", "up")

    def cut(self, host: str) -> None:
        """Pull a host's cable."""
        _ip("-n", self._switch, "link", "set", host, "down")

    def mend(self, host: str) -> None:
        """Plug it in again."""
        _ip("-n", self._switch, "link", "set", host, "up")

    def close(self) -> None:
        """End what runs on the hosts and remove them."""
        assert self._janitor.stdin is not None
        self._janitor.stdin.close()
        self._janitor.wait(_CLEAN_UP_S)

    def boot(
        self, host: str, command: Sequence[str], environment: Mapping[str, str], output: IO[bytes]
    ) -> "Host":
        """Start a host's first process; with it ends the host."""
        script = f'mount -t tmpfs -o size={_SHARED_MEMORY} tmpfs /dev/shm && hostname "$0" && exec "$@"'
        apart = ("--pid", "--ipc", "--uts", "--fork", "--kill-child", "--mount-proc")
        enter = ("ip", "netns", "exec", self._spaces[host], "unshare", *apart)
        started = subprocess.Popen(
            [*enter, "sh", "-c", script, host, *command],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        return Host(started)


class Host:
    """One that was started."""

    def __init__(self, started: "subprocess.Popen[bytes]") -> None:
        self._started = started

    @property
    def pid(self) -> int:
        """Of what keeps it, as this machine counts."""
        return self._started.pid

    @property
    def is_up(self) -> bool:
        """Whether its first process lives."""
        return self._started.poll() is None

    def command(self, *words: str) -> list[str]:
        """A command to be run there, as this machine runs it."""
        first = psutil.Process(self.pid).children()[0]
        return ["nsenter", "--target", str(first.pid), "--all", "--", *words]

    def kill(self, pid: int) -> None:
        """Kill one of its processes, by the number that it has there."""
        subprocess.run(self.command("kill", "-KILL", str(pid)), check=True, timeout=10)


def _require_tools() -> None:
    if os.geteuid() != 0:
        pytest.skip("two hosts on one machine need root, for network namespaces")
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"two hosts on one machine need {' and '.join(missing)}, from iproute2 and util-linux")


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=10)
