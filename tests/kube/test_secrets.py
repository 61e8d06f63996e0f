"""The endpoint's keys are given or made once, and their values go nowhere but into the cluster and private files."""

import base64
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from diptych.errors import ClusterError, SetupError
from diptych.kube import secrets
from diptych.kube.connection import Cluster, Target, connect
from fakes.kubernetes import FakeKubernetes
from kube.jobs import job_for, told

NAMESPACE, KEYS, TOKEN = "inference", "ray-llm-api-keys", "ray-llm-hf-token"


@pytest.fixture
def fake() -> Iterator[FakeKubernetes]:
    with FakeKubernetes() as running:
        running.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        yield running


@pytest.fixture
def cluster(fake: FakeKubernetes, tmp_path: Path) -> Iterator[Cluster]:
    with connect(Target(fake.kubeconfig(tmp_path / "kubeconfig"))) as connected:
        yield connected


def value(fake: FakeKubernetes, name: str, key: str) -> str:
    found = fake.get("Secret", name, NAMESPACE)
    assert found is not None
    return base64.b64decode(found["data"][key]).decode()


def put(fake: FakeKubernetes, name: str, **data: str) -> None:
    encoded = {key: base64.b64encode(text.encode()).decode() for key, text in data.items()}
    meta = {"name": name, "namespace": NAMESPACE}
    fake.put({"apiVersion": "v1", "kind": "Secret", "metadata": meta, "data": encoded})


def test_keys_are_made_once_and_kept(cluster: Cluster, fake: FakeKubernetes, tmp_path: Path) -> None:
    job = job_for(tmp_path / "job")
    secrets.up(job, cluster)
    first = value(fake, KEYS, "keys")
    secrets.up(job, cluster)
    assert value(fake, KEYS, "keys") == first
    client, admin = first.splitlines()
    assert client.startswith("dk-") and admin.endswith(" admin")
    assert secrets.client_key(cluster, job.document) == client
    assert f"{secrets.admin_key(cluster, job.document)} admin" == admin


def test_given_keys_are_taken_with_our_admin_key_behind_them(
    cluster: Cluster, fake: FakeKubernetes, tmp_path: Path
) -> None:
    file = tmp_path / "keys"
    file.write_text("dk-one priority=2\ndk-two\n")
    file.chmod(0o600)
    job = job_for(tmp_path / "job", access={"api_key_file": str(file)})
    secrets.up(job, cluster)
    admin = secrets.admin_key(cluster, job.document)
    assert value(fake, KEYS, "keys") == f"dk-one priority=2\ndk-two\n{admin} admin\n"
    file.write_text("dk-three\n")
    secrets.up(job, cluster)
    assert value(fake, KEYS, "keys") == f"dk-three\n{admin} admin\n"
    assert secrets.client_key(cluster, job.document) == "dk-three"


def test_a_key_from_a_variable_is_taken(
    cluster: Cluster, fake: FakeKubernetes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUR_KEY", "dk-variable")
    secrets.up(job_for(tmp_path / "job", access={"api_key_env": "OUR_KEY"}), cluster)
    assert value(fake, KEYS, "keys").startswith("dk-variable\n")


@pytest.mark.parametrize(
    ("text", "mode", "words"),
    [
        ("", 0o600, "holds no key"),
        ("dk-one two\n", 0o600, "more than keys on line 1"),
        ("dk-one\n", 0o644, "by others"),
    ],
)
def test_keys_that_can_not_be_used_are_refused_without_repeating_them(
    cluster: Cluster, tmp_path: Path, text: str, mode: int, words: str
) -> None:
    file = tmp_path / "keys"
    file.write_text(text)
    file.chmod(mode)
    with pytest.raises(SetupError, match=words) as caught:
        secrets.up(job_for(tmp_path / "job", access={"api_key_file": str(file)}), cluster)
    assert "dk-one" not in caught.value.message + caught.value.hint


def test_a_secret_of_the_users_own_is_used_as_it_is(
    cluster: Cluster, fake: FakeKubernetes, tmp_path: Path
) -> None:
    put(fake, "own", list="dk-theirs\ndk-boss admin\n")
    job = job_for(tmp_path / "job", access={"api_key_secret": "own/list"})
    before = fake.get("Secret", "own", NAMESPACE)
    secrets.up(job, cluster)
    assert fake.get("Secret", "own", NAMESPACE) == before and fake.get("Secret", KEYS, NAMESPACE) is None
    assert secrets.client_key(cluster, job.document) == "dk-theirs"
    assert secrets.admin_key(cluster, job.document) == "dk-boss"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (None, "There is no secret own in the namespace inference"),
        ({"other": "dk-a admin"}, "has nothing under list; it has other"),
        ({"list": "dk-theirs\n"}, "has no admin key under list"),
    ],
)
def test_what_a_secret_of_the_users_own_lacks_is_named(
    cluster: Cluster, fake: FakeKubernetes, tmp_path: Path, data: dict[str, str] | None, words: str
) -> None:
    if data is not None:
        put(fake, "own", **data)
    with pytest.raises(ClusterError, match=words):
        secrets.up(job_for(tmp_path / "job", access={"api_key_secret": "own/list"}), cluster)


def test_a_secret_of_that_name_that_is_not_ours_is_not_overwritten(
    cluster: Cluster, fake: FakeKubernetes, tmp_path: Path
) -> None:
    put(fake, KEYS, keys="dk-theirs admin\n")
    with pytest.raises(ClusterError, match="Diptych did not make it"):
        secrets.up(job_for(tmp_path / "job"), cluster)
    assert value(fake, KEYS, "keys") == "dk-theirs admin\n"


def test_the_hubs_token_is_put_where_the_pods_look_for_it(
    cluster: Cluster, fake: FakeKubernetes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    model = {"source": "Qwen/Qwen3.5-9B", "name": "qwen3.5-9b", "token_env": "HF_TOKEN"}
    secrets.up(job_for(tmp_path / "job", model=model), cluster)
    assert value(fake, TOKEN, "token") == "hf_secret"


def test_values_are_in_private_files_and_nowhere_else(
    cluster: Cluster, tmp_path: Path, fake: FakeKubernetes
) -> None:
    job = job_for(tmp_path / "job")
    secrets.up(job, cluster)
    values = [secrets.client_key(cluster, job.document), secrets.admin_key(cluster, job.document)]
    files = [secrets.key_file(job, cluster, admin=admin) for admin in (False, True)]
    assert [file.read_text().split()[0] for file in files] == values
    assert [stat.S_IMODE(file.stat().st_mode) for file in files] == [0o600, 0o600]
    everything: Any = [told(job).events, told(job).said, cluster.calls]
    assert not any(each in str(everything) for each in values)


def test_a_dry_run_tells_names_only(fake: FakeKubernetes, tmp_path: Path) -> None:
    job = job_for(tmp_path / "job", dry_run=True)
    path = fake.kubeconfig(tmp_path / "kubeconfig")
    with connect(Target(path), dry_run=True, view=job.view) as cluster:
        secrets.up(job, cluster)
    assert told(job).said == [f"would apply Secret {NAMESPACE}/{KEYS}"]
    assert fake.get("Secret", KEYS, NAMESPACE) is None
