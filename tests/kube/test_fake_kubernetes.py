"""The fake Kubernetes API: what it applies, what it refuses, and how its objects live and end."""

import json

import httpx
import pytest

from fakes.kubernetes import FakeKubernetes, crds
from kube.things import MAPS, POD, PODS, Json, config_map

APPLY = {"Content-Type": "application/apply-patch+yaml"}
MERGE = {"Content-Type": "application/merge-patch+json"}


def apply(http: httpx.Client, thing: Json, manager: str, **query: str) -> httpx.Response:
    path = f"{MAPS}/{thing['metadata']['name']}"
    return http.patch(path, json=thing, headers=APPLY, params={"fieldManager": manager, **query})


class TestServerSideApply:
    def test_a_value_that_another_manager_holds_is_a_conflict_that_names_both(
        self, http: httpx.Client
    ) -> None:
        assert apply(http, config_map(x="1"), "one").status_code == 201
        answer = apply(http, config_map(x="2"), "two")
        assert answer.status_code == 409
        assert (
            answer.json()["message"] == 'Apply failed with 1 conflict: conflict with "one" using v1: .data.x'
        )
        assert answer.json()["details"]["causes"][0]["field"] == ".data.x"

    def test_force_takes_it(self, http: httpx.Client) -> None:
        apply(http, config_map(x="1"), "one")
        assert apply(http, config_map(x="2"), "two", force="true").json()["data"] == {"x": "2"}
        assert apply(http, config_map(x="1"), "one").status_code == 409

    def test_what_is_no_longer_applied_goes_unless_another_holds_it(self, http: httpx.Client) -> None:
        apply(http, config_map(x="1", y="1"), "one")
        apply(http, config_map(y="1"), "two")
        assert apply(http, config_map(z="1"), "one").json()["data"] == {"y": "1", "z": "1"}

    def test_lists_merge_by_their_keys(self, http: httpx.Client) -> None:
        labels = {"app": "a"}
        path = "/apis/apps/v1/namespaces/default/deployments/a"
        query = {"force": "true"}
        for manager, names in (("one", ["main"]), ("two", ["side", "more"]), ("two", ["more"])):
            containers = [{"name": name, "image": manager} for name in names]
            template = {"metadata": {"labels": labels}, "spec": {"containers": containers}}
            spec = {"selector": {"matchLabels": labels}, "template": template}
            thing = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a"}, "spec": spec}
            answer = http.patch(path, json=thing, headers=APPLY, params={"fieldManager": manager, **query})
        found = answer.json()["spec"]["template"]["spec"]["containers"]
        assert [(each["name"], each["image"]) for each in found] == [("main", "one"), ("more", "two")]

    def test_the_same_again_changes_nothing(self, http: httpx.Client) -> None:
        first = apply(http, config_map(x="1"), "one").json()
        again = apply(http, config_map(x="1"), "one").json()
        assert first["metadata"]["resourceVersion"] == again["metadata"]["resourceVersion"]

    def test_it_needs_a_manager(self, http: httpx.Client) -> None:
        assert http.patch(f"{MAPS}/a", json=config_map(), headers=APPLY).status_code == 422

    def test_an_update_takes_the_fields_that_it_changes(self, http: httpx.Client) -> None:
        apply(http, config_map(x="1", y="1"), "one")
        patch = {"data": {"x": "2"}}
        http.patch(f"{MAPS}/a", json=patch, headers=MERGE, params={"fieldManager": "hand"})
        answer = apply(http, config_map(x="1", y="1"), "one")
        assert 'conflict with "hand" using v1: .data.x' in answer.json()["message"]


