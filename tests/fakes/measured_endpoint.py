"""An endpoint of Diptych's kind that can be put under load: proofs, streamed completions, and its records.

It refuses what the real one refuses of a benchmark's requests: prompts that are no token ids or text, and lengths that
are no numbers. How each of its answers goes wrong is told by the request's number.
"""

import itertools
import json
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

from fakes import provable_endpoint
from fakes.provable_endpoint import ProvableEndpoint

KV_BYTES_PER_TOKEN = 1000


@dataclass
class Answering:
    """What a test changes.

    Attributes:
        before_first_s, between_s: seconds to wait before the first token, and between tokens.
        spoilt: by the request's number, from 0: `refused` (503), `cut` (the connection closes after a token), `ended`
            (a proper end after a token), `failed` (an error object after a token).
        path: of the records.
        has_records: whether it has the route for them, which older versions lack.
    """

    before_first_s: float = 0.02
    between_s: float = 0.005
    spoilt: Mapping[int, str] = field(default_factory=dict)
    path: str = "remote"
    has_records: bool = True


class MeasuredEndpoint(ProvableEndpoint):
    """The endpoint, up within `with`.

    Attributes:
        answering: how completions are answered.
        completions: each one's time of arrival and body.
        records: as `/diptych/v1/requests` tells them.
    """

    def __init__(self) -> None:
        super().__init__()
        self._server.RequestHandlerClass = _Handler
        self.answering = Answering()
        self.completions: list[tuple[float, dict[str, Any]]] = []
        self.records: list[dict[str, Any]] = []
        self._numbers = itertools.count()
        self._lock = threading.Lock()

    def begin(self, body: dict[str, Any]) -> str:
        """Note a completion; what is to go wrong with it, or ""."""
        with self._lock:
            self.completions.append((time.monotonic(), body))
            return self.answering.spoilt.get(next(self._numbers), "")

    def end(self, status: int, prompt: int, output: int, ttft_ms: float | None) -> None:
        """Keep the record of a completion."""
        remote = self.answering.path == "remote" and ttft_ms is not None
        record = {
            "status": status,
            "path": self.answering.path,
            "prompt_tokens": prompt,
            "cached_tokens": 0,
            "output_tokens": output,
            "prefill_ms": ttft_ms * 0.8 if remote and ttft_ms else None,
            "queue_ms": ttft_ms * 0.2 if remote and ttft_ms else None,
            "kv_transfer_ms": 1.0 if remote else None,
            "kv_transfer_bytes": prompt * KV_BYTES_PER_TOKEN if remote else None,
            "kv_transfer_failed": False,
            "decode_queue_ms": 2.0 if ttft_ms else None,
            "decode_compute_ms": 1.0 if ttft_ms else None,
            "ttft_ms": ttft_ms,
        }
        with self._lock:
            self.records.append({**record, "at": time.time()})


class _Handler(provable_endpoint._Handler):
    def _answer(self, body: Any) -> None:
        fake = self.server.fake
        assert isinstance(fake, MeasuredEndpoint)
        url = urlsplit(self.path)
        if url.path == "/diptych/v1/requests" and fake.answering.has_records:
            since = float(parse_qs(url.query)["since"][0])
            found = [record for record in fake.records if record["at"] > since]
            self._send(200, {"requests": found, "forgotten": False})
        elif url.path == "/v1/completions" and body.get("stream"):
            self._stream(fake, body)
        else:
            super()._answer(body)

    def _stream(self, fake: MeasuredEndpoint, body: dict[str, Any]) -> None:
        prompt, wanted = body.get("prompt"), body.get("max_tokens")
        is_ids = isinstance(prompt, list) and all(isinstance(token, int) for token in prompt)
        if not (is_ids or isinstance(prompt, str)) or not isinstance(wanted, int) or wanted < 1:
            self._send(400, {"error": {"message": "No prompt, or no length.", "code": 400}})
            return
        wrong, answering, began = fake.begin(body), fake.answering, time.monotonic()
        if wrong == "refused":
            fake.end(503, len(prompt), 0, None)
            self._send(503, {"error": {"message": "The queue is full.", "code": 503}})
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        time.sleep(answering.before_first_s)
        self._event({"choices": [{"index": 0, "text": "a"}]})
        ttft_ms = 1000 * (time.monotonic() - began)
        output = 1 if wrong else wanted
        for _ in range(output - 1):
            time.sleep(answering.between_s)
            self._event({"choices": [{"index": 0, "text": "a"}]})
        fake.end(200, len(prompt), output, ttft_ms)
        if wrong == "cut":
            self.close_connection = True
            return
        if wrong == "failed":
            self._event({"error": {"message": "The engine died.", "code": 500}})
        else:
            self._event({"choices": [], "usage": {"prompt_tokens": len(prompt), "completion_tokens": output}})
        self._chunk(b"data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")
        self.wfile.flush()

    def _event(self, content: dict[str, Any]) -> None:
        self._chunk(f"data: {json.dumps(content)}\n\n".encode())

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()
