"""The RayService that KubeRay gets, and the traps that it must keep out of."""

import base64
import json
from typing import Any

import pytest
import yaml

from diptych.errors import DocumentError
from diptych.render import names
from diptych.render.inputs import Facts
from diptych.render.rayservice import ray_service, rayservice_objects, service_account, start_deadline_s
from diptych.spec import Document

FACTS = Facts(serving_archive=b"code")


def document(**fields: Any) -> Document:
    return Document.model_validate({"on": "eks", "model": "Qwen/Qwen3-8B"} | fields)


def service(**fields: Any) -> dict[str, Any]:
    return ray_service(document(**fields), FACTS)


def cluster(**fields: Any) -> dict[str, Any]:
    found: dict[str, Any] = service(**fields)["spec"]["rayClusterConfig"]
    return found


def groups(**fields: Any) -> dict[str, dict[str, Any]]:
    return {group["groupName"]: group for group in cluster(**fields)["workerGroupSpecs"]}


def test_the_serve_configuration_is_a_text_that_holds_yaml() -> None:
    parsed = yaml.safe_load(service()["spec"]["serveConfigV2"])
    assert parsed["applications"][0]["import_path"] == "diptych.serving.builder:build_app"


@pytest.mark.parametrize(("upgrade", "strategy"), [("in-place", "None"), ("new-cluster", "NewCluster")])
def test_a_changed_pod_starts_a_second_cluster_only_where_the_document_says_so(
    upgrade: str, strategy: str
) -> None:
    assert service(kubernetes={"upgrade": upgrade})["spec"]["upgradeStrategy"] == {"type": strategy}


def test_nothing_that_kuberay_refuses_or_ignores_is_written() -> None:
    text = json.dumps(service())
    for word in ("serviceUnhealthySecondThreshold", "deploymentUnhealthySecondThreshold", "headService"):
        assert word not in text
    for group in groups().values():
        # KubeRay takes Ray's resources in one place only.
        assert not {"num-cpus", "num-gpus", "memory", "resources"} & {*group["rayStartParams"]}
        assert {"minReplicas", "maxReplicas"} <= {*group}


def test_pods_have_no_labels_of_kubernetes_own_names_which_kuberays_services_select_by() -> None:
    head = cluster()["headGroupSpec"]["template"]["metadata"]["labels"]
    assert all(label.startswith(names.DOMAIN) for label in head)


def test_ray_asks_for_a_token_and_the_version_is_the_images() -> None:
    assert cluster()["authOptions"] == {"mode": "token"}
    assert cluster()["rayVersion"] == "2.58.0"
    assert cluster(image={"name": "mine:1", "ray_version": "2.60.0"})["rayVersion"] == "2.60.0"


def test_an_image_that_nobody_knows_must_say_which_ray_it_has() -> None:
    with pytest.raises(DocumentError, match="mine:1") as refused:
        service(image={"name": "mine:1"})
    assert "image.ray_version" in refused.value.hint


def test_the_result_of_our_dockerfile_has_its_bases_ray() -> None:
    assert cluster(image={"name": "mine:1", "packages": ["accelerate"]})["rayVersion"] == "2.58.0"


class TestTheHead:
    def test_has_no_resources_for_replicas_and_is_on_a_system_node(self) -> None:
        head = cluster()["headGroupSpec"]
        assert head["rayStartParams"]["num-cpus"] == head["rayStartParams"]["num-gpus"] == "0"
        assert head["template"]["spec"]["nodeSelector"] == {names.PHASE_LABEL: "system"}
        resources = head["template"]["spec"]["containers"][0]["resources"]
        assert resources["limits"] == {"cpu": "2", "memory": "8Gi"}

    def test_is_where_the_document_says_on_another_cluster(self) -> None:
        selected = cluster(on="kubernetes", kubernetes={"head_selector": {"role": "system"}})
        assert selected["headGroupSpec"]["template"]["spec"]["nodeSelector"] == {"role": "system"}
        assert "nodeSelector" not in cluster(on="kubernetes")["headGroupSpec"]["template"]["spec"]

    def test_has_the_port_that_kuberay_makes_the_service_for(self) -> None:
        ports = cluster(access={"port": 9000})["headGroupSpec"]["template"]["spec"]["containers"][0]["ports"]
        assert {"name": "serve", "containerPort": 9000} in ports
        assert {"name": "metrics", "containerPort": 8080} in ports

    def test_serves_clients_only_where_all_workers_may_be_gone(self) -> None:
        assert service()["spec"]["excludeHeadPodFromServeSvc"] is True
        none = {"autoscaling_config": {"min_replicas": 0, "max_replicas": 2}}
        assert service(decode=none)["spec"]["excludeHeadPodFromServeSvc"] is False


