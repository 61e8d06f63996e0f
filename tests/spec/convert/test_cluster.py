"""KubeRay's side of a manifest."""

from typing import Any

import pytest

from diptych.spec import Document
from spec.convert.manifest_values import IMAGE, convert, engine, group, pod, said, service, split, whole

GPU = {"limits": {"nvidia.com/gpu": "1"}}
PAIR = split(engine(), engine())


def worker(**fields: Any) -> dict[str, Any]:
    return group("gpu", pod(**({"resources": GPU} | fields)))


def test_limits_become_the_shares_of_the_pods() -> None:
    limits = {
        "cpu": "31500m",
        "memory": "60G",
        "nvidia.com/gpu": 2,
        "vpc.amazonaws.com/efa": "0",
        "hugepages-2Mi": "5120Mi",
    }
    values, _ = convert(service(PAIR, worker(resources={"limits": limits})))
    assert values["prefill"]["resources"] == values["decode"]["resources"]
    assert values["decode"]["resources"] == {
        "cpus": 31,
        "memory": "60GB",
        "gpus": 2,
        "efa": 0,
        "hugepages_2mi": "5GiB",
    }
    Document.model_validate(values)


def test_what_is_only_asked_for_counts_where_there_is_no_limit() -> None:
    resources = {
        "requests": {"cpu": "500m", "memory": "64Gi"},
        "limits": {"nvidia.com/gpu": 1, "memory": "80Gi"},
    }
    values, remarks = convert(service(PAIR, worker(resources=resources)))
    assert values["decode"]["resources"] == {"cpus": 1, "memory": "80GiB", "gpus": 1}
    assert said(remarks, "worker group gpu: resources.requests.memory") == [
        "worker group gpu: resources.requests.memory: a pod asks for what it is limited to"
    ]


def test_an_amount_that_is_none_is_named() -> None:
    values, remarks = convert(
        service(PAIR, worker(resources={"limits": {"memory": "lots", "nvidia.com/gpu": 1}}))
    )
    assert values["decode"]["resources"] == {"gpus": 1}
    assert (
        "it is 'lots', which is no amount; correct it"
        in said(remarks, "worker group gpu: resources.limits.memory")[0]
    )


