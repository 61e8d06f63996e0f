"""How fast bytes are copied on this node, in memory and over its loopback: what a KV transfer here is held against."""

import contextlib
import socket
import threading
import time

_BYTES = 64 * 2**20
_PIECE = 2**20
_PATIENCE_S = 10.0


def memory_bytes_per_s() -> float:
    """Bytes per second of a copy in memory, one way, by one core."""
    source = bytearray(_BYTES)
    target = bytearray(_BYTES)
    target[:] = source  # has the kernel find the pages
    started = time.perf_counter()
    target[:] = source
    return _BYTES / (time.perf_counter() - started)


def loopback_bytes_per_s() -> float | None:
    """Bytes per second over TCP from this process to itself by 127.0.0.1; None where there is no such way."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(_PATIENCE_S)
            with socket.create_connection(server.getsockname(), _PATIENCE_S) as sender:
                receiver, _ = server.accept()
                with receiver:
                    receiver.settimeout(_PATIENCE_S)
                    return _sent(sender, receiver)
    except OSError:
        return None


def _sent(sender: socket.socket, receiver: socket.socket) -> float:
    def send() -> None:
        piece = bytes(_PIECE)
        with contextlib.suppress(OSError):
            for _ in range(_BYTES // _PIECE):
                sender.sendall(piece)

    buffer = bytearray(_PIECE)
    thread = threading.Thread(target=send, daemon=True)
    started, received = time.perf_counter(), 0
    thread.start()
    while received < _BYTES:
        count = receiver.recv_into(buffer)
        if not count:
            raise OSError("the other end is closed")
        received += count
    seconds = time.perf_counter() - started
    thread.join()
    return received / seconds
