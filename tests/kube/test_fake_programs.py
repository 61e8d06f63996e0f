"""The fake Kubernetes API against the real kubectl and the real helm."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fakes import real_tools
from fakes.kubernetes import FakeKubernetes, KubeRay, crds, operator_manifests
from kube.things import POD


def run(program: Path, api: FakeKubernetes, folder: Path, *arguments: str, given: Any = None) -> str:
    """What the real program says, both ways out together."""
    command = [str(program), *arguments, "--kubeconfig", str(api.kubeconfig(folder / "kubeconfig"))]
    text = None if given is None else "\n---\n".join(json.dumps(each) for each in given)
    environ = {**os.environ, "HOME": str(folder)}
    ran = subprocess.run(command, input=text, capture_output=True, text=True, timeout=90, env=environ)
    return ran.stdout + ran.stderr


class TestKubectl:
    @pytest.mark.report("T12")
    def test_it_applies_large_definitions_on_the_server_only(self, tmp_path: Path) -> None:
        kubectl = real_tools.kubectl()
        with FakeKubernetes(token="secret") as api:
            definitions = crds()[:2]
            said = run(kubectl, api, tmp_path, "apply", "-f", "-", given=definitions)
            assert said.count("Too long") == 2
            said = run(kubectl, api, tmp_path, "apply", "--server-side", "-f", "-", given=definitions)
            assert said.count("serverside-applied") == 2
            assert "rayservices.ray.io" in run(kubectl, api, tmp_path, "get", "crd")

    def test_it_gets_describes_and_deletes(self, api: FakeKubernetes, tmp_path: Path) -> None:
        kubectl = real_tools.kubectl()
        run(kubectl, api, tmp_path, "apply", "--server-side", "-f", "-", given=[POD])
        assert "pod/a" in run(kubectl, api, tmp_path, "get", "pods", "-o", "name")
        assert "busybox" in run(kubectl, api, tmp_path, "describe", "pod", "a")
        changed = [{**POD, "metadata": {**POD["metadata"], "labels": {"app": "b"}}}]
        apply = ("apply", "--server-side", "--field-manager=other", "-f", "-")
        said = run(kubectl, api, tmp_path, *apply, given=changed)
        assert 'conflict with "kubectl" using v1: .metadata.labels.app' in said
        assert "deleted" in run(kubectl, api, tmp_path, "delete", "pod", "a")
        assert api.get("Pod", "a", "default") is None

    def test_it_shows_logs_and_asks_what_it_may(self, api: FakeKubernetes, tmp_path: Path) -> None:
        kubectl = real_tools.kubectl()
        api.put({**POD, "status": {"phase": "Running"}})
        api.write_log("a", "default", "side", "hello")
        assert run(kubectl, api, tmp_path, "logs", "a", "-c", "side") == "hello\n"
        api.denied.add(("create", "secrets"))
        assert run(kubectl, api, tmp_path, "auth", "can-i", "create", "secrets").startswith("no")
        assert run(kubectl, api, tmp_path, "auth", "can-i", "create", "pods") == "yes\n"


class TestHelm:
    def chart(self, folder: Path) -> Path:
        """A chart with KubeRay's definitions and a Deployment, whose image has a value."""
        for name in ("crds", "templates"):
            (folder / name).mkdir(parents=True)
        (folder / "Chart.yaml").write_text("apiVersion: v2\nname: kuberay-operator\nversion: 1.7.0\n")
        (folder / "values.yaml").write_text("image: {tag: v1.7.0}\n")
        for each in crds():
            (folder / "crds" / f"{each['metadata']['name']}.yaml").write_text(json.dumps(each))
        manifests = operator_manifests("kuberay", tag="{{ .Values.image.tag }}", release=None)
        text = "\n---\n".join(json.dumps(each) for each in manifests)
        (folder / "templates" / "all.yaml").write_text(text)
        return folder

    def test_it_installs_upgrades_and_removes_a_chart(self, tmp_path: Path) -> None:
        helm, chart = real_tools.helm(), str(self.chart(tmp_path / "chart"))
        with FakeKubernetes(token="secret") as api, KubeRay(api):
            api.add_node("system", {"cpu": "4", "memory": "16Gi"})
            where = ("--namespace", "kuberay")
            upgrade = ("upgrade", "--install", "ray", chart, *where, "--create-namespace", "--wait")
            assert "STATUS: deployed" in run(helm, api, tmp_path, *upgrade)
            said = run(helm, api, tmp_path, *upgrade, "--set", "image.tag=v1.7.1")
            assert "REVISION: 2" in said
            found = api.get("Deployment", "kuberay-operator", "kuberay") or {}
            assert found["spec"]["template"]["spec"]["containers"][0]["image"].endswith(":v1.7.1")
            assert found["metadata"]["annotations"]["meta.helm.sh/release-name"] == "ray"
            values = run(helm, api, tmp_path, "get", "values", "ray", *where, "--output", "json")
            assert json.loads(values) == {"image": {"tag": "v1.7.1"}}
            assert "uninstalled" in run(helm, api, tmp_path, "uninstall", "ray", *where, "--wait")
            assert not api.all("Deployment") and len(api.all("CustomResourceDefinition")) == 3
