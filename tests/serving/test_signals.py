"""What a worker tells of itself: read from a process as Linux shows it, and asked through vLLM's own worker class."""

import asyncio
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

from vllm.utils.import_utils import resolve_obj_by_qualname

from diptych.serving import signals
from diptych.serving.asked import asked_of, engine_asks, transport_of
from diptych.serving.signals import (
    WorkerSignals,
    ask_workers,
    device_counters,
    extension,
    libraries,
    open_devices,
    worker_signals,
)

WHEEL = "/opt/venv/lib/python3.13/site-packages/nixl_cu13.libs"
MAPS = f"""\
7f1a00000000-7f1a00100000 r-xp 00000000 08:01 11 {WHEEL}/nixl/libplugin_LIBFABRIC.so
7f1a00200000-7f1a00300000 r--p 00000000 08:01 12 {WHEEL}/nixl/libplugin_UCX.so
7f1a00400000-7f1a00500000 r-xp 00000000 08:01 13 {WHEEL}/libucp-bcc5ee2e.so.0.0.0
7f1a00600000-7f1a00700000 r-xp 00000000 08:01 14 /opt/amazon/efa/lib64/libfabric.so.1 (deleted)
7f1a00800000-7f1a00900000 r-xp 00000000 08:01 15 /usr/lib64/libefa.so.1.4.60.0
7f1a00a00000-7f1a00b00000 r-xp 00000000 08:01 16 /usr/lib64/libc.so.6
7f1a00c00000-7f1a00d00000 rw-p 00000000 00:00 0
"""
NET = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier
    lo:  1000      10    0    0    0     0          0         0     1000      10    0    0    0     0       0          0
  eth0: 52345     200    0    0    0     0          0         0    67890     100    0    0    0     0       0          0
"""


class TheirExtension:
    """Somebody's own extension of vLLM's worker."""

    def theirs(self) -> str:
        return "theirs"


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    folder = tmp_path / "proc"
    (folder / "fd").mkdir(parents=True)
    (folder / "net").mkdir()
    folder.joinpath("maps").write_text(MAPS)
    folder.joinpath("net/dev").write_text(NET)
    return folder


@pytest.fixture
def sys_folder(tmp_path: Path) -> Path:
    """An EFA device as pods on EKS see it, and another vendor's."""
    folder = tmp_path / "sys"
    for device, driver in (("rdmap0s6", "efa"), ("mlx5_0", "mlx5_core")):
        counters = folder / "class/infiniband" / device / "ports/1/hw_counters"
        counters.mkdir(parents=True)
        for name, value in (
            ("tx_bytes", "700"),
            ("rx_bytes", "900"),
            ("rdma_read_bytes", "0"),
            ("rx_pkts", "3"),
        ):
            counters.joinpath(name).write_text(f"{value}\n")
        drivers = folder / "drivers" / driver
        drivers.mkdir(parents=True)
        folder.joinpath("class/infiniband", device, "device").mkdir()
        folder.joinpath("class/infiniband", device, "device/driver").symlink_to(drivers)
    return folder


def test_libraries_are_those_that_are_mapped_to_be_executed(proc: Path) -> None:
    assert libraries(proc) == [
        "libefa.so.1.4.60.0",
        "libfabric.so.1",
        "libplugin_LIBFABRIC.so",
        "libucp.so.0.0.0",
    ]


def test_a_plugin_that_is_only_looked_at_is_not_in_use(proc: Path) -> None:
    assert "libplugin_UCX.so" not in libraries(proc)


def test_open_devices_are_those_of_rdma(proc: Path) -> None:
    for number, target in enumerate(("/dev/infiniband/uverbs0", "/dev/null", "socket:[77]")):
        proc.joinpath("fd", str(number)).symlink_to(target)
    assert open_devices(proc) == ["/dev/infiniband/uverbs0"]


def test_counters_are_told_by_kind_of_device(proc: Path, sys_folder: Path) -> None:
    assert device_counters(proc, sys_folder) == {
        "efa:rdmap0s6": {"tx_bytes": 700, "rx_bytes": 900, "rdma_read_bytes": 0},
        "ib:mlx5_0": {"tx_bytes": 700, "rx_bytes": 900, "rdma_read_bytes": 0},
        "net:lo": {"tx_bytes": 1000, "rx_bytes": 1000},
        "net:eth0": {"tx_bytes": 67890, "rx_bytes": 52345},
    }


def test_without_a_driver_to_be_seen_the_name_tells_what_an_efa_is(proc: Path, sys_folder: Path) -> None:
    sys_folder.joinpath("class/infiniband/rdmap0s6/device/driver").unlink()
    assert "efa:rdmap0s6" in device_counters(proc, sys_folder)


def test_a_machine_without_any_tells_nothing(tmp_path: Path) -> None:
    assert (libraries(tmp_path), open_devices(tmp_path), device_counters(tmp_path, tmp_path)) == ([], [], {})


