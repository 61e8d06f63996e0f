"""A cluster is read, written and refused in words, whatever the network does meanwhile."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from diptych.errors import ClusterError
from diptych.kube.connection import Cluster, RefusedError, Target, UnreachableError, connect
from diptych.progress import View
from fakes.kubernetes import FakeKubernetes, Fault

CONFIG_MAP = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "one", "namespace": "default", "labels": {"app": "test"}},
    "data": {"key": "value"},
}


@pytest.fixture
def fake() -> Iterator[FakeKubernetes]:
    with FakeKubernetes() as running:
        yield running


@pytest.fixture
def cluster(fake: FakeKubernetes, tmp_path: Path) -> Iterator[Cluster]:
    with connect(target(fake, tmp_path), patience_s=3) as connected:
        yield connected


def target(fake: FakeKubernetes, folder: Path) -> Target:
    return Target(fake.kubeconfig(folder / "kubeconfig"))


def test_an_object_is_applied_read_patched_listed_and_deleted(cluster: Cluster) -> None:
    assert cluster.version() == "1.35"
    assert cluster.get("ConfigMap", "one", "default") is None
    cluster.apply(CONFIG_MAP)
    cluster.patch("ConfigMap", "one", "default", {"data": {"more": "1", "key": None}})
    found = cluster.get("ConfigMap", "one", "default")
    assert found is not None and found["data"] == {"more": "1"}
    assert [each["metadata"]["name"] for each in cluster.list("ConfigMap", labels={"app": "test"})] == ["one"]
    assert cluster.list("ConfigMap", labels={"app": "other"}) == []
    assert cluster.delete("ConfigMap", "one", "default")
    assert not cluster.delete("ConfigMap", "one", "default")
    assert cluster.calls == [
        "apply ConfigMap default/one",
        "patch ConfigMap default/one",
        "delete ConfigMap default/one",
    ]


def test_listed_objects_say_of_which_kind_they_are(cluster: Cluster) -> None:
    cluster.apply(CONFIG_MAP)
    found = cluster.list("ConfigMap", labels={"app": "test"})
    assert [(each["apiVersion"], each["kind"]) for each in found] == [("v1", "ConfigMap")]


def test_a_list_that_comes_in_pages_is_whole(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diptych.kube.connection._PAGE", 2)
    for number in range(5):
        cluster.apply({**CONFIG_MAP, "metadata": {**CONFIG_MAP["metadata"], "name": f"c{number}"}})
    assert len(cluster.list("ConfigMap", namespace="default", labels={"app": "test"})) == 5


def test_what_somebody_else_set_is_not_overwritten_and_the_message_names_who(
    cluster: Cluster, fake: FakeKubernetes
) -> None:
    cluster.apply(CONFIG_MAP)
    fake.put({**CONFIG_MAP, "data": {"key": "theirs"}}, manager="kubectl-edit")
    with pytest.raises(
        ClusterError, match=r"ConfigMap one in default was changed by kubectl-edit: .*data.*key"
    ):
        cluster.apply(CONFIG_MAP)
    cluster.apply(CONFIG_MAP, force=True)
    found = cluster.get("ConfigMap", "one", "default")
    assert found is not None and found["data"] == {"key": "value"}


def test_kinds_that_the_cluster_does_not_have_are_not_there(cluster: Cluster) -> None:
    assert not cluster.knows("PodMonitor")
    assert cluster.knows("Pod")
    assert cluster.list("PodMonitor") == []
    assert cluster.get("PodMonitor", "one", "default") is None


def test_a_dry_run_reads_and_tells_each_change_and_makes_none(fake: FakeKubernetes, tmp_path: Path) -> None:
    told: list[str] = []

    class Listening(View):
        def say(self, text: str) -> None:
            told.append(text)

    fake.put(CONFIG_MAP)
    with connect(target(fake, tmp_path), dry_run=True, view=Listening()) as cluster:
        assert cluster.get("ConfigMap", "one", "default") is not None
        cluster.apply({**CONFIG_MAP, "data": {"key": "other"}})
        checked = cluster.apply(
            {**CONFIG_MAP, "data": {"key": "value", "more": "2"}}, dry_run=True, force=True
        )
        cluster.patch("ConfigMap", "one", "default", {"data": None})
        assert cluster.delete("ConfigMap", "one", "default")
        assert not cluster.delete("ConfigMap", "two", "default")
    assert checked["data"] == {"key": "value", "more": "2"}
    found = fake.get("ConfigMap", "one", "default")
    assert found is not None and found["data"] == {"key": "value"}
    assert told == [f"would {verb} ConfigMap default/one" for verb in ("apply", "patch", "delete")]


def test_where_there_is_no_cluster_yet_nothing_is_found_and_changes_are_told() -> None:
    cluster = Cluster.absent("new")
    cluster.apply(CONFIG_MAP)
    assert cluster.list("Pod") == [] and cluster.version() == "" and cluster.allowed("create", "pods")
    assert cluster.calls == ["apply ConfigMap default/one"]


def test_without_a_kubeconfig_the_message_says_where_one_was_looked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(ClusterError, match=r"There is no kubeconfig: .*/none does not exist"):
        connect(Target())


def test_an_unknown_context_is_answered_with_the_known_ones(fake: FakeKubernetes, tmp_path: Path) -> None:
    path = fake.kubeconfig(tmp_path / "kubeconfig", context="production")
    with pytest.raises(ClusterError, match="has no context 'staging'") as caught:
        connect(Target(path, "staging"))
    assert "production" in caught.value.hint


def test_kubeconfigs_are_joined_as_kubectl_joins_them(
    fake: FakeKubernetes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = fake.kubeconfig(tmp_path / "one", context="first")
    other = fake.kubeconfig(tmp_path / "other", context="second")
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'missing'}:{one}:{other}")
    with connect(Target()) as cluster:
        assert cluster.context == "first"
    with connect(Target(context="second")) as cluster:
        assert cluster.context == "second" and cluster.version() == "1.35"


def test_credentials_that_are_refused_are_named_as_such(tmp_path: Path) -> None:
    with FakeKubernetes(token="right") as fake:
        path = fake.kubeconfig(tmp_path / "kubeconfig", user={"token": "wrong"})
        with pytest.raises(ClusterError, match="does not accept these credentials"):
            connect(Target(path))


def test_credentials_that_expire_are_fetched_again(tmp_path: Path) -> None:
    """The exec plugin is asked anew, as it is for an EKS token after 15 minutes."""
    current = tmp_path / "token"
    current.write_text("first")
    plugin = tmp_path / "plugin.py"
    plugin.write_text(
        "import json, pathlib\n"
        f"token = pathlib.Path({str(current)!r}).read_text()\n"
        "print(json.dumps({'apiVersion': 'client.authentication.k8s.io/v1', 'kind': 'ExecCredential',"
        " 'status': {'token': token}}))\n"
    )
    command = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": sys.executable,
        "args": [str(plugin)],
    }
    with FakeKubernetes(token=lambda shown: shown == current.read_text()) as fake:
        path = fake.kubeconfig(tmp_path / "kubeconfig", user={"exec": command})
        with connect(Target(path)) as cluster:
            current.write_text("second")
            assert cluster.get("Namespace", "default") is not None


def test_a_credential_program_that_fails_is_told_in_its_words(fake: FakeKubernetes, tmp_path: Path) -> None:
    command = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": sys.executable,
        "args": ["-c", "import sys; sys.exit('the SSO session has expired')"],
    }
    path = fake.kubeconfig(tmp_path / "kubeconfig", user={"exec": command})
    with pytest.raises(ClusterError, match="the SSO session has expired"):
        connect(Target(path), patience_s=0)


def test_a_certificate_that_is_not_trusted_is_told_at_once(tmp_path: Path) -> None:
    with FakeKubernetes(token="t") as fake:
        path = fake.kubeconfig(tmp_path / "kubeconfig", trusted=False)
        began = time.monotonic()
        with pytest.raises(ClusterError, match="not one that the kubeconfig trusts"):
            connect(Target(path), patience_s=30)
        assert time.monotonic() - began < 10


def test_keys_from_the_kubeconfig_are_not_left_in_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kr8s copies certificates into temporary files for Python's ssl, and leaves them there."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    with FakeKubernetes(token="t") as fake:
        with connect(target(fake, tmp_path)) as cluster:
            assert cluster.version() == "1.35"
        assert list(scratch.iterdir()) == []


def test_nobody_there_is_told_with_the_address(tmp_path: Path) -> None:
    with FakeKubernetes() as fake:
        path = fake.kubeconfig(tmp_path / "kubeconfig")
    with pytest.raises(UnreachableError, match="does not answer"):
        connect(Target(path), patience_s=0)


def test_an_api_server_that_is_away_for_a_moment_is_waited_for(
    cluster: Cluster, fake: FakeKubernetes
) -> None:
    fake.go_away(1.0)
    assert cluster.get("Namespace", "default") is not None


def test_one_that_stays_away_ends_the_waiting(cluster: Cluster, fake: FakeKubernetes) -> None:
    fake.go_away(60)
    with pytest.raises(UnreachableError):
        cluster.get("Namespace", "default")


@pytest.mark.parametrize(
    "fault",
    [
        Fault(status=0, times=2),
        Fault(status=503, times=2),
        Fault(status=500, times=2),
        Fault(status=429, times=2, retry_after_s=0),
    ],
    ids=["dropped", "503", "500", "429"],
)
def test_requests_that_may_be_repeated_are(cluster: Cluster, fake: FakeKubernetes, fault: Fault) -> None:
    fake.faults.append(fault)
    cluster.apply(CONFIG_MAP)
    assert fake.get("ConfigMap", "one", "default") is not None


def test_a_write_whose_answer_was_lost_comes_to_the_same(cluster: Cluster, fake: FakeKubernetes) -> None:
    fake.faults += [Fault("PATCH", status=0, after=True), Fault("DELETE", status=0, after=True)]
    cluster.apply(CONFIG_MAP)
    assert fake.get("ConfigMap", "one", "default") is not None
    cluster.delete("ConfigMap", "one", "default")
    assert fake.get("ConfigMap", "one", "default") is None


def test_a_request_that_may_not_be_repeated_is_sent_once(cluster: Cluster, fake: FakeKubernetes) -> None:
    fake.faults.append(Fault(status=503, times=1))
    with pytest.raises(RefusedError):
        cluster.raw("POST", "/api/v1/namespaces/default/configmaps", body=CONFIG_MAP)


def test_a_missing_right_is_told_with_what_was_asked(cluster: Cluster, fake: FakeKubernetes) -> None:
    fake.denied.add(("patch", "configmaps"))
    with pytest.raises(RefusedError, match=r"PATCH .*configmaps") as caught:
        cluster.apply(CONFIG_MAP)
    assert caught.value.status == 403 and "right" in caught.value.hint
    assert not cluster.allowed("patch", "configmaps", namespace="default")
    assert cluster.allowed("get", "pods/log", namespace="default")


def test_a_pods_log_comes_line_by_line_and_can_be_left(cluster: Cluster, fake: FakeKubernetes) -> None:
    fake.put(pod("talks"))
    fake.write_log("talks", "default", "main", "one", "two", "three")
    assert list(cluster.log("talks", "default", "main")) == ["one", "two", "three"]
    assert list(cluster.log("talks", "default", "main", tail=1)) == ["three"]
    following = cluster.log("talks", "default", "main", follow=True)
    assert next(following) == "one"
    later = threading.Timer(0.3, fake.write_log, ("talks", "default", "main", "four"))
    later.start()
    assert [next(following) for _ in range(3)] == ["two", "three", "four"]
    following.close()  # type: ignore[attr-defined]
    with pytest.raises(RefusedError):
        list(cluster.log("nobody", "default", "main"))


def test_clusters_need_their_package_and_say_which() -> None:
    code = (
        "import sys; sys.modules['kr8s'] = None; sys.modules['kr8s.asyncio'] = None\n"
        "from diptych.errors import SetupError\n"
        "from diptych.kube import requests\n"
        "try: requests._import_kr8s()\n"
        "except SetupError as error: print(error.message, error.hint)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert "pip install 'diptych[kube]'" in done.stdout


def pod(name: str) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": [{"name": "main", "image": "busybox"}]},
    }