class TestAutoscaling:
    SCALED: dict[str, Any] = {"autoscaling_config": {"min_replicas": 1, "max_replicas": 4}}  # noqa: RUF012

    def test_is_off_unless_a_phase_asks_for_it(self) -> None:
        assert not {"enableInTreeAutoscaling", "autoscalerOptions"} & {*cluster()}

    def test_makes_pods_between_the_fewest_and_the_most(self) -> None:
        scaled = groups(prefill=self.SCALED)
        bounds = {name: (group["minReplicas"], group["maxReplicas"]) for name, group in scaled.items()}
        assert bounds == {"prefill": (1, 4), "decode": (1, 1)}

    def test_restarts_a_dead_head_and_may_talk_to_kubernetes(self) -> None:
        scaled = cluster(prefill=self.SCALED)
        assert scaled["autoscalerOptions"]["version"] == "v1"
        assert scaled["headGroupSpec"]["template"]["spec"]["automountServiceAccountToken"] is True
        assert cluster()["headGroupSpec"]["template"]["spec"]["automountServiceAccountToken"] is False


class TestTheCode:
    def test_lies_in_a_config_map_that_has_another_name_when_it_changes(self) -> None:
        for code in (b"code", b"other code"):
            objects = {
                each["kind"]: each for each in rayservice_objects(document(), Facts(serving_archive=code))
            }
            config_map = objects["ConfigMap"]
            assert base64.b64decode(config_map["binaryData"]["serving.zip"]) == code
            pods = json.dumps(objects["RayService"]["spec"]["rayClusterConfig"])
            assert pods.count(config_map["metadata"]["name"]) == 3  # the head and two worker groups
        first, second = (
            names.code_config_map(document(), code).rpartition("-")[2] for code in (b"code", b"other code")
        )
        assert first != second
        assert len(first) == 12

    def test_must_be_among_the_facts(self) -> None:
        with pytest.raises(ValueError, match="serving_archive"):
            rayservice_objects(document(), Facts())


def test_kuberay_gives_up_later_on_a_larger_checkpoint_and_late_on_one_of_unknown_size() -> None:
    small, large = (start_deadline_s(Facts(checkpoint_bytes=size)) for size in (10**9, 10**12))
    assert 2700 < small < 3000
    assert large == 2700 + 20_000
    assert start_deadline_s(Facts()) == 6300
    assert service()["metadata"]["annotations"]["ray.io/initializing-timeout"] == "6300s"


def test_the_model_that_comes_with_diptych_is_for_this_machine() -> None:
    with pytest.raises(DocumentError, match="embedded"):
        service(model="embedded")


def test_a_gpu_too_many_never_lands_on_a_node_of_another_phase() -> None:
    replicas = yaml.safe_load(service()["spec"]["serveConfigV2"])["applications"][0]["args"]
    for phase, group in groups().items():
        assert group["resources"] == {phase: "1"}
        bundles = replicas[f"{phase}_config"]["placement_group_config"]["bundles"]
        assert bundles == [{phase: 0.001}]


def test_the_service_account_has_the_annotations_by_which_a_cluster_gives_a_role() -> None:
    role = {"eks.amazonaws.com/role-arn": "arn:aws:iam::111122223333:role/read"}
    account = service_account(document(on="kubernetes", kubernetes={"service_account_annotations": role}))
    assert account["metadata"]["annotations"] == role
    assert "annotations" not in service_account(document())["metadata"]
