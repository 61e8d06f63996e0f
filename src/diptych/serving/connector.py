"""vLLM's NIXL connector, with a record of every KV transfer kept per request.

vLLM counts transfers but not whose they were. This subclass keeps NIXL's own telemetry (bytes, time from post
to completion, descriptors) with the request's id; the records ride on the statistics that the engine sends to its
front end anyway and end in `ledger`, in the process that answers the client.

Named `NixlConnector` on purpose: Ray Serve LLM chooses its connector backend by that name, and vLLM takes this
class for it when `kv_connector_module_path` is `diptych.serving.connector`.
"""

import contextlib
import os
import time
from collections.abc import Iterable, Iterator
from typing import Any

from prometheus_client import Counter
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector import NixlBaseConnector, NixlPullConnector
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_scheduler import NixlPullConnectorScheduler
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_worker import NixlPullConnectorWorker
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.stats import NixlKVConnectorStats, NixlPromMetrics

from diptych.serving.first_token import MARK
from diptych.serving.progress import wait_instead_of_spinning
from diptych.serving.transfers import ledger

_PER_REQUEST, _BEGUN, _DONE, _FAILED = "per_request", "begun_requests", "done_requests", "failed_requests"
_RENEWED = "renewed_requests"
_COLUMNS = ("bytes_transferred", "transfer_duration", "post_duration", "num_descriptors")


class TransferStats(NixlKVConnectorStats):
    """NIXL's statistics plus what belongs to whom.

    Rows `[request_id, bytes, seconds, post seconds, descriptors]`, one per transfer, and the ids of the requests
    whose fetch began, is done or failed, once for each worker. And rows `[prefill's request_id, seconds]`, one per
    heartbeat: how long ago it was sent when the statistics are taken, since clocks of several nodes differ.
    """

    def reset(self) -> None:
        super().reset()
        for ours in (_PER_REQUEST, _BEGUN, _DONE, _FAILED, _RENEWED):
            self.data[ours] = []

    def clone_and_reset(self) -> "TransferStats":
        taken: TransferStats = super().clone_and_reset()
        now = time.monotonic()
        taken.data[_RENEWED] = [[request_id, now - sent_at] for request_id, sent_at in taken.data[_RENEWED]]
        return taken

    def is_empty(self) -> bool:
        return super().is_empty() and not any(self.data[ours] for ours in (_BEGUN, _DONE, _FAILED, _RENEWED))

    def renewed(self, request_ids: Iterable[str]) -> None:
        """Note that a heartbeat was sent just now for these requests."""
        self.data[_RENEWED].extend([request_id, time.monotonic()] for request_id in request_ids)

    def attribute(self, request_id: str, first: int) -> None:
        """Give the transfers recorded since index `first` to a request."""
        rows = zip(*(self.data[column][first:] for column in _COLUMNS), strict=True)
        self.data[_PER_REQUEST].extend([request_id, *row] for row in rows)


@contextlib.contextmanager
def cores_kept() -> Iterator[None]:
    """Stay on the cores that are ours.

    vLLM's worker moves the calling thread to the last core of the machine, meant for KV transfers beside computing
    threads. Where that thread is the computing one, both phases' engines would end up on one core.
    """
    cores = os.sched_getaffinity(0)
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


class RecordingWorker(NixlPullConnectorWorker):
    """The worker side: looks at one request's transfers at a time, so that each record has an owner."""

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        if vllm_config.device_config.device_type == "cpu":
            wait_instead_of_spinning()
        with cores_kept():
            super().__init__(vllm_config, *args, **kwargs)
        self.xfer_stats = TransferStats()

    def start_load_kv(self, metadata: Any) -> None:
        # With all of its blocks in decode's prefix cache a request has nothing to fetch, and only frees prefill's.
        begun = (
            request_id for request_id, meta in metadata.reqs_to_recv.items() if any(meta.local_block_ids)
        )
        self.xfer_stats.data[_BEGUN].extend(begun)
        super().start_load_kv(metadata)

    def _send_heartbeats(self, metadata: Any) -> None:
        told = metadata.heartbeat_by_engine
        known = [
            engine_id for engine_id in told if engine_id in self._remote_agents
        ]  # others get a handshake first
        super()._send_heartbeats(metadata)
        for engine_id in known:
            if engine_id in self._remote_agents:
                self.xfer_stats.renewed(told[engine_id].req_ids)

    def _handle_failed_transfer(self, req_id: str, handle: int | None) -> None:
        self.xfer_stats.data[_FAILED].append(req_id)
        super()._handle_failed_transfer(req_id, handle)

    def _pop_done_transfers(self, transfers: dict[str, list[int]]) -> set[str]:
        done: set[str] = set()
        for request_id in list(transfers):
            first = len(self.xfer_stats.data[_COLUMNS[0]])
            own = {request_id: transfers[request_id]}
            done |= super()._pop_done_transfers(own)
            self.xfer_stats.attribute(request_id, first)
            if own:
                transfers[request_id] = own[request_id]
            else:
                del transfers[request_id]
        self.xfer_stats.data[_DONE].extend(done)
        return done


class FetchingScheduler(NixlPullConnectorScheduler):
    """The scheduler's side: of a prompt that ends with prefill's first token, what comes before that is fetched."""

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        count, in_background = super().get_num_new_matched_tokens(request, num_computed_tokens)
        if count and (request.kv_transfer_params or {}).get(MARK):
            count -= 1
        return count, in_background and count > 0


class LedgerMetrics(NixlPromMetrics):
    """The front end's side: fills the ledger, then counts as vLLM does.

    Where Ray exports the engine's metrics there is one of these for Ray's metrics beside the one for vLLM's own,
    which alone fills the ledger.
    """

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        if self._counter_cls is Counter:
            for request_id in transfer_stats_data.get(_BEGUN, ()):
                ledger.begin(request_id)
            for request_id, seconds_ago in transfer_stats_data.get(_RENEWED, ()):
                ledger.renew(request_id, float(seconds_ago))
            for request_id in transfer_stats_data.get(_DONE, ()):
                ledger.end(request_id)
            for request_id in transfer_stats_data.get(_FAILED, ()):
                ledger.fail(request_id)
            for request_id, size, seconds, post_seconds, descriptors in transfer_stats_data.get(
                _PER_REQUEST, ()
            ):
                ledger.add(request_id, int(size), float(seconds), float(post_seconds), int(descriptors))
        super().observe(transfer_stats_data, engine_idx)


class NixlConnector(NixlPullConnector):
    """vLLM's pull connector with `FetchingScheduler` and `RecordingWorker` as its two sides."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        NixlBaseConnector.__init__(self, vllm_config, role, kv_cache_config)
        self.connector_scheduler = None
        self.connector_worker = None
        if role == KVConnectorRole.SCHEDULER:
            self.connector_scheduler = FetchingScheduler(vllm_config, self.engine_id, kv_cache_config)
        else:
            self.connector_worker = RecordingWorker(vllm_config, self.engine_id, kv_cache_config)

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> TransferStats:
        return TransferStats() if data is None else TransferStats(data=data)

    @classmethod
    def build_prom_metrics(cls, *args: Any, **kwargs: Any) -> LedgerMetrics:
        return LedgerMetrics(*args, **kwargs)
