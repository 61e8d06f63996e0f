import pytest

from diptych.catalog.instances import (
    ACCELERATOR_TYPES,
    GIB,
    MIB,
    USABLE_GIB,
    InstanceType,
    instance_type,
    instance_types,
    nearest_with_efa,
)

WITH_EFA = {
    *(f"g4dn.{size}" for size in ("8xlarge", "12xlarge", "16xlarge", "metal")),
    *(f"{g}.{size}xlarge" for g in ("g5", "g6", "g6e") for size in (8, 12, 16, 24, 48)),
    *(f"{g}.{size}xlarge" for g in ("g7", "g7e") for size in (8, 12, 24, 48)),
    "gr6.8xlarge",
    "p3dn.24xlarge",
    "p4d.24xlarge",
    "p4de.24xlarge",
    "p5.4xlarge",
    "p5.48xlarge",
    "p5e.48xlarge",
    "p5en.48xlarge",
    "p6-b200.48xlarge",
    "p6-b300.48xlarge",
}


def known(name: str) -> InstanceType:
    found = instance_type(name)
    assert found is not None
    return found


def names(types: "filter[InstanceType]") -> set[str]:
    return {each.name for each in types}


def test_g6_8xlarge_is_as_ec2_and_eks_describe_it() -> None:
    assert known("g6.8xlarge") == InstanceType(
        name="g6.8xlarge",
        gpus=1,
        gpu="l4",
        gpu_memory_bytes=22888 * MIB,
        vcpus=32,
        memory_bytes=128 * GIB,
        network_gbps=25.0,
        nvme_bytes=900 * 10**9,
        efa_interfaces=1,
        allocatable_cpu_millis=31850,
        allocatable_memory_bytes=118312 * MIB,
        usd_per_hour=2.0144,
    )


def test_the_37_gpu_types_with_efa_are_there() -> None:
    assert len(WITH_EFA) == 37
    assert names(filter(lambda each: each.has_efa, instance_types().values())) == WITH_EFA


@pytest.mark.parametrize(
    ("name", "interfaces"),
    [
        ("g6e.24xlarge", 2),
        ("g7e.48xlarge", 4),
        ("p5.48xlarge", 32),
        ("p5en.48xlarge", 16),
        ("p6-b200.48xlarge", 8),
    ],
)
def test_large_types_have_several_efa_interfaces(name: str, interfaces: int) -> None:
    assert known(name).efa_interfaces == interfaces


def test_a_type_for_system_nodes_has_no_gpu_and_no_efa() -> None:
    node = known("m7i.xlarge")
    assert (node.gpus, node.gpu, node.accelerator_type, node.has_efa) == (0, None, None, False)
    assert (node.allocatable_cpu_millis, node.allocatable_memory_bytes) == (3920, 14162 * MIB)
    assert node.usd_per_hour == 0.2016
    for family in ("m5", "m6i", "m7i", "m7a", "c6i", "c7i", "r6i", "r7i"):
        assert all(
            f"{family}.{size}" in instance_types() for size in ("large", "xlarge", "2xlarge", "4xlarge")
        )


def test_every_type_leaves_pods_less_than_it_has() -> None:
    for each in instance_types().values():
        assert 0 < each.allocatable_cpu_millis < each.vcpus * 1000, each.name
        assert 0 < each.allocatable_memory_bytes < each.memory_bytes, each.name
        assert each.network_gbps > 0, each.name


def test_only_p5e_has_no_price_on_demand() -> None:
    assert names(filter(lambda each: each.usd_per_hour is None, instance_types().values())) == {
        "p5e.48xlarge"
    }


def test_a_type_nobody_knows_is_none() -> None:
    assert instance_type("g6.9xlarge") is None


