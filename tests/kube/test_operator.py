"""The step `operator`: installed at a version, shared by documents, and left alone where it is somebody else's."""

import subprocess
import time
from dataclasses import replace
from typing import Any

import pytest

from diptych.errors import ClusterError, SetupError
from diptych.kube import operator
from diptych.kube.job import Job, StepStatus
from diptych.kube.release import VERSION_NOTE
from fakes.kubernetes import crds, install_operator
from kube.jobs import told
from kube.world import NAMESPACE, World

OURS = "kuberay-operator"


@pytest.fixture
def ready(bare: World) -> World:
    """A cluster that has KubeRay's CRDs of 1.7.0, as Diptych puts them there."""
    put_crds(bare, "1.7.0")
    return bare


def put_crds(bare: World, version: str | None) -> None:
    """KubeRay's CRDs, as Diptych puts them there, or (version None) as somebody else does."""
    for definition in crds():
        if version is not None:
            definition["metadata"].setdefault("annotations", {})[VERSION_NOTE] = version
            definition["metadata"]["labels"] = {"app.kubernetes.io/managed-by": "diptych"}
        bare.fake.put(definition, manager="diptych" if version else "helm")


def up(bare: World, job: Job) -> str:
    with bare.cluster(job) as cluster:
        return operator.up(job, cluster)


def down(bare: World, job: Job) -> str:
    with bare.cluster(job) as cluster:
        return operator.down(job, cluster)


def look(bare: World, job: Job) -> StepStatus:
    with bare.cluster(job) as cluster:
        return operator.look(job, cluster)


def helm_calls(job: Job) -> list[str]:
    path = job.log("helm")
    lines = path.read_text().splitlines() if path.exists() else []
    return [line.split()[2] for line in lines if line.startswith("$ ")]


def deployment(bare: World, namespace: str = OURS) -> dict[str, Any] | None:
    return bare.fake.get("Deployment", "kuberay-operator", namespace)


def arguments(bare: World) -> list[str]:
    found = deployment(bare)
    assert found is not None
    return [str(each) for each in found["spec"]["template"]["spec"]["containers"][0]["args"]]


def ray_service(bare: World, name: str, namespace: str) -> None:
    if bare.fake.get("Namespace", namespace) is None:
        bare.fake.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    container = {"name": "ray-head", "image": "rayproject/ray:2.58.0"}
    head = {"rayStartParams": {}, "template": {"spec": {"containers": [container]}}}
    bare.fake.put(
        {
            "apiVersion": "ray.io/v1",
            "kind": "RayService",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"rayClusterConfig": {"headGroupSpec": head}},
        }
    )


def test_it_is_installed_with_its_crds_and_goes_again(bare: World) -> None:
    job = bare.job()
    assert look(bare, job).state == "absent"
    assert up(bare, job) == f"KubeRay 1.7.0 watches {NAMESPACE}"
    assert look(bare, job).state == "ready"
    assert NAMESPACE in " ".join(arguments(bare))
    assert {each["metadata"]["name"] for each in bare.fake.all("CustomResourceDefinition")} >= {
        "rayservices.ray.io",
        "rayclusters.ray.io",
    }
    assert down(bare, job) == "gone"
    assert bare.fake.get("Namespace", OURS) is None and bare.fake.get("Namespace", NAMESPACE) is None
    assert bare.fake.all("CustomResourceDefinition") == []


def test_a_second_up_runs_no_helm_that_changes(ready: World) -> None:
    job = ready.job()
    up(ready, job)
    before = deployment(ready)
    up(ready, job)
    assert deployment(ready) == before
    assert helm_calls(job).count("upgrade") == 1


