"""An HTTP server on 127.0.0.1, up within `with`."""

import threading
from http.server import ThreadingHTTPServer
from typing import Self


class LoopbackServer:
    """What serves for as long as a test needs it.

    Args:
        server: bound to a port already.
    """

    def __init__(self, server: ThreadingHTTPServer) -> None:
        self._server = server

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"
