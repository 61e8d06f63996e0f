"""Ray Serve for `ray_alone`: runs no application, but answers at its address as one would."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

from ray import behaves

_ANSWER = {"usage": {"prompt_tokens": 8}, "choices": [], "diptych": {"path": "aggregated", "why": None}}


class _Endpoint(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        body = json.dumps(_ANSWER).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nothing."""


def start(proxy_location: str, http_options: dict[str, Any]) -> None:
    server = ThreadingHTTPServer((http_options["host"], http_options["port"]), _Endpoint)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def run(application: Any, **_: Any) -> None:
    if behaves("bad-engine"):
        raise RuntimeError("Deploying application diptych failed")
    while behaves("no-engine"):
        time.sleep(1)


def status() -> SimpleNamespace:
    return SimpleNamespace(applications={})