@pytest.mark.parametrize("version", ["3.19.0", "4.1.4"])
def test_helm_3_and_helm_4_do(ready: World, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setenv("FAKE_HELM_VERSION", version)
    job = ready.job()
    up(ready, job)
    assert down(ready, job) == "gone"


def test_without_helm_it_is_said_where_to_get_it(bare: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SetupError, match="helm is not in PATH"):
        up(bare, bare.job())


@pytest.mark.report("T12")
def test_crds_that_others_left_are_upgraded_by_server_side_apply_and_stay_in_the_end(bare: World) -> None:
    put_crds(bare, None)
    job = bare.job()
    up(bare, job)
    writes = [
        each
        for each in bare.fake.requests
        if "customresourcedefinitions/" in each.path and each.method != "GET"
    ]
    assert writes and all(each.content_type == "application/apply-patch+yaml" for each in writes)
    for definition in bare.fake.all("CustomResourceDefinition"):
        annotations = definition["metadata"]["annotations"]
        assert annotations[VERSION_NOTE] == "1.7.0"
        assert "kubectl.kubernetes.io/last-applied-configuration" not in annotations
    assert down(bare, job) == "gone"
    assert len(bare.fake.all("CustomResourceDefinition")) >= 3


@pytest.mark.report("T12")
def test_newer_crds_are_used_and_said(bare: World) -> None:
    put_crds(bare, "1.8.0")
    job = bare.job()
    up(bare, job)
    assert any("CRDs are of 1.8.0 already, newer than 1.7.0" in text for text in told(job).said)
    assert helm_calls(job).count("show") == 0


def test_one_of_others_that_watches_the_namespace_is_used_and_not_owned(bare: World) -> None:
    install_operator(bare.fake, "kuberay-system")
    job = bare.job()
    assert up(bare, job) == "KubeRay 1.7.0 (kuberay-system/kuberay-operator), which others installed, is used"
    assert look(bare, job).state == "foreign"
    down(bare, job)
    assert deployment(bare, "kuberay-system") is not None
    assert helm_calls(job) == []


def test_one_of_others_that_watches_elsewhere_is_no_hindrance(bare: World) -> None:
    install_operator(bare.fake, "kuberay-system", watch=["theirs"])
    put_crds(bare, "1.7.0")
    job = bare.job()
    assert up(bare, job) == f"KubeRay 1.7.0 watches {NAMESPACE}"
    assert down(bare, job) == "gone"
    assert deployment(bare, "kuberay-system") is not None
    assert len(bare.fake.all("CustomResourceDefinition")) >= 3


def test_one_of_others_that_is_too_old_is_named(bare: World) -> None:
    install_operator(bare.fake, "kuberay-system", "1.4.0")
    with pytest.raises(
        ClusterError, match=r"KubeRay 1\.4\.0 \(kuberay-system/kuberay-operator\).*too old: 1\.6"
    ):
        up(bare, bare.job())


def test_a_release_of_our_name_that_is_somebody_elses_is_not_changed(ready: World, tmp_path: Any) -> None:
    ready.fake.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": OURS}})
    ready.fake.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "theirs"}})
    config = ready.fake.kubeconfig(tmp_path / "theirs")
    values = tmp_path / "values.yaml"
    values.write_text("singleNamespaceInstall: true\nwatchNamespace: [theirs]\n")
    repository = "https://ray-project.github.io/kuberay-helm/"
    subprocess.run(
        ["helm", "upgrade", "--install", OURS, OURS, "--repo", repository, "--version", "1.7.0", "-n", OURS,
         "--values", str(values), "--kubeconfig", str(config)],
        check=True, timeout=60,
    )  # fmt: skip
    job = ready.job()
    with pytest.raises(ClusterError, match="somebody else's and does not watch this document's namespace"):
        up(ready, job)
    assert down(ready, job) == "left alone: others installed it"
    assert deployment(ready) is not None


def test_documents_share_one_operator_and_the_last_takes_it_away(ready: World) -> None:
    one, other = ready.job(), ready.job(name="other", kubernetes={"namespace": "second"})
    up(ready, one)
    up(ready, other)
    assert f"{NAMESPACE},second" in " ".join(arguments(ready))
    ray_service(ready, "other", "second")
    assert down(ready, one).startswith("stays: RayService second/other")
    assert NAMESPACE not in " ".join(arguments(ready)) and "second" in " ".join(arguments(ready))
    assert ready.fake.get("Namespace", NAMESPACE) is None
    ready.fake.delete("RayService", "other", "second")
    ready.kuberay.held.clear()
    wait_until_gone(ready, "other", "second")
    assert down(ready, other) == "gone"


def wait_until_gone(bare: World, name: str, namespace: str) -> None:
    import time

    deadline = time.monotonic() + 20
    while bare.fake.get("RayService", name, namespace) or bare.fake.all("RayCluster", namespace):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.report("T3")
