"""Ports on the loopback interface: which are free, and who holds one that is not."""

import contextlib
import random
import socket
from collections.abc import Collection, Set
from pathlib import Path

import psutil

from diptych.errors import DocumentError, StartError

LOOPBACK = "127.0.0.1"
DEFAULT_PORT = 8000
_TRIES = 100
BLOCK = 64
"""Ports that a phase's replicas may take after its first: one per replica and worker."""

_FIRST_FIXED_PORT = 20000


def is_free(port: int) -> bool:
    """Whether a server could listen on this loopback port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def holder(port: int) -> str:
    """The process that listens on a port, as "NAME (pid N)"; "another process" when it may not be seen."""
    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            listening = (
                connection.status == psutil.CONN_LISTEN and getattr(connection.laddr, "port", None) == port
            )
            if listening and connection.pid:
                return f"{psutil.Process(connection.pid).name()} (pid {connection.pid})"
    return "another process"


def choose_port(asked: int | None, taken: Set[int] = frozenset()) -> tuple[int, str | None]:
    """The port to serve on, and a sentence when it is not the usual one.

    Args:
        asked: the port that the user named; None for 8000 or the next free one.
        taken: ports that are free as yet but spoken for.

    Raises:
        DocumentError: the port that was named is held; the message names the process.
    """
    if asked is not None:
        if not is_free(asked):
            raise DocumentError(
                f"Port {asked} is in use by {holder(asked)}.",
                "Name another port, or none and the next free one is taken.",
            )
        return asked, None
    for port in range(DEFAULT_PORT, DEFAULT_PORT + _TRIES):
        if port not in taken and is_free(port):
            if port == DEFAULT_PORT:
                return port, None
            by = "another service of diptych" if DEFAULT_PORT in taken else holder(DEFAULT_PORT)
            return port, f"Port {DEFAULT_PORT} is in use by {by}; serving on {port}."
    raise StartError(
        f"No port from {DEFAULT_PORT} to {DEFAULT_PORT + _TRIES - 1} is free on {LOOPBACK}.",
        "Name a free one: access.port in the document, or --port.",
    )


def free_ports(count: int, taken: Collection[int] = ()) -> list[int]:
    """The first ports of `count` free blocks of `BLOCK`, below the range that the kernel hands out by itself.

    Args:
        taken: first ports of blocks that were given away already, though nobody listens yet.

    What Ray and the engines start meanwhile listens on ports that the kernel picks: one of that range could be
    taken before its engine gets to it.
    """
    below = range(_FIRST_FIXED_PORT, max(_first_ephemeral_port(), 32768) - BLOCK + 1, BLOCK)
    found: list[int] = []
    for first in random.sample(below, len(below)):
        if (
            first not in taken
            and len(found) < count
            and all(is_free(port) for port in range(first, first + BLOCK))
        ):
            found.append(first)
    if len(found) < count:
        raise StartError(
            f"No {BLOCK} ports in a row are free on {LOOPBACK} from {below.start} to {below.stop}."
        )
    return found


def _first_ephemeral_port() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:
        return 32768