def test_nodes_are_chosen_by_their_labels_and_taints() -> None:
    template = pod({"role": "gpu", "example.com/pool": "a"}, resources=GPU)
    template["spec"]["tolerations"] = [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    values, _ = convert(service(PAIR, group("gpu", template)))
    assert values["nodes"] == {
        "selector": {"role": "gpu", "example.com/pool": "a"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
    }


def test_a_label_with_a_known_instance_type_says_what_the_nodes_have() -> None:
    label = "node.kubernetes.io/instance-type"
    values, _ = convert(service(PAIR, group("gpu", pod({label: "g6.8xlarge", "a": "b"}, resources=GPU))))
    assert values["nodes"] == {"instance_type": "g6.8xlarge", "selector": {"a": "b"}}
    values, _ = convert(service(PAIR, group("gpu", pod({label: "z9.large"}, resources=GPU))))
    assert values["nodes"] == {"selector": {label: "z9.large"}}


def test_each_phase_gets_the_group_that_bears_its_name() -> None:
    groups = [
        group("decode-l4", pod({"gpu": "l4"}, resources=GPU)),
        group("prefill-l40s", pod({"gpu": "l40s"}, resources={"limits": {"nvidia.com/gpu": 2}})),
    ]
    values, remarks = convert(service(PAIR, *groups))
    assert values["prefill"] == {"nodes": {"selector": {"gpu": "l40s"}}, "resources": {"gpus": 2}}
    assert values["decode"] == {"nodes": {"selector": {"gpu": "l4"}}, "resources": {"gpus": 1}}
    assert "nodes" not in values
    assert [each for each in remarks if each.do] == []


def test_each_phase_gets_the_group_whose_resources_it_asks_for() -> None:
    serve = split(
        engine(placement_group_config={"bundles": [{"GPU": 1, "fast": 0.01}]}),
        engine(deployment_config={"ray_actor_options": {"resources": {"slow": 0.01}}}),
    )
    groups = [
        group("a", pod({"gpu": "l4"}, resources=GPU), rayStartParams={"resources": "'{\"slow\": 1}'"}),
        group("b", pod({"gpu": "l40s"}, resources=GPU), resources={"fast": "1"}),
    ]
    values, _ = convert(service(serve, *groups))
    assert values["prefill"]["nodes"] == {"selector": {"gpu": "l40s"}}
    assert values["decode"]["nodes"] == {"selector": {"gpu": "l4"}}


def test_each_phase_gets_the_group_with_its_gpu() -> None:
    label = "node.kubernetes.io/instance-type"
    serve = split(engine(accelerator_type="L40S"), engine(accelerator_type="L4"))
    groups = [
        group("a", pod({label: "g6.8xlarge"}, resources=GPU)),
        group("b", pod({label: "g6e.8xlarge"}, resources=GPU)),
    ]
    values, _ = convert(service(serve, *groups))
    assert values["prefill"]["nodes"] == {"instance_type": "g6e.8xlarge"}
    values, _ = convert(service(serve, *groups), on="eks")
    assert values["prefill"]["nodes"] == {"instance_type": "g6e.8xlarge"}
    assert values["decode"]["nodes"] == {"instance_type": "g6.8xlarge"}


def test_groups_that_can_not_be_told_apart_are_asked_for() -> None:
    groups = [group(name, pod({"pool": name}, resources=GPU)) for name in ("a", "b")]
    values, remarks = convert(service(PAIR, *groups))
    assert "nodes" not in values
    assert "resources" not in values.get("prefill", {})
    assert said(remarks, "rayClusterConfig.workerGroupSpecs") == [
        "rayClusterConfig.workerGroupSpecs: which of a, b runs prefill and decode can't be told; "
        "set nodes and resources in prefill and decode"
    ]


def test_a_group_without_gpus_is_left_out() -> None:
    groups = [group("cpu", pod()), worker()]
    values, remarks = convert(service(whole(engine()), *groups))
    assert values["decode"]["resources"] == {"gpus": 1}
    assert said(remarks, "worker group cpu") == [
        "worker group cpu: it has no GPUs, and Diptych has workers with GPUs only"
    ]


def test_the_image_and_the_versions_it_does_not_tell() -> None:
    values, _ = convert(service(PAIR, worker(imagePullPolicy="Always")))
    assert values["image"] == {"name": IMAGE, "pull_policy": "Always"}
    manifest = service(PAIR, worker())
    manifest["spec"]["rayClusterConfig"]["rayVersion"] = "2.60.0"
    manifest["spec"]["rayClusterConfig"]["workerGroupSpecs"][0]["template"]["spec"]["imagePullSecrets"] = [
        {"name": "registry"}
    ]
    values, _ = convert(manifest)
    assert values["image"] == {"name": IMAGE, "ray_version": "2.60.0", "pull_secret": "registry"}


def test_two_images_are_one_with_a_remark() -> None:
    values, remarks = convert(service(PAIR, worker(), head=pod(image="other:1")))
    assert values["image"] == {"name": IMAGE}
    assert f"the pods have several images, and {IMAGE} was taken" in said(remarks, "rayClusterConfig")[0]


@pytest.mark.parametrize("variable", ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"])
def test_the_token_stays_a_reference(variable: str) -> None:
    reference = {"secretKeyRef": {"name": "hugging-face", "key": "token"}}
    values, remarks = convert(service(PAIR, worker(env=[{"name": variable, "valueFrom": reference}])))
    assert values["model"]["token_secret"] == "hugging-face/token"
    assert not [each for each in remarks if variable in each.where]


def test_the_token_may_be_with_an_init_container() -> None:
    template = pod(resources=GPU)
    reference = {"secretKeyRef": {"name": "hub", "key": "read"}}
    template["spec"]["initContainers"] = [
        {
            "name": "fetch",
            "command": ["hf", "download"],
            "env": [{"name": "HF_TOKEN", "valueFrom": reference}],
        }
    ]
    values, remarks = convert(service(PAIR, group("gpu", template)))
    assert values["model"]["token_secret"] == "hub/read"
    assert "look over what yours did" in said(remarks, "worker group gpu: initContainers")[0]


def test_a_token_in_clear_text_is_neither_copied_nor_shown() -> None:
    values, remarks = convert(service(PAIR, worker(env=[{"name": "HF_TOKEN", "value": "hf_secret"}])))
    assert "hf_secret" not in f"{values} {remarks}"
    [line] = said(remarks, "worker group gpu: env.HF_TOKEN")
    assert "name that in model.token_secret" in line


def test_other_variables_have_no_place_in_a_document() -> None:
    _, remarks = convert(service(PAIR, worker(env=[{"name": "UCX_TLS", "value": "tcp"}], envFrom=[{"a": 1}])))
    assert said(remarks, "worker group gpu: env.UCX_TLS") == [
        "worker group gpu: env.UCX_TLS: a document holds no environment variables; "
        "set it in the image (image.name) if the engine needs it"
    ]
    assert len(said(remarks, "worker group gpu: envFrom")) == 1


def test_volumes_other_than_shared_memory_are_named() -> None:
    template = pod(
        resources=GPU,
        volumeMounts=[{"name": "shm", "mountPath": "/dev/shm"}, {"name": "data", "mountPath": "/data"}],
    )
    template["spec"]["volumes"] = [
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}},
        {"name": "data", "persistentVolumeClaim": {"claimName": "x"}},
    ]
    values, remarks = convert(service(PAIR, group("gpu", template)))
    assert values["decode"]["resources"]["shared_memory"] == "16GiB"
    [line] = said(remarks, "worker group gpu: volume data")
    assert "it mounts a volume (persistentVolumeClaim) at /data" in line


def test_the_strategy_of_upgrades_is_kept() -> None:
    for kind, upgrade in {"None": "in-place", "NewCluster": "new-cluster"}.items():
        values, _ = convert(service(PAIR, worker(), upgradeStrategy={"type": kind}))
        assert values["kubernetes"]["upgrade"] == upgrade


def test_without_a_namespace_one_must_be_set() -> None:
    manifest = service(PAIR, worker())
    del manifest["metadata"]["namespace"]
    values, remarks = convert(manifest)
    assert "kubernetes" not in values
    assert "set kubernetes.namespace" in said(remarks, "metadata.namespace")[0]


def test_on_this_machine_there_are_no_pods() -> None:
    values, remarks = convert(service(PAIR, worker()), on="local")
    assert set(values) == {"version", "name", "on", "model"}
    assert said(remarks, "rayClusterConfig") == ["rayClusterConfig: there are no pods on this machine"]


def test_on_eks_labels_become_an_instance_type_a_zone_and_a_market() -> None:
    labels = {
        "node.kubernetes.io/instance-type": "g6e.12xlarge",
        "topology.kubernetes.io/zone": "eu-west-1b",
        "eks.amazonaws.com/capacityType": "SPOT",
        "role": "gpu",
    }
    resources = {"limits": {"nvidia.com/gpu": 2, "vpc.amazonaws.com/efa": 1, "memory": "100Gi"}}
    values, remarks = convert(service(PAIR, group("gpu", pod(labels, resources=resources))), on="eks")
    assert values["nodes"] == {"instance_type": "g6e.12xlarge", "market": "spot"}
    assert values["eks"] == {"region": "eu-west-1", "zone": "eu-west-1b"}
    assert values["decode"]["resources"] == {"gpus": 2}
    assert said(remarks, "prefill: nodeSelector") == [
        "prefill: nodeSelector: Diptych makes the nodes, and labels them itself (role)"
    ]
    Document.model_validate(values)


def test_on_eks_an_accelerator_becomes_the_smallest_instance_type_with_efa() -> None:
    serve = split(*[engine(accelerator_type="H200", engine_kwargs={"tensor_parallel_size": 8})] * 2)
    values, remarks = convert(serve, on="eks")
    assert values["nodes"]["instance_type"] in ("p5e.48xlarge", "p5en.48xlarge")
    assert "the smallest with 8 × H200 and EFA" in said(remarks, "decode: nodes.instance_type")[0]
    values, remarks = convert(split(*[engine(accelerator_type="A10G")] * 2), on="eks")
    assert values["nodes"]["instance_type"] == "g5.8xlarge"


def test_on_eks_what_the_manifest_does_not_name_is_asked_for() -> None:
    values, remarks = convert(PAIR, on="eks")
    assert "nodes" not in values
    assert "set nodes.instance_type" in said(remarks, "prefill: nodes.instance_type")[0]
    assert "set eks.region" in said(remarks, "region")[0]
    values, _ = convert(PAIR, on="eks", instance_type="g6.8xlarge")
    assert values["nodes"] == {"instance_type": "g6.8xlarge"}


@pytest.mark.parametrize(
    ("path", "mount", "why", "do"),
    [
        ("/mnt/models", "/models", "stages the model", "set staging.path to /mnt/models"),
        ("/dev/infiniband", "/dev/infiniband", "the device plugins", "leave it out"),
        ("/dev/shm", "/dev/shm", "shared memory of their own", "resources.shared_memory"),
        ("/dev/shm", "/cache", "shared memory of their own", "resources.shared_memory"),
        ("/var/lib/kubelet", "/kubelet", "the node's system", "put what it holds into the image"),
    ],
)
def test_a_folder_of_the_node_is_proposed_for_models_only_where_it_can_hold_some(
    path: str, mount: str, why: str, do: str
) -> None:
    template = pod(resources=GPU, volumeMounts=[{"name": "node", "mountPath": mount}])
    template["spec"]["volumes"] = [{"name": "node", "hostPath": {"path": path}}]
    _, remarks = convert(service(whole(engine()), group("gpu", template)))
    [line] = said(remarks, "worker group gpu: volume node")
    assert why in line
    assert do in line
    assert ("staging.path" in line) is (path == "/mnt/models")


def test_the_nodes_network_is_not_to_be_added_again() -> None:
    template = pod(resources=GPU)
    template["spec"]["hostNetwork"] = True
    _, remarks = convert(service(whole(engine()), group("gpu", template)))
    [line] = said(remarks, "worker group gpu: hostNetwork")
    assert line.endswith("leave it out")
