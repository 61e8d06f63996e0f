"""A Hugging Face hub on this machine: one model, its files, and the answers by which the hub refuses.

It speaks what `huggingface_hub` asks for: a model's description with sizes, and files with ETag and commit, from any
byte on. It can break off in the middle of a file, and it can be busy.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import unquote, urlsplit

REPO = "owner/tiny"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
_LARGE = 2**20


@dataclass
class Hub:
    """What it has, how it misbehaves, and what it was asked.

    Args:
        files: name and content of the model's files.
        token: what readers must present, where the model is private or gated.
        gated: refuse strangers as a gated model does, not as one that isn't there.
        break_off: how many answers with a large file end after half of it.
        busy: how many requests get 503.
    """

    files: Mapping[str, bytes]
    token: str | None = None
    gated: bool = False
    break_off: int = 0
    busy: int = 0
    address: str = ""
    fetched: list[str] = field(default_factory=list)
    ranges: list[str] = field(default_factory=list)


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """The hub at `hub.address` while the context lasts."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    Thread(target=server.serve_forever, daemon=True).start()
    hub.address = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()


def _handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def _answer(self, *, with_body: bool) -> None:
            path = unquote(urlsplit(self.path).path)
            if hub.busy:
                hub.busy -= 1
                self._refuse(503, "", "busy")
            elif hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
                refusal = (403, "GatedRepo") if hub.gated else (401, "RepoNotFound")
                self._refuse(*refusal, "no access")
            elif path.startswith(f"/api/models/{REPO}"):
                self._describe(path)
            elif path.startswith(f"/{REPO}/resolve/{COMMIT}/"):
                self._give(path.partition(f"/{COMMIT}/")[2], with_body=with_body)
            else:
                self._refuse(404, "RepoNotFound", "there is no such model")

        def _describe(self, path: str) -> None:
            revision = path.partition("/revision/")[2] or path.partition("/tree/")[2] or "main"
            if revision not in ("main", COMMIT):
                self._refuse(404, "RevisionNotFound", "there is no such revision")
                return
            files = [{"rfilename": name, "size": len(content)} for name, content in hub.files.items()]
            tree = [
                {"type": "file", "path": name, "size": len(content), "oid": name}
                for name, content in hub.files.items()
            ]
            found = (
                tree if "/tree/" in path else {"id": REPO, "modelId": REPO, "sha": COMMIT, "siblings": files}
            )
            self._send(200, json.dumps(found).encode(), {"Content-Type": "application/json"})

        def _give(self, name: str, *, with_body: bool) -> None:
            content = hub.files.get(name)
            if content is None:
                self._refuse(404, "EntryNotFound", "there is no such file")
                return
            headers = {
                "ETag": f'"{hashlib.sha256(content).hexdigest()}"',
                "X-Repo-Commit": COMMIT,
                "Accept-Ranges": "bytes",
            }
            if not with_body:
                self._send(200, b"", headers | {"Content-Length": str(len(content))})
                return
            hub.fetched.append(name)
            start, status = 0, 200
            if "Range" in self.headers:
                hub.ranges.append(self.headers["Range"])
                start, status = int(self.headers["Range"].removeprefix("bytes=").partition("-")[0]), 206
                headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
            body = content[start:]
            if hub.break_off and len(body) > _LARGE:
                hub.break_off -= 1
                self._send(status, body[: len(body) // 2], headers | {"Content-Length": str(len(body))})
                self.close_connection = True
                return
            self._send(status, body, headers)

        def _refuse(self, status: int, code: str, message: str) -> None:
            self._send(status, b"{}", {"X-Error-Code": code, "X-Error-Message": message})

        def _send(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
            self.send_response(status)
            for name, value in ({"Content-Length": str(len(body))} | dict(headers)).items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    return Handler
