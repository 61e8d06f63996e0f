"""The sides of a comparison: the same devices for all, whatever the document says; and what those cost."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from diptych.cli import bench_places
from diptych.cli.bench_places import brought_up, machines_of, sides_of
from diptych.cli.places import LOCAL, Up, of_document
from diptych.errors import DocumentError, EndpointError, NotUpError, SetupError
from diptych.local import environment, hardware
from diptych.local.hardware import Hardware
from diptych.local.paths import ServicePaths
from diptych.local.up import Service
from diptych.spec import load
from fakes.state import a_state

GIB = 1024**3


def on(monkeypatch: pytest.MonkeyPatch, cores: int, gpus: int = 0) -> None:
    """Be on a machine with so many cores and GPUs."""
    found = Hardware(
        cores=tuple(range(cores)), memory_total=256 * GIB, memory_available=256 * GIB, gpus=(80 * GIB,) * gpus
    )
    monkeypatch.setattr(hardware, "detect", lambda: found)
    monkeypatch.setattr(environment, "has_cuda_engine", lambda: gpus > 0)


def written(folder: Path, text: str) -> Path:
    file = folder / "diptych.yaml"
    file.write_text(text)
    return file


def test_on_cpus_one_engine_gets_all_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, cores=4)
    split, aggregated = sides_of(None, [], None)
    assert split.overrides == ("topology=split",)
    document = load(None, list(aggregated.overrides))
    assert (document.topology, document.decode.num_replicas, document.decode.cores) == ("aggregated", 1, None)


def test_or_as_many_cores_as_the_split_has(monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, cores=8)
    given = ["prefill.cores=2", "decode.cores=1", "decode.num_replicas=2"]
    aggregated = sides_of(None, given, None)[-1]
    document = load(None, [*given, *aggregated.overrides])
    assert (document.decode.num_replicas, document.decode.cores) == (1, 4)


def test_on_gpus_each_gpu_of_the_split_gets_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, cores=8, gpus=4)
    aggregated = sides_of(None, ["decode.num_replicas=3"], None)[-1]
    assert "decode.num_replicas=4" in aggregated.overrides


def test_of_engines_over_several_gpus_there_are_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, cores=8, gpus=6)
    given = ["engine_kwargs.tensor_parallel_size=3"]
    assert "decode.num_replicas=2" in sides_of(None, given, None)[-1].overrides


def test_each_ratio_is_a_side(monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, cores=8, gpus=4)
    sides = sides_of(None, [], "1:3, 3:1")
    assert [side.name for side in sides] == ["split 1:3", "split 3:1", "aggregated"]
    document = load(None, list(sides[1].overrides))
    assert (document.prefill.num_replicas, document.decode.num_replicas) == (3, 1)
    assert "decode.num_replicas=4" in sides[-1].overrides


def test_ratios_that_need_different_numbers_of_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, cores=8, gpus=4)
    with pytest.raises(DocumentError, match="same number of GPUs"):
        sides_of(None, [], "1:1,1:2")


CLUSTER = "on: kubernetes\nmodel: Qwen/Qwen3-8B\n"


def test_on_a_cluster_each_gpu_of_the_split_gets_an_engine_whatever_this_machine_has(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    on(monkeypatch, cores=4)
    file = written(
        tmp_path, f"{CLUSTER}nodes: {{instance_type: g6.8xlarge, count: 2}}\ndecode: {{num_replicas: 2}}\n"
    )
    split, aggregated = sides_of(file, [], None)
    assert load(file, list(split.overrides)) == load(file)
    document = load(file, list(aggregated.overrides))
    assert (document.topology, document.decode.num_replicas) == ("aggregated", 3)
    assert document.nodes_for("decode").count is None  # as many as are there


def test_on_a_cluster_another_side_does_not_take_over_from_a_second_set_of_gpus(tmp_path: Path) -> None:
    file = written(tmp_path, f"{CLUSTER}kubernetes: {{upgrade: new-cluster}}\n")
    split, aggregated = (load(file, list(side.overrides)) for side in sides_of(file, [], None))
    assert (split.kubernetes.upgrade, aggregated.kubernetes.upgrade) == ("new-cluster", "in-place")


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("nodes.instance_type=g6.12xlarge", "nodes.instance_type (prefill g6.8xlarge, decode g6.12xlarge)"),
        ("nodes.selector={pool: b}", "nodes.selector (prefill none, decode {'pool': 'b'})"),
        ("nodes.zone=us-east-2b", "nodes.zone (prefill none, decode us-east-2b)"),
    ],
)
def test_phases_on_nodes_of_two_kinds_can_not_be_compared_with_one_engine_for_both(
    tmp_path: Path, field: str, said: str
) -> None:
    file = written(tmp_path, f"{CLUSTER}nodes: {{instance_type: g6.8xlarge}}\n")
    with pytest.raises(DocumentError) as refused:
        sides_of(file, [f"decode.{field}"], None)
    assert f"nodes of two kinds, by {said}" in str(refused.value)
    assert "diptych bench compare --results" in refused.value.hint


def test_a_number_of_replicas_that_changes_by_itself_can_not_be_compared(tmp_path: Path) -> None:
    file = written(tmp_path, f"{CLUSTER}decode: {{autoscaling_config: {{max_replicas: 2}}}}\n")
    with pytest.raises(DocumentError, match=r"decode\.autoscaling_config changes the number of devices"):
        sides_of(file, [], None)


def test_nodes_on_eks_have_their_list_price(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        "on: eks\nname: one\nmodel: Qwen/Qwen3-8B\neks: {region: us-east-1}\nnodes: {instance_type: g6.8xlarge}\n",
    )
    told = machines_of(of_document(file))
    assert told["devices"] == "1 × g6.8xlarge and 1 × g6.8xlarge"
    assert told["usd_per_hour"] == pytest.approx(2 * 2.0144)


def test_nodes_that_are_not_on_demand_have_none(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        "on: eks\nname: one\nmodel: Qwen/Qwen3-8B\neks: {region: us-east-1}\n"
        "nodes: {instance_type: g6.8xlarge, market: spot}\n",
    )
    assert machines_of(of_document(file))["usd_per_hour"] is None


def test_a_machine_on_ec2_is_known_by_its_firmware(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, cores=8, gpus=1)
    monkeypatch.setattr(bench_places, "_DMI", tmp_path)
    here = Up("one", LOCAL)
    assert machines_of(here) == {"devices": "1 GPU"}
    (tmp_path / "product_name").write_text("g6.8xlarge\n")
    assert machines_of(here) == {"devices": "g6.8xlarge, 1 GPU", "usd_per_hour": pytest.approx(2.0144)}


class Local:
    """Services of this machine, brought up in name only."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, already: bool = False) -> None:
        self.ended = 0
        self._already = already
        monkeypatch.setattr("diptych.local.up.bring_up", self._bring_up)

    def _bring_up(self, *_: object, hold: bool) -> Iterator[Service]:
        assert hold
        try:
            yield Service(a_state(), ServicePaths.of("one"), self._already)
        finally:
            self.ended += 1


@pytest.mark.parametrize("failure", [KeyboardInterrupt, EndpointError("It died.")])
def test_whatever_ends_a_side_takes_it_down(
    monkeypatch: pytest.MonkeyPatch, failure: type[BaseException] | BaseException
) -> None:
    local = Local(monkeypatch)
    with pytest.raises((KeyboardInterrupt, EndpointError)), brought_up(None, []) as up:
        assert up == Up("one", LOCAL)
        raise failure
    assert local.ended == 1


def test_a_service_that_is_up_is_not_measured_in_a_sides_place(monkeypatch: pytest.MonkeyPatch) -> None:
    Local(monkeypatch, already=True)
    with pytest.raises(NotUpError, match="is up already"), brought_up(None, []):
        pytest.fail("it was taken for a side")


def test_a_document_with_errors_is_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, cores=2)
    with pytest.raises((DocumentError, SetupError)):
        sides_of(None, ["engine_kwargs.no_such_argument=1"], None)