def test_it_does_not_go_before_the_service_that_it_takes_care_of(ready: World) -> None:
    job = ready.job()
    up(ready, job)
    ray_service(ready, "ray-llm", NAMESPACE)
    with pytest.raises(ClusterError, match="nobody would take care of RayService inference/ray-llm"):
        down(ready, job)
    assert deployment(ready) is not None


def test_services_of_others_in_the_same_namespace_keep_it(ready: World) -> None:
    job = ready.job()
    up(ready, job)
    ray_service(ready, "theirs", NAMESPACE)
    assert down(ready, job).startswith("stays: RayService inference/theirs")
    assert NAMESPACE in " ".join(arguments(ready))


def test_a_newer_one_of_ours_is_not_taken_back(ready: World) -> None:
    up(ready, ready.job())
    job = ready.job(kubernetes={"kuberay_version": "1.6.2"})
    assert up(ready, job) == f"KubeRay 1.7.0 watches {NAMESPACE}"
    assert any("KubeRay 1.7.0 is there already, newer than 1.6.2" in text for text in told(job).said)


def test_an_older_one_of_ours_is_upgraded_with_its_crds(bare: World) -> None:
    put_crds(bare, "1.6.2")
    up(bare, bare.job(kubernetes={"kuberay_version": "1.6.2"}))
    assert up(bare, bare.job()) == f"KubeRay 1.7.0 watches {NAMESPACE}"
    found = deployment(bare)
    assert found is not None and found["spec"]["template"]["spec"]["containers"][0]["image"].endswith(
        ":v1.7.0"
    )
    noted = {
        each["metadata"]["annotations"][VERSION_NOTE] for each in bare.fake.all("CustomResourceDefinition")
    }
    assert noted == {"1.7.0"}


def test_a_helm_that_was_killed_in_the_middle_is_cleared_away(
    ready: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It leaves the release pending, with which no other helm goes on."""
    job = ready.job()
    with monkeypatch.context() as patched:
        patched.setenv("FAKE_HELM_PAUSE_S", "30")
        patched.setattr("diptych.kube.release._HELM_S", 3.0)
        patched.setattr("diptych.kube.release._forget_unfinished", lambda *_: None)
        with pytest.raises(ClusterError, match="helm upgrade did not end"):
            up(ready, job)
    assert pending(ready)
    monkeypatch.setattr("diptych.kube.release._PENDING_S", 0.0)
    up(ready, job)
    assert not pending(ready)


def test_a_removal_that_was_killed_in_the_middle_is_cleared_away_once_nobody_is_at_it(
    ready: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It changes the record of the installation, and no other helm goes on from there."""
    job = ready.job()
    up(ready, job)
    [record] = [each for each in ready.fake.all("Secret", OURS) if each["type"] == "helm.sh/release.v1"]
    record["metadata"]["labels"] |= {"status": "uninstalling", "modifiedAt": str(int(time.time()) + 6)}
    ready.fake.put(record)
    ready.fake.delete("Deployment", "kuberay-operator", OURS)
    monkeypatch.setattr("diptych.kube.release._PENDING_S", 0.5)
    up(ready, job)
    assert "Another helm is at work on kuberay-operator" in "\n".join(each.text for each in told(job).events)
    assert deployment(ready) is not None


def pending(bare: World) -> list[str]:
    found = (each["metadata"] for each in bare.fake.all("Secret", OURS))
    return [meta["name"] for meta in found if meta["labels"].get("status", "").startswith("pending")]


def test_what_keeps_it_from_running_is_named(ready: World) -> None:
    ready.kuberay.missing_images.add("quay.io/kuberay/*")
    with pytest.raises(ClusterError, match="image"):
        up(ready, replace(ready.job(), timeout_s=10))


def test_a_dry_run_tells_what_it_would_do(bare: World) -> None:
    job = bare.job(dry_run=True)
    up(bare, job)
    said = "\n".join(told(job).said)
    assert "would apply KubeRay's CRDs of 1.7.0" in said and "would run helm upgrade kuberay-operator" in said
    assert deployment(bare) is None and bare.fake.all("CustomResourceDefinition") == []
