"""Every KV transfer has an owner: NIXL's numbers, kept per request, from the worker to the ledger."""

import time
import uuid
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

from prometheus_client import Counter

from diptych.serving import connector
from diptych.serving.connector import LedgerMetrics, NixlConnector, RecordingWorker, TransferStats
from diptych.serving.transfers import TAG, Ledger, Transfer


class Telemetry:
    """What NIXL tells of one finished transfer; times in microseconds, as NIXL has them."""

    def __init__(self, size: int) -> None:
        self.totalBytes = size
        self.xferDuration = 2000
        self.postDuration = 500
        self.descCount = 3


class Nixl:
    """Transfers by handle: those whose size is known are done, the others go on."""

    def __init__(self, sizes: dict[int, int]) -> None:
        self.sizes = sizes

    def check_xfer_state(self, handle: int) -> str:
        return "DONE" if handle in self.sizes else "PROC"

    def get_xfer_telemetry(self, handle: int) -> Telemetry:
        return Telemetry(self.sizes[handle])

    def release_xfer_handle(self, handle: int) -> None:
        del self.sizes[handle]


def worker(sizes: dict[int, int]) -> Any:
    """The worker's bookkeeping without an engine around it."""
    made: Any = object.__new__(RecordingWorker)
    made.nixl_wrapper = Nixl(sizes)
    made.xfer_stats = TransferStats()
    made._recving_metadata = {}
    return made


def rows(stats: TransferStats) -> list[tuple[str, int]]:
    return [(row[0], row[1]) for row in stats.data["per_request"]]


def test_each_finished_transfer_is_given_to_its_own_request() -> None:
    own = worker({1: 100, 2: 200, 3: 300})
    transfers = {"a": [1], "b": [2, 3]}
    assert own._pop_done_transfers(transfers) == {"a", "b"}
    assert rows(own.xfer_stats) == [("a", 100), ("b", 200), ("b", 300)]
    assert transfers == {}


def test_a_request_that_still_waits_keeps_its_open_transfers() -> None:
    own = worker({1: 100, 3: 300})
    transfers = {"a": [1, 2], "b": [3]}
    assert own._pop_done_transfers(transfers) == {"b"}
    assert transfers == {"a": [2]}
    own.nixl_wrapper.sizes[2] = 200
    assert own._pop_done_transfers(transfers) == {"a"}
    assert sorted(rows(own.xfer_stats)) == [("a", 100), ("a", 200), ("b", 300)]


def test_the_engines_own_statistics_are_what_they_were() -> None:
    own = worker({1: 100, 2: 200})
    own._pop_done_transfers({"a": [1], "b": [2]})
    assert own.xfer_stats.data["bytes_transferred"] == [100, 200]
    assert own.xfer_stats.data["transfer_duration"] == [0.002, 0.002]


def test_statistics_of_two_steps_add_up_with_their_rows_and_begin_anew() -> None:
    first, second = worker({1: 100}), worker({2: 200})
    first._pop_done_transfers({"a": [1]})
    second._pop_done_transfers({"b": [2]})
    whole = NixlConnector.build_kv_connector_stats(first.xfer_stats.data)
    whole = whole.aggregate(second.xfer_stats)
    assert rows(whole) == [("a", 100), ("b", 200)]
    taken = second.xfer_stats.clone_and_reset()
    assert rows(taken) == [("b", 200)]
    assert rows(second.xfer_stats) == []
    assert second.xfer_stats.is_empty()


class Meta:
    """What the scheduler says of one request that fetches, as far as we read it."""

    def __init__(self, *local_block_ids: list[int]) -> None:
        self.local_block_ids = local_block_ids


class Metadata:
    """What the scheduler tells the worker before a step."""

    def __init__(self, **reqs_to_recv: Meta) -> None:
        self.reqs_to_recv = reqs_to_recv


def test_a_request_without_blocks_to_fetch_begins_no_transfer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connector.NixlPullConnectorWorker, "start_load_kv", lambda self, metadata: None)
    own = worker({})
    own.start_load_kv(Metadata(a=Meta([1, 2]), b=Meta([])))
    assert own.xfer_stats.data["begun_requests"] == ["a"]