def test_this_process_makes_no_kv_transfers() -> None:
    told = worker_signals(3)
    assert (told["rank"], told["pid"]) == (3, os.getpid())
    assert (told["backends"], told["rails"], told["side_channel"]) == ([], None, None)
    assert "net:lo" in told["device_counters"]
    assert json.loads(json.dumps(told)) == told


def test_what_the_agent_made_counts_not_what_it_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    config = SimpleNamespace(parallel_config=SimpleNamespace(data_parallel_index=2))
    agent = SimpleNamespace(backends={"UCX": object()})
    worker = SimpleNamespace(nixl_wrapper=agent, nixl_backends=["LIBFABRIC"], vllm_config=config)
    outer = SimpleNamespace(_connectors=[SimpleNamespace(connector_worker=worker)], connector_worker=None)
    monkeypatch.setattr("vllm.distributed.kv_transfer.has_kv_transfer_group", lambda: True)
    monkeypatch.setattr("vllm.distributed.kv_transfer.get_kv_transfer_group", lambda: outer)
    monkeypatch.setenv("VLLM_NIXL_SIDE_CHANNEL_HOST", "10.0.0.1")
    monkeypatch.setenv("VLLM_NIXL_SIDE_CHANNEL_PORT", "20000")

    told = worker_signals(0)
    assert told["backends"] == ["UCX"]
    assert told["side_channel"] == "10.0.0.1:20002"


def test_vllm_finds_our_extension_of_its_worker_by_its_name() -> None:
    assert resolve_obj_by_qualname(extension("")) is WorkerSignals
    assert json.loads(type("Worker", (WorkerSignals,), {"rank": 1})().diptych_signals())["rank"] == 1


def test_an_extension_of_the_users_keeps_its_place_beside_ours() -> None:
    theirs = f"{TheirExtension.__module__}.TheirExtension"
    both = resolve_obj_by_qualname(extension(theirs))
    assert issubclass(both, WorkerSignals)
    assert both().theirs() == "theirs"
    assert resolve_obj_by_qualname(extension(theirs)) is both
    assert extension(extension(theirs)) == extension(theirs)


class Client:
    """An engine client whose workers answer, or don't."""

    def __init__(self, answers: Any) -> None:
        self._answers = answers

    async def collective_rpc(self, method: str) -> list[str]:
        assert method in dir(WorkerSignals)
        if self._answers is None:
            await asyncio.sleep(60)
        if isinstance(self._answers, Exception):
            raise self._answers
        return [json.dumps(each) for each in self._answers]


def test_all_workers_of_an_engine_are_asked() -> None:
    assert asyncio.run(ask_workers(Client([{"rank": 0}, {"rank": 1}]))) == [{"rank": 0}, {"rank": 1}]


@pytest.mark.parametrize("answers", [None, RuntimeError("the engine is dead")])
def test_workers_that_do_not_answer_leave_no_signals(answers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "_ANSWERS_WITHIN_S", 0.05)
    assert asyncio.run(ask_workers(Client(answers))) == []


def engine(backends: list[str] | None = None) -> SimpleNamespace:
    extra = {"backends": backends} if backends else {}
    transfer = SimpleNamespace(
        kv_buffer_device="cuda", get_from_extra_config=lambda name, default: extra.get(name, default)
    )
    return SimpleNamespace(vllm_config=SimpleNamespace(kv_transfer_config=transfer))


def test_an_engine_without_a_backend_asks_for_vllms_default() -> None:
    assert asked_of(transport_of(None), engine_asks(engine()))["backend"] == "UCX"


def test_the_document_goes_before_the_engines_settings() -> None:
    asked = asked_of(transport_of({"backend": "LIBFABRIC", "provider": "efa"}), engine_asks(engine(["UCX"])))
    assert (asked["backend"], asked["provider"], asked["device"]) == ("LIBFABRIC", "efa", "cuda")


@pytest.mark.parametrize(
    ("backend", "provider", "asked"),
    [
        ("LIBFABRIC", "efa", "efa"),
        ("LIBFABRIC", "tcp", "tcp"),
        ("LIBFABRIC", "shm", None),
        ("UCX", "efa", None),
    ],
)
def test_a_provider_is_asked_for_by_the_environment_where_libfabric_is(
    backend: str, provider: str, asked: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FI_PROVIDER", provider)
    assert asked_of(transport_of(None), engine_asks(engine([backend])))["provider"] == asked


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rail": 1}, "has no field 'rail'"),
        ({"rails": True}, "transport.rails is True"),
        ({"provider": "verbs"}, "give efa or tcp"),
        ({"allow_fallback": "yes"}, "transport.allow_fallback"),
    ],
)
def test_a_transport_that_can_not_be_read_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        transport_of(given)
