"""The fake Kubernetes API on the wire: lists by pages, watches, faults, tokens, logs, port-forwards."""

import json
import threading
import time

import httpx
import httpx_ws
import pytest

from fakes.kubernetes import FakeKubernetes, Fault
from fakes.provable_endpoint import ProvableEndpoint
from kube.things import MAPS, POD, PODS, config_map


class TestListsAndWatches:
    def test_pages_go_on_until_their_version_is_forgotten(
        self, api: FakeKubernetes, http: httpx.Client
    ) -> None:
        for index in range(5):
            http.post(MAPS, json=config_map(f"m{index}"))
        page = http.get(MAPS, params={"limit": 2}).json()
        rest = http.get(MAPS, params={"limit": 9, "continue": page["metadata"]["continue"]}).json()
        assert len(page["items"]) + len(rest["items"]) == 6  # with the cluster's own certificates
        http.post(MAPS, json=config_map("more"))
        api.forget_history()
        gone = http.get(MAPS, params={"limit": 2, "continue": page["metadata"]["continue"]})
        assert (gone.status_code, gone.json()["reason"]) == (410, "Expired")

    @pytest.mark.parametrize(
        ("selector", "names"),
        [
            ("app=a", ["a"]),
            ("app!=a", ["b"]),
            ("app in (a,b)", ["a", "b"]),
            ("!app", []),
            ("app", ["a", "b"]),
        ],
    )
    def test_labels_select(
        self, api: FakeKubernetes, http: httpx.Client, selector: str, names: list[str]
    ) -> None:
        for name in ("a", "b"):
            api.put({**POD, "metadata": {"name": name, "labels": {"app": name}}})
        found = http.get("/api/v1/pods", params={"labelSelector": selector}).json()["items"]
        assert [each["metadata"]["name"] for each in found] == names

    def test_fields_select_only_where_they_can(self, api: FakeKubernetes, http: httpx.Client) -> None:
        api.put(POD)
        assert len(http.get(PODS, params={"fieldSelector": "status.phase=Pending"}).json()["items"]) == 1
        assert http.get(PODS, params={"fieldSelector": "spec.containers=x"}).status_code == 400

    def test_a_watch_tells_what_enters_and_leaves_its_selection(
        self, api: FakeKubernetes, http: httpx.Client
    ) -> None:
        since = http.get(PODS).json()["metadata"]["resourceVersion"]
        for label in ("a", "b", "a"):
            api.put({**POD, "metadata": {"name": "a", "namespace": "default", "labels": {"app": label}}})
        api.delete("Pod", "a", "default")
        query = {"watch": "true", "resourceVersion": since, "labelSelector": "app=a", "timeoutSeconds": "0.3"}
        lines = [json.loads(line) for line in http.get(PODS, params=query).text.splitlines()]
        assert [each["type"] for each in lines] == ["ADDED", "DELETED", "ADDED", "DELETED"]

    def test_a_watch_from_a_forgotten_version_is_told_so(
        self, api: FakeKubernetes, http: httpx.Client
    ) -> None:
        since = http.get(PODS).json()["metadata"]["resourceVersion"]
        api.put(POD)
        api.forget_history()
        answer = http.get(PODS, params={"watch": "true", "resourceVersion": since})
        line = json.loads(answer.text)
        assert (line["type"], line["object"]["code"]) == ("ERROR", 410)


class TestFaults:
    def test_requests_fail_as_often_as_told(self, api: FakeKubernetes, http: httpx.Client) -> None:
        api.faults.append(Fault("GET", "*/configmaps", status=429, retry_after_s=1, times=2))
        answers = [http.get(MAPS) for _ in range(3)]
        assert [each.status_code for each in answers] == [429, 429, 200]
        assert answers[0].headers["Retry-After"] == "1"

    def test_a_connection_drops_before_or_after_the_write(
        self, api: FakeKubernetes, http: httpx.Client
    ) -> None:
        for name, after in (("before", False), ("after", True)):
            api.faults.append(Fault("POST", status=0, after=after))
            with pytest.raises(httpx.RemoteProtocolError):
                http.post(MAPS, json=config_map(name))
        assert api.get("ConfigMap", "before", "default") is None
        assert api.get("ConfigMap", "after", "default") is not None
        assert [each.status for each in api.requests] == [0, 0]

    def test_the_server_goes_away_and_comes_back(self, api: FakeKubernetes, http: httpx.Client) -> None:
        http.get(MAPS)
        api.go_away(0.2)
        with pytest.raises(httpx.ConnectError):
            http.get(MAPS)
        time.sleep(0.4)
        assert http.get(MAPS).status_code == 200

    def test_a_token_is_asked_for(self) -> None:
        with FakeKubernetes(token="good") as api, httpx.Client(base_url=api.url, verify=False) as http:
            assert http.get(PODS).status_code == 401
            assert http.get(PODS, headers={"Authorization": "Bearer bad"}).status_code == 401
            assert http.get(PODS, headers={"Authorization": "Bearer good"}).status_code == 200


class TestPods:
    def test_a_log_is_cut_and_followed(self, api: FakeKubernetes, http: httpx.Client) -> None:
        api.put({**POD, "status": {"phase": "Running"}})
        api.write_log("a", "default", "main", "one", "two")
        assert "container name must be specified" in http.get(f"{PODS}/a/log").json()["message"]
        query = {"container": "main", "tailLines": "1"}
        assert http.get(f"{PODS}/a/log", params=query).text == "two\n"
        assert http.get(f"{PODS}/a/log", params={"container": "main", "previous": "true"}).status_code == 400
        stamped = http.get(f"{PODS}/a/log", params={**query, "timestamps": "true"}).text
        assert stamped.endswith("Z two\n") and stamped[4] == "-"
        threading.Timer(0.1, api.write_log, ("a", "default", "main", "three")).start()
        threading.Timer(0.2, api.delete, ("Pod", "a", "default")).start()
        followed = http.get(f"{PODS}/a/log", params={"container": "main", "follow": "true"}).text
        assert followed == "one\ntwo\nthree\n"

    def test_a_forward_to_a_port_that_nobody_listens_on_is_told_so_and_ends(
        self, api: FakeKubernetes, http: httpx.Client
    ) -> None:
        api.put({**POD, "spec": {**POD["spec"], "nodeName": "n"}, "status": {"phase": "Running"}})
        with httpx_ws.connect_ws(f"{PODS}/a/portforward?ports=8000", http) as socket:
            assert [socket.receive_bytes(2) for _ in range(2)] == [b"\x00\x40\x1f", b"\x01\x40\x1f"]
            assert b"connection refused" in socket.receive_bytes(2)
            with pytest.raises(httpx_ws.WebSocketDisconnect):
                socket.receive_bytes(2)

    def test_a_forward_is_cut(self, api: FakeKubernetes, http: httpx.Client) -> None:
        api.put({**POD, "spec": {**POD["spec"], "nodeName": "n"}, "status": {"phase": "Running"}})
        with ProvableEndpoint() as endpoint:
            api.backends[8000] = ("127.0.0.1", int(endpoint.url.rpartition(":")[2]))
            with httpx_ws.connect_ws(f"{PODS}/a/portforward?ports=8000", http) as socket:
                for _ in range(2):
                    socket.receive_bytes(2)
                api.cut_forwards()
                with pytest.raises(httpx_ws.HTTPXWSException):
                    socket.receive_bytes(2)

    def test_a_pod_on_no_node_has_no_ports(self, api: FakeKubernetes, http: httpx.Client) -> None:
        api.put(POD)
        assert "does not have a host assigned" in http.get(f"{PODS}/a/portforward?ports=1").json()["message"]