def test_a_transfer_that_one_of_two_workers_has_done_goes_on_for_those_who_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ledger = Ledger()
    monkeypatch.setattr(connector, "ledger", ledger)
    monkeypatch.setattr(connector.NixlPromMetrics, "observe", lambda self, data, engine_idx=0: None)
    monkeypatch.setattr(connector.NixlPullConnectorWorker, "start_load_kv", lambda self, metadata: None)
    metrics = object.__new__(LedgerMetrics)
    metrics._counter_cls = Counter
    ours = uuid.uuid4().hex
    named = f"{TAG}{ours}-chatcmpl-1"
    ranks = worker({1: 100}), worker({})
    for rank in ranks:
        rank.start_load_kv(Metadata(**{named: Meta([1])}))
    ranks[0]._pop_done_transfers({named: [1]})
    ranks[1]._pop_done_transfers({named: [2]})
    metrics.observe(ranks[0].xfer_stats.aggregate(ranks[1].xfer_stats).data)
    assert ledger.look(ours).transfer is not None
    assert not ledger.look(ours).is_over


class Heartbeats:
    """What the scheduler tells the worker of prefill's engines that are to hear of us."""

    def __init__(self, **request_ids: set[str]) -> None:
        told = {engine: SimpleNamespace(req_ids=ids) for engine, ids in request_ids.items()}
        self.heartbeat_by_engine = told


def test_a_heartbeat_that_was_sent_is_known_with_its_age_and_one_before_the_handshake_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ledger, ours, others = Ledger(), uuid.uuid4().hex, uuid.uuid4().hex
    monkeypatch.setattr(connector, "ledger", ledger)
    monkeypatch.setattr(connector.NixlPromMetrics, "observe", lambda self, data, engine_idx=0: None)
    own = worker({})
    own._remote_agents = {"known": {}}

    def greet(self: Any, metadata: Any) -> None:  # the handshake is over before the heartbeats are done
        self._remote_agents["new"] = {}

    monkeypatch.setattr(connector.NixlPullConnectorWorker, "_send_heartbeats", greet)
    named = {"known": {f"prefill-{TAG}{ours}-0"}, "new": {f"prefill-{TAG}{others}-0"}}
    own._send_heartbeats(Heartbeats(**named))
    assert not own.xfer_stats.is_empty()
    own.xfer_stats.data["renewed_requests"][0][1] -= 20.0  # it was a long step
    metrics = object.__new__(LedgerMetrics)
    metrics._counter_cls = Counter
    before = time.monotonic()
    metrics.observe(own.get_kv_connector_stats().data)
    (renewed_at,) = ledger.look(ours).renewed_at
    assert renewed_at == pytest.approx(before - 20.0, abs=1.0)
    assert ledger.look(others).renewed_at == []
    assert own.xfer_stats.is_empty()


class RaysCounter:
    """What counts where Ray exports the engine's metrics, beside vLLM's own."""


@pytest.mark.parametrize(("counter", "fills_the_ledger"), [(Counter, True), (RaysCounter, False)])
def test_the_front_end_counts_every_transfer_and_fills_the_ledger_once(
    monkeypatch: pytest.MonkeyPatch, counter: type, fills_the_ledger: bool
) -> None:
    ledger, counted = Ledger(), []
    monkeypatch.setattr(connector, "ledger", ledger)
    monkeypatch.setattr(
        connector.NixlPromMetrics, "observe", lambda self, data, engine_idx=0: counted.append(data)
    )
    metrics = object.__new__(LedgerMetrics)
    metrics._counter_cls = counter
    ours = uuid.uuid4().hex
    own = worker({1: 100})
    own._pop_done_transfers({f"{TAG}{ours}-chatcmpl-1": [1]})
    metrics.observe(own.xfer_stats.data)
    assert ledger.take(ours).transfer == (Transfer(100, 0.002, 0.0005, 3) if fills_the_ledger else None)
    assert len(counted) == 1
    metrics.observe({"bytes_transferred": [1]})
    assert len(counted) == 2


def test_the_class_is_named_as_ray_chooses_its_backend_by() -> None:
    from ray.llm._internal.serve.engines.vllm.kv_transfer.factory import KVConnectorBackendFactory

    assert NixlConnector.__name__ == "NixlConnector"
    assert (
        KVConnectorBackendFactory.get_backend_class(NixlConnector.__name__).__name__ == "NixlConnectorBackend"
    )
