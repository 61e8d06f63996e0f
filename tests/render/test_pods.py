"""The pods: what each container gets of its node, on which nodes they are, and what they must not have."""

import json
from dataclasses import replace
from typing import Any

import pytest

from diptych.render import names
from diptych.render.inputs import Facts
from diptych.render.layout import worker_groups
from diptych.render.pods import head_pod, volumes, worker_pod
from diptych.render.serve import cluster_serve_config
from diptych.render.staging import staged_folder
from diptych.serving.generation import IMAGE_ENV
from diptych.spec import Document

FACTS = Facts(serving_archive=b"code", zone="us-east-2a")


def document(**fields: Any) -> Document:
    return Document.model_validate({"on": "eks", "model": "Qwen/Qwen3-8B"} | fields)


def pod(phase: str = "decode", facts: Facts = FACTS, **fields: Any) -> dict[str, Any]:
    made = document(**fields)
    group = next(each for each in worker_groups(made) if each.phase == phase)
    template = worker_pod(made, facts, group)
    return template["spec"] | {"volumes": volumes(made, facts, group), "metadata": template["metadata"]}


def container(phase: str = "decode", **fields: Any) -> dict[str, Any]:
    found: dict[str, Any] = pod(phase, **fields)["containers"][0]
    return found


def environment(container: dict[str, Any]) -> dict[str, Any]:
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in container["env"]}


