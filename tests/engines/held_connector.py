"""A connector whose KV transfers go as a test says: they hang, arrive and are not reported, or fail.

For the engines' `worker_extension_cls`, an argument of vLLM's like any other: importing this module puts `HeldWorker`
in our worker's place. What it holds it holds request by request; the engine's steps go on.
"""

import contextlib
import os
from typing import Any

from diptych.serving import connector
from engines.link import FAILING, SILENT, UNPOSTED, UNREPORTED, Link

link = Link()


class HeldWorker(connector.RecordingWorker):
    """Our worker, with KV transfers at the test's will."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._unposted: list[tuple[str, Any]] = []
        self._told: set[str] = set()

    def start_load_kv(self, metadata: Any) -> None:
        if link.state not in (UNPOSTED, SILENT):
            held, self._unposted = self._unposted, []
            for request_id, meta in held:
                self._read_blocks_for_req(request_id, meta)
        super().start_load_kv(metadata)

    def _read_blocks_for_req(self, req_id: str, meta: Any) -> None:
        state = link.state
        if state in (UNPOSTED, SILENT):
            self._unposted.append((req_id, meta))
            self._tell(req_id)
        elif state == FAILING:
            self._handle_failed_transfer(req_id, None)
            self._tell(req_id)
        else:
            super()._read_blocks_for_req(req_id, meta)

    def _send_heartbeats(self, metadata: Any) -> None:
        if link.state != SILENT:
            super()._send_heartbeats(metadata)

    def _pop_done_transfers(self, transfers: dict[str, list[int]]) -> set[str]:
        if link.state != UNREPORTED:
            return super()._pop_done_transfers(transfers)
        for request_id, handles in transfers.items():
            if handles and all(self._has_arrived(handle) for handle in handles):
                self._tell(request_id)
        return set()

    def _has_arrived(self, handle: int) -> bool:
        with contextlib.suppress(Exception):  # NIXL raises for a transfer that failed
            return bool(self.nixl_wrapper.check_xfer_state(handle) == "DONE")
        return False

    def _tell(self, request_id: str) -> None:
        if request_id not in self._told:
            self._told.add(request_id)
            link.tell(request_id)


class Extension:
    """For `worker_extension_cls`; adds nothing to the worker of the model."""


if link.address:
    host, port = link.address
    os.environ |= {"VLLM_NIXL_SIDE_CHANNEL_HOST": host, "VLLM_NIXL_SIDE_CHANNEL_PORT": port}
connector.RecordingWorker = HeldWorker  # type: ignore[misc]
