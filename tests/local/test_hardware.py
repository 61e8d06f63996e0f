"""How replicas share the machine's cores."""

import subprocess

import pytest

from diptych.local import hardware
from diptych.local.hardware import detect, share_cores


@pytest.mark.parametrize(
    ("cores", "wanted", "shares"),
    [
        ((0, 1), (None, None), [(0,), (1,)]),
        ((0, 1, 2), (None, None), [(0, 1), (2,)]),
        ((4, 6, 8), (1, None), [(4,), (6, 8)]),
        ((0, 1, 2, 3), (3, None), [(0, 1, 2), (3,)]),
        ((0, 1, 2, 3), (2, 2), [(0, 1), (2, 3)]),
        ((0, 1, 2, 3, 4), (None, 1, None), [(0, 1), (2,), (3, 4)]),
    ],
)
def test_each_core_goes_to_one_replica_where_there_are_enough(cores, wanted, shares) -> None:
    assert share_cores(cores, wanted) == shares


@pytest.mark.parametrize("wanted", [(None, None), (1, 1), (None, None, None), (4, None), (None, 9)])
def test_on_too_few_cores_every_replica_still_gets_one(wanted) -> None:
    for share in share_cores((3,), wanted):
        assert share == (3,)


def test_asking_for_more_cores_than_there_are_gives_all_of_them_once() -> None:
    assert share_cores((0, 1), (5,)) == [(0, 1)]


def test_sixty_four_cores_are_shared_out_wholly_and_evenly() -> None:
    shares = share_cores(range(64), (None, None, None))
    assert sorted(core for share in shares for core in share) == list(range(64))
    assert [len(share) for share in shares] == [22, 21, 21]


def test_a_control_groups_memory_limit_bounds_the_machines(monkeypatch) -> None:
    monkeypatch.setattr(hardware, "_cgroup_memory", lambda: (2**30, 2**28))
    found = detect()
    assert found.memory_total == 2**30
    assert found.memory_available <= 2**30 - 2**28


def test_without_a_driver_there_are_no_gpus(monkeypatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert detect().gpus == ()


def test_only_visible_gpus_count(monkeypatch) -> None:
    answer = subprocess.CompletedProcess([], 0, stdout="143771\n143771\n", stderr="")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: answer)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert detect().gpus == (143771 * 2**20,) * 2
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert len(detect().gpus) == 1
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert detect().gpus == ()