class TestAWorker:
    def test_knows_its_image_as_the_generation_of_its_replicas_reads_it(self) -> None:
        for phase in ("prefill", "decode"):
            made = container(phase)
            assert environment(made)[IMAGE_ENV] == made["image"]

    def test_has_all_of_its_node_that_kubernetes_can_give(self) -> None:
        limits = container()["resources"]["limits"]
        assert limits == {
            "cpu": "31",
            "memory": "113Gi",
            "nvidia.com/gpu": "1",
            "vpc.amazonaws.com/efa": "1",
        }
        assert container()["resources"]["requests"] == limits

    def test_has_the_share_that_the_document_gives_it(self) -> None:
        share = {"cpus": 8, "memory": "48GiB", "gpus": 2, "efa": 0, "hugepages_2mi": "1GiB"}
        limits = container(on="kubernetes", decode={"resources": share})["resources"]["limits"]
        assert limits == {"cpu": "8", "memory": "48Gi", "nvidia.com/gpu": "2", "hugepages-2Mi": "1Gi"}

    def test_has_its_own_address_and_shared_memory(self) -> None:
        spec = pod(decode={"resources": {"shared_memory": "16GiB"}})
        assert environment(spec["containers"][0])["VLLM_HOST_IP"] == {
            "fieldRef": {"fieldPath": "status.podIP"}
        }
        assert {"name": "shared-mem", "mountPath": "/dev/shm"} in spec["containers"][0]["volumeMounts"]
        assert {"name": "shared-mem", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}} in spec[
            "volumes"
        ]

    def test_never_has_the_address_for_kv_transfers_from_us(self) -> None:
        assert "VLLM_NIXL_SIDE_CHANNEL_HOST" not in json.dumps(pod())

    def test_asks_for_efa_where_its_instance_type_has_some_only(self) -> None:
        assert environment(container())["FI_PROVIDER"] == "efa"
        plain = container(nodes={"instance_type": "g6.xlarge"})
        assert "FI_PROVIDER" not in environment(plain)
        assert "vpc.amazonaws.com/efa" not in plain["resources"]["limits"]

    def test_mounts_no_devices_itself(self) -> None:
        paths = [each["hostPath"]["path"] for each in pod()["volumes"] if "hostPath" in each]
        assert not any(path.startswith("/dev") for path in paths)

    @pytest.mark.parametrize(("privileged", "is_so"), [("auto", False), ("never", False), ("always", True)])
    def test_is_privileged_only_where_the_document_insists(self, privileged: str, is_so: bool) -> None:
        security = container(kubernetes={"privileged": privileged})["securityContext"]
        assert security["privileged"] is is_so
        assert is_so or security["capabilities"] == {"add": ["IPC_LOCK"]}

    def test_has_no_rights_in_kubernetes(self) -> None:
        assert pod()["automountServiceAccountToken"] is False
        assert pod()["serviceAccountName"] == "diptych"

    def test_drains_before_it_ends_and_has_the_time_for_it(self) -> None:
        spec = pod()
        assert spec["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][-1] == "diptych.serving.drain"
        patience = int(environment(spec["containers"][0])["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"])
        assert 120 < patience < spec["terminationGracePeriodSeconds"]

    @pytest.mark.parametrize("lease_s", [10, 120, 3600])
    @pytest.mark.parametrize("phase", ["prefill", "decode"])
    def test_ends_after_ray_does_and_that_after_its_replicas(self, phase: str, lease_s: int) -> None:
        transfer = {"kv_transfer": {"lease_s": lease_s}}
        config = cluster_serve_config(document(**transfer), FACTS)["applications"][0]["args"]
        replicas_s = config[f"{phase}_config"]["deployment_config"]["graceful_shutdown_timeout_s"]
        spec = pod(phase, **transfer)
        ray_s = int(environment(spec["containers"][0])["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"])
        assert replicas_s < ray_s < spec["terminationGracePeriodSeconds"]
        assert phase == "decode" or replicas_s > lease_s


class TestTheKeys:
    def test_are_a_file_for_the_group_of_the_pods_that_face_clients_whatever_their_user(self) -> None:
        secret = next(each for each in pod()["volumes"] if each["name"] == "api-keys")["secret"]
        assert secret["defaultMode"] == 0o440
        assert pod()["securityContext"]["fsGroup"] > 0
        assert "securityContext" not in pod("prefill")
        assert secret["secretName"] == "diptych-api-keys"
        assert not any(each["name"] == "api-keys" for each in pod("prefill")["volumes"])

    def test_are_the_secret_that_the_document_names(self) -> None:
        volume = pod(access={"api_key_secret": "mine/clients"})["volumes"]
        secret = next(each for each in volume if each["name"] == "api-keys")["secret"]
        assert (secret["secretName"], secret["items"]) == ("mine", [{"key": "clients", "path": "keys"}])
        assert names.API_KEYS_FILE.endswith("/keys")


class TestThePlace:
    def test_on_eks_is_a_node_of_the_phase_and_the_zone_with_no_other_pod_of_it(self) -> None:
        spec = pod("prefill")
        assert spec["nodeSelector"] == {
            names.PHASE_LABEL: "prefill",
            names.SERVICE_LABEL: "diptych",
            "topology.kubernetes.io/zone": "us-east-2a",
        }
        apart = spec["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert apart[0]["topologyKey"] == "kubernetes.io/hostname"
        assert apart[0]["labelSelector"]["matchLabels"] == spec["metadata"]["labels"]

    def test_on_eks_may_be_a_node_of_another_phase_of_the_service_where_that_is_asked_for(self) -> None:
        spec = pod(facts=replace(FACTS, any_phase_nodes=True), topology="aggregated")
        assert spec["nodeSelector"] == {
            names.SERVICE_LABEL: "diptych",
            "topology.kubernetes.io/zone": "us-east-2a",
        }

    def test_on_eks_is_in_any_zone_before_one_was_chosen(self) -> None:
        assert "topology.kubernetes.io/zone" not in pod(facts=Facts(serving_archive=b"code"))["nodeSelector"]

    def test_elsewhere_is_what_the_document_selects_spread_where_that_is_possible(self) -> None:
        nodes = {"selector": {"role": "gpu"}, "instance_type": "g6.8xlarge"}
        spec = pod(on="kubernetes", nodes=nodes)
        assert spec["nodeSelector"] == {
            "role": "gpu",
            "node.kubernetes.io/instance-type": "g6.8xlarge",
        }
        assert spec["topologySpreadConstraints"][0]["whenUnsatisfiable"] == "ScheduleAnyway"
        together = spec["affinity"]["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"][0]
        assert together["podAffinityTerm"]["topologyKey"] == "topology.kubernetes.io/zone"

    def test_may_have_the_usual_taint_or_those_that_the_document_names(self) -> None:
        assert {each["key"] for each in pod()["tolerations"]} == {"nvidia.com/gpu", "aws.amazon.com/efa"}
        own = [{"key": "team", "operator": "Exists"}, {"key": "a", "operator": "Equal", "value": "b"}]
        assert pod(nodes={"tolerations": own})["tolerations"] == own


class TestTheModel:
    def test_is_fetched_before_the_engine_starts_and_then_read_only(self) -> None:
        spec = pod(facts=Facts(serving_archive=b"code", model_revision="abc"))
        stage = spec["initContainers"][0]
        assert stage["command"] == [
            *("python", "-m", "diptych.serving.stage", "Qwen/Qwen3-8B"),
            *("--revision", "abc", "--into", "/models/Qwen--Qwen3-8B/abc"),
        ]
        assert "nvidia.com/gpu" not in stage["resources"]["limits"]
        main = spec["containers"][0]
        assert {"name": "models", "mountPath": "/models", "readOnly": True} in main["volumeMounts"]
        assert environment(main)["HF_HUB_OFFLINE"] == "1"

    @pytest.mark.parametrize(
        ("source", "folder"),
        [
            ("s3://bucket/../../etc", "/models/s3--bucket--..--..--etc"),
            ("s3://bucket", "/models/s3--bucket"),
            ("Qwen/Qwen3-8B", "/models/Qwen--Qwen3-8B/main"),
        ],
    )
    def test_lies_in_a_folder_below_the_nodes_models(self, source: str, folder: str) -> None:
        assert staged_folder(Document.model_validate({"on": "eks", "model": source}), Facts()) == folder

    def test_lies_in_a_folder_of_its_own_whatever_it_is_called(self) -> None:
        sources = [
            "s3://bucket/a/b",
            "s3://bucket/a--b",
            "s3://bucket/a-/b",
            "s3://bucket/a!",
            "s3://bucket/a*",
        ]
        sources += [f"s3://bucket/{'a' * 300}", f"s3://bucket/{'a' * 301}"]
        found = {
            staged_folder(
                Document.model_validate({"on": "eks", "model": {"source": each, "name": "m"}}), Facts()
            )
            for each in sources
        }
        assert len(found) == len(sources)
        assert all(len(each.removeprefix("/models/")) < 250 for each in found)

    def test_lies_on_local_disks_where_the_type_has_some(self) -> None:
        def folder(**fields: Any) -> str:
            volume = next(each for each in pod(**fields)["volumes"] if each["name"] == "models")
            path: str = volume["hostPath"]["path"]
            return path

        assert folder() == "/mnt/k8s-disks/0/diptych"
        assert folder(on="kubernetes") == "/var/lib/diptych"
        assert folder(staging={"path": "/data/models"}) == "/data/models"

    def test_is_fetched_by_the_engine_itself_without_staging(self) -> None:
        spec = pod(model={"source": "Qwen/Qwen3-8B", "token_env": "HF"}, staging={"enabled": False})
        assert "initContainers" not in spec
        assert "HF_HUB_OFFLINE" not in environment(spec["containers"][0])
        assert environment(spec["containers"][0])["HF_TOKEN"] == {
            "secretKeyRef": {"name": "diptych-hf-token", "key": "token"}
        }

    def test_that_is_in_the_image_is_taken_from_there(self) -> None:
        spec = pod(model={"source": "/opt/model", "name": "m"})
        assert "initContainers" not in spec
        assert not any(each["name"] == "models" for each in spec["volumes"])

    def test_needs_the_token_only_where_it_is_fetched_and_only_if_there_is_one(self) -> None:
        private = pod(model={"source": "Qwen/Qwen3-8B", "token_secret": "hub/read"})
        secret = {"secretKeyRef": {"name": "hub", "key": "read"}}
        assert environment(private["initContainers"][0])["HF_TOKEN"] == secret
        assert "HF_TOKEN" not in environment(private["containers"][0])
        assert "HF_TOKEN" not in json.dumps(pod())


def test_no_secret_is_written_down_and_nothing_phones_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF", "hf_secret")
    text = json.dumps([pod(model={"source": "a/b", "token_env": "HF"}), head_pod(document())])
    assert "hf_secret" not in text
    for each in (container(), head_pod(document())["spec"]["containers"][0]):
        assert environment(each)["VLLM_NO_USAGE_STATS"] == environment(each)["VLLM_DO_NOT_TRACK"] == "1"
        assert environment(each)["RAY_USAGE_STATS_ENABLED"] == "0"


def test_an_image_of_ones_own_with_its_secret_is_used_by_all_containers() -> None:
    image = {"name": "mine:1", "pull_policy": "Always", "pull_secret": "registry"}
    spec = pod(image=image)
    for each in (*spec["containers"], *spec["initContainers"]):
        assert (each["image"], each["imagePullPolicy"]) == ("mine:1", "Always")
    assert spec["imagePullSecrets"] == [{"name": "registry"}]


def test_a_type_by_the_label_of_the_nodes_gives_pods_what_such_a_node_has() -> None:
    label = {"node.kubernetes.io/instance-type": "p5en.48xlarge"}
    labelled = container(on="kubernetes", nodes={"selector": label})
    assert labelled["resources"]["limits"]["vpc.amazonaws.com/efa"] == "16"
    assert pod(on="kubernetes", nodes={"selector": label})["nodeSelector"] == label
    other = container(
        on="kubernetes", nodes={"selector": {"node.kubernetes.io/instance-type": "Standard_NC24ads"}}
    )
    assert "vpc.amazonaws.com/efa" not in other["resources"]["limits"]