def test_slices_of_a_gpu_count_no_whole_one() -> None:
    slice_of_l4 = known("g6f.xlarge")
    assert (slice_of_l4.gpu, slice_of_l4.gpus, slice_of_l4.sliced_gpu) == ("l4", 0, True)
    assert slice_of_l4.usable_gpu_memory_bytes < slice_of_l4.gpu_memory_bytes == 2861 * MIB
    assert not known("g6.xlarge").sliced_gpu
    assert not known("m5.large").sliced_gpu


def test_gpudirect_rdma_begins_with_p4d() -> None:
    direct = names(filter(lambda each: each.gpudirect_rdma, instance_types().values()))
    assert direct == {name for name in WITH_EFA if name.startswith(("p4", "p5", "p6"))}


def test_eksctl_runs_its_efa_plugin_on_what_its_list_names() -> None:
    missing = names(
        filter(lambda each: each.has_efa and not each.efa_plugin_by_eksctl, instance_types().values())
    )
    blackwell = {name for name in WITH_EFA if name.startswith(("g7", "p6"))}
    assert missing == blackwell | {"p5.4xlarge"}
    assert not known("g6.xlarge").efa_plugin_by_eksctl


def test_capacity_blocks_are_for_p4d_and_later() -> None:
    assert known("p5.48xlarge").capacity_blocks
    assert known("p6-b300.48xlarge").capacity_blocks
    assert not known("p3dn.24xlarge").capacity_blocks
    assert not known("g6.48xlarge").capacity_blocks


@pytest.mark.parametrize(
    ("name", "on_demand", "spot"),
    [
        ("g6.8xlarge", "L-DB2E81BA", "L-3819A6DF"),
        ("gr6.8xlarge", "L-DB2E81BA", "L-3819A6DF"),
        ("p5en.48xlarge", "L-417A185B", "L-7212CCBC"),
        ("m7i.xlarge", "L-1216C47A", "L-34B43A08"),
    ],
)
def test_a_quota_counts_each_type(name: str, on_demand: str, spot: str) -> None:
    assert (known(name).quota, known(name).spot_quota) == (on_demand, spot)


def test_accelerator_types_are_rays_own_words() -> None:
    accelerators = pytest.importorskip("ray.util.accelerators.accelerators")
    assert set(ACCELERATOR_TYPES.values()) <= {
        each for each in vars(accelerators).values() if isinstance(each, str)
    }
    gpus = {each.gpu for each in instance_types().values()} - {None}
    assert gpus - set(ACCELERATOR_TYPES) == {"rtx-pro-4500"}
    assert known("g6e.8xlarge").accelerator_type == "L40S"


def test_usable_memory_is_what_torch_reports() -> None:
    assert known("g6.8xlarge").usable_gpu_memory_bytes == int(22.03 * GIB)
    assert known("p4de.24xlarge").usable_gpu_memory_bytes > 2 * known("p4d.24xlarge").usable_gpu_memory_bytes
    for each in filter(lambda each: each.gpu, instance_types().values()):
        assert 0.88 < each.usable_gpu_memory_bytes / each.gpu_memory_bytes < 1, each.name


def test_every_reported_gpu_is_one_of_the_table() -> None:
    there = {(each.gpu, each.gpu_memory_bytes // MIB) for each in instance_types().values()}
    assert set(USABLE_GIB) <= there


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("g6.xlarge", "g6.8xlarge"),
        ("g6.8xlarge", "g6.8xlarge"),
        ("g6.12xlarge", "g6.12xlarge"),
        ("g6e.4xlarge", "g6e.8xlarge"),
        ("g7.2xlarge", "g7.8xlarge"),
        ("gr6.4xlarge", "gr6.8xlarge"),
        ("g6.9xlarge", "g6.8xlarge"),
    ],
)
def test_the_nearest_type_with_efa_has_as_many_gpus(name: str, nearest: str) -> None:
    assert nearest_with_efa(name) == known(nearest)


@pytest.mark.parametrize("name", ["g6f.xlarge", "m7i.xlarge", "nonsense"])
def test_a_family_without_efa_has_no_nearest(name: str) -> None:
    assert nearest_with_efa(name) is None