class TestRefusals:
    @pytest.mark.parametrize(
        ("thing", "code", "words"),
        [
            ({**config_map(), "dta": {}}, 400, 'unknown field "dta"'),
            ({**config_map(), "data": {"x": 1}}, 422, "data.x"),
            (config_map("Not_A_Name"), 422, "metadata.name"),
            (config_map(x="y" * 1_100_000), 422, "Too long"),
            ({**config_map(), "kind": "Secret"}, 400, "does not match"),
            ({**config_map(), "metadata": {"name": "a", "labels": {"x": "a b"}}}, 422, "metadata.labels"),
            ({**config_map(), "metadata": {"name": "a", "namespace": "other"}}, 400, "namespace"),
            ({**config_map(), "metadata": {}}, 422, "name or generateName"),
        ],
    )
    def test_what_the_real_one_refuses(self, http: httpx.Client, thing: Json, code: int, words: str) -> None:
        answer = http.post(MAPS, json=thing)
        assert (answer.status_code, words in answer.json()["message"]) == (code, True), answer.text

    def test_a_namespace_must_be_there(self, http: httpx.Client) -> None:
        answer = http.post("/api/v1/namespaces/nowhere/configmaps", json=config_map())
        assert (answer.status_code, answer.json()["message"]) == (404, 'namespaces "nowhere" not found')

    def test_names_are_taken_once(self, http: httpx.Client) -> None:
        http.post(MAPS, json=config_map())
        assert http.post(MAPS, json=config_map()).json()["reason"] == "AlreadyExists"

    def test_an_outdated_version_is_a_conflict(self, http: httpx.Client) -> None:
        first = http.post(MAPS, json=config_map(x="1")).json()
        assert http.put(f"{MAPS}/a", json={**first, "data": {"x": "2"}}).status_code == 200
        answer = http.put(f"{MAPS}/a", json={**first, "data": {"x": "3"}})
        assert (answer.status_code, "the object has been modified" in answer.text) == (409, True)

    def test_an_immutable_config_map_stays(self, http: httpx.Client) -> None:
        http.post(MAPS, json={**config_map(x="1"), "immutable": True})
        assert http.patch(f"{MAPS}/a", json={"data": {"x": "2"}}, headers=MERGE).status_code == 422

    def test_a_pod_needs_its_service_account_and_whole_devices(self, http: httpx.Client) -> None:
        pod = json.loads(json.dumps(POD))
        pod["spec"]["serviceAccountName"] = "nobody"
        assert http.post(PODS, json=pod).status_code == 403
        del pod["spec"]["serviceAccountName"]
        pod["spec"]["containers"][0]["resources"] = {"requests": {"nvidia.com/gpu": "1"}}
        assert "must be equal to nvidia.com/gpu limit" in http.post(PODS, json=pod).json()["message"]

    def test_a_custom_resource_is_held_to_its_definition(
        self, api: FakeKubernetes, http: httpx.Client
    ) -> None:
        for each in crds():
            api.put(each)
        service: Json = {
            "apiVersion": "ray.io/v1",
            "kind": "RayService",
            "metadata": {"name": "a"},
            "spec": {"rayClusterConfig": {"headGroupSpec": {"rayStartParams": {}, "template": {}}}},
        }
        path = "/apis/ray.io/v1/namespaces/default/rayservices"
        assert http.post(path, json={**service, "spec": {"serveConfig": ""}}).status_code == 400
        assert "rayClusterConfig: Required value" in http.post(path, json={**service, "spec": {}}).text
        assert http.post(path, json=service).status_code == 201

    def test_what_is_not_allowed_is_forbidden_and_a_review_says_so(
        self, api: FakeKubernetes, http: httpx.Client
    ) -> None:
        api.denied.add(("create", "secrets"))
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}}
        answer = http.post("/api/v1/namespaces/default/secrets", json=secret)
        assert (answer.status_code, 'cannot create resource "secrets"' in answer.json()["message"]) == (
            403,
            True,
        )
        for resource, allowed in (("secrets", False), ("pods", True)):
            review = {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SelfSubjectAccessReview",
                "spec": {"resourceAttributes": {"verb": "create", "resource": resource}},
            }
            answer = http.post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", json=review)
            assert answer.json()["status"]["allowed"] is allowed


