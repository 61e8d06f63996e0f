"""Two clusters are told apart by what no context's name can tell."""

import re
from pathlib import Path

import pytest

from diptych.errors import ClusterError
from diptych.kube.connection import Cluster, RefusedError, Target, connect
from diptych.kube.identity import require_same, uid_of
from fakes.kubernetes import FakeKubernetes, Fault


def cluster_of(fake: FakeKubernetes, folder: Path) -> Cluster:
    return connect(Target(fake.kubeconfig(folder / "kubeconfig", context="default")), patience_s=0.2)


def test_clusters_with_one_name_for_their_contexts_have_two_uids(tmp_path: Path) -> None:
    with FakeKubernetes() as one, FakeKubernetes() as other:
        with cluster_of(one, tmp_path) as cluster:
            uid = uid_of(cluster)
            assert uid and uid == uid_of(cluster)
            require_same(cluster, "llm", "default", uid)
        with cluster_of(other, tmp_path) as cluster:
            here = uid_of(cluster)
            said = (
                f"llm is up in another cluster: context default (uid of kube-system: {uid}); "
                f"this is context default (uid of kube-system: {here})"
            )
            with pytest.raises(ClusterError, match=re.escape(said)) as stopped:
                require_same(cluster, "llm", "default", uid)
            assert "KUBECONFIG" in stopped.value.hint
            require_same(cluster, "llm", "default", None)


def test_a_uid_that_may_not_be_read_is_none_and_compares_with_nothing(tmp_path: Path) -> None:
    with FakeKubernetes() as fake:
        fake.denied.add(("get", "namespaces"))
        with cluster_of(fake, tmp_path) as cluster:
            assert uid_of(cluster) is None
            require_same(cluster, "llm", "default", "6f1c")


def test_a_cluster_that_does_not_answer_the_question_is_no_other_cluster(tmp_path: Path) -> None:
    with FakeKubernetes() as fake, cluster_of(fake, tmp_path) as cluster:
        fake.faults.append(Fault(status=400, path="*/kube-system"))
        with pytest.raises(RefusedError):
            uid_of(cluster)
