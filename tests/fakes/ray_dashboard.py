"""The part of Ray's dashboard that hands out log files, as Ray 2.58 to 2.60 answer: by node address, with a token."""

import fnmatch
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit


class RayDashboard:
    """A dashboard within `with`.

    Attributes:
        files: the lines of each file, by the node's address and the file's name.
        token: what clients must show; None: no one is asked.
        asked: paths that were asked for.
    """

    def __init__(self, token: str | None = None) -> None:
        self.files: dict[tuple[str, str], list[str]] = {}
        self.token = token
        self.asked: list[str] = []
        dashboard = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                status, kind, body = dashboard._answer(self.path, self.headers.get("Authorization"))
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def address(self) -> tuple[str, int]:
        return ("127.0.0.1", int(self._server.server_address[1]))

    def _answer(self, target: str, shown: str | None) -> tuple[int, str, bytes]:
        self.asked.append(target)
        if self.token is not None and shown != f"Bearer {self.token}":
            return 401, "text/plain", b"Unauthorized: Missing authentication token"
        url = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        nodes = {node for node, _ in self.files}
        if query.get("node_ip") not in nodes:
            text = f"Cannot find matching node_id for a given node ip {query.get('node_ip')}"
            return (
                404,
                "application/json",
                json.dumps({"result": False, "msg": text, "data": {"result": None}}).encode(),
            )
        if url.path == "/api/v0/logs":
            return 200, "application/json", json.dumps(self._listed(query)).encode()
        if url.path == "/api/v0/logs/file":
            lines = self.files.get((query["node_ip"], query["filename"]))
            if lines is None:
                return 500, "text/plain", f"File {query['filename']} does not exist".encode()
            kept = lines[-int(query.get("lines", "1000")) :]
            return 200, "text/plain", "".join(f"{line}\n" for line in kept).encode()
        return 404, "text/plain", b"404: Not Found"

    def _listed(self, query: dict[str, str]) -> dict[str, Any]:
        pattern = query.get("glob", "*")
        groups: dict[str, list[str]] = {}
        for node, name in self.files:
            folder, _, _ = name.rpartition("/")
            is_inside = folder == pattern.rpartition("/")[0]
            if node == query["node_ip"] and is_inside and fnmatch.fnmatch(name, pattern):
                kind = (
                    "worker_out"
                    if name.endswith(".out")
                    else "worker_err"
                    if name.endswith(".err")
                    else "misc"
                )
                groups.setdefault(kind, []).append(name)
        return {"result": True, "msg": "", "data": {"result": groups}}