class TestObjects:
    def test_a_status_is_written_apart_and_only_the_spec_counts_generations(self, http: httpx.Client) -> None:
        pod = http.post(PODS, json={**POD, "status": {"phase": "Running"}}).json()
        assert (pod["status"]["phase"], pod["metadata"]["generation"]) == ("Pending", 1)
        status = http.patch(f"{PODS}/a/status", json={"status": {"phase": "Running"}}, headers=MERGE).json()
        assert (status["status"]["phase"], status["metadata"]["generation"]) == ("Running", 1)
        main = http.patch(f"{PODS}/a", json={"status": {"phase": "Failed"}}, headers=MERGE).json()
        assert main["status"]["phase"] == "Running"
        strategic = {"Content-Type": "application/strategic-merge-patch+json"}
        image = {"spec": {"containers": [{"name": "side", "image": "other"}]}}
        changed = http.patch(f"{PODS}/a", json=image, headers=strategic).json()
        assert [each["image"] for each in changed["spec"]["containers"]] == ["busybox", "other"]
        assert changed["metadata"]["generation"] == 2

    def test_finalizers_hold_what_is_deleted(self, http: httpx.Client) -> None:
        thing = config_map()
        thing["metadata"]["finalizers"] = ["example.com/wait"]
        http.post(MAPS, json=thing)
        assert "deletionTimestamp" in http.delete(f"{MAPS}/a").json()["metadata"]
        more = {"metadata": {"finalizers": ["example.com/wait", "example.com/more"]}}
        assert http.patch(f"{MAPS}/a", json=more, headers=MERGE).status_code == 422
        http.patch(f"{MAPS}/a", json={"metadata": {"finalizers": None}}, headers=MERGE)
        assert http.get(f"{MAPS}/a").status_code == 404

    @pytest.mark.parametrize(
        ("policy", "is_left"), [("Background", False), ("Foreground", False), ("Orphan", True)]
    )
    def test_what_is_owned_goes_with_its_owner(self, http: httpx.Client, policy: str, is_left: bool) -> None:
        owner = http.post(MAPS, json=config_map("owner")).json()
        owned = config_map("owned")
        reference = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "name": "owner",
            "uid": owner["metadata"]["uid"],
        }
        owned["metadata"]["ownerReferences"] = [reference]
        http.post(MAPS, json=owned)
        http.request("DELETE", f"{MAPS}/owner", json={"propagationPolicy": policy})
        assert http.get(f"{MAPS}/owner").status_code == 404
        assert (http.get(f"{MAPS}/owned").status_code == 200) is is_left

    def test_a_namespace_ends_when_it_is_empty_and_says_what_remains(self, http: httpx.Client) -> None:
        http.post("/api/v1/namespaces", json={"metadata": {"name": "n"}})
        thing = config_map()
        thing["metadata"]["finalizers"] = ["example.com/wait"]
        path = "/api/v1/namespaces/n/configmaps"
        http.post(path, json=thing)
        http.delete("/api/v1/namespaces/n")
        found = http.get("/api/v1/namespaces/n").json()["status"]
        assert found["phase"] == "Terminating"
        assert "example.com/wait in 1 resource instances" in found["conditions"][1]["message"]
        assert http.post(path, json=config_map("b")).status_code == 403
        http.patch(f"{path}/a", json={"metadata": {"finalizers": None}}, headers=MERGE)
        assert http.get("/api/v1/namespaces/n").status_code == 404

    def test_a_dry_run_answers_and_keeps_nothing(self, http: httpx.Client) -> None:
        assert http.post(MAPS, json=config_map(), params={"dryRun": "All"}).status_code == 201
        assert http.get(f"{MAPS}/a").status_code == 404
        assert http.post(MAPS, json={**config_map(), "x": 1}, params={"dryRun": "All"}).status_code == 400

    def test_a_json_patch_fails_where_its_test_does(self, http: httpx.Client) -> None:
        http.post(MAPS, json=config_map(x="1"))
        headers = {"Content-Type": "application/json-patch+json"}
        test = {"op": "test", "path": "/data/x", "value": "2"}
        replace = {"op": "replace", "path": "/data/x", "value": "3"}
        assert http.patch(f"{MAPS}/a", content=json.dumps([test]), headers=headers).status_code == 422
        assert http.patch(f"{MAPS}/a", content=json.dumps([replace]), headers=headers).json()["data"] == {
            "x": "3"
        }

    def test_a_disruption_budget_stops_an_eviction(self, api: FakeKubernetes, http: httpx.Client) -> None:
        api.put(POD)
        budget = {"selector": {"matchLabels": {"app": "a"}}, "minAvailable": 1}
        thing = {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": "b"},
            "spec": budget,
        }
        api.put(thing)
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "a"}}
        answer = http.post(f"{PODS}/a/eviction", json=eviction)
        assert (answer.status_code, "disruption budget" in answer.text) == (429, True)
        api.delete("PodDisruptionBudget", "b", "default")
        assert http.post(f"{PODS}/a/eviction", json=eviction).status_code == 201
        assert api.get("Pod", "a", "default") is None
