"""With no replica up a client is told at once when to come back; and the class runs where nothing of ours is."""

import asyncio
import base64
import json
import subprocess
import sys
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray.serve.llm")

from ray.serve._private.common import DeploymentHandleSource, DeploymentID, ReplicaID, RequestMetadata
from ray.serve._private.http_util import get_http_response_status, send_http_response_on_exception
from ray.serve._private.request_router.common import PendingRequest
from ray.serve.config import RequestRouterConfig

from diptych.serving import builder
from diptych.serving.errors import UNAVAILABLE, error_body
from diptych.serving.router import ChosenReplicaRouter, FacingRouter, NoReplica

DEPLOYMENT = DeploymentID(name="Decode:m", app_name="diptych")


class Replica:
    """A replica as a router knows it: with room, and answering so."""

    max_ongoing_requests = 10
    node_id = availability_zone = None
    multiplexed_model_ids: frozenset[str] = frozenset()

    def __init__(self, name: str, **told: bool) -> None:
        self.replica_id = ReplicaID(name, DEPLOYMENT)
        self.routing_stats = told

    async def get_queue_len(self, *, deadline_s: float) -> int:
        return 0


class BusyReplica(Replica):
    """One without room."""

    max_ongoing_requests = 0


def router() -> FacingRouter:
    return FacingRouter(
        deployment_id=DEPLOYMENT,
        handle_source=DeploymentHandleSource.REPLICA,
        use_replica_queue_len_cache=False,
        prefer_local_node_routing=False,
        prefer_local_az_routing=False,
    )


def prefill_router(*names: str) -> ChosenReplicaRouter:
    ours = ChosenReplicaRouter(deployment_id=DEPLOYMENT, handle_source=DeploymentHandleSource.REPLICA)
    ours.update_replicas([Replica(name) for name in names])
    return ours


def called(of: ChosenReplicaRouter, **asked: Any) -> "asyncio.Task[Any]":
    metadata = RequestMetadata(request_id="1", internal_request_id="1")
    pending = PendingRequest(args=[asked], kwargs={}, metadata=metadata)
    return asyncio.create_task(of._choose_replica_for_request(pending))


def chosen(of: FacingRouter) -> "asyncio.Task[Any]":
    metadata = RequestMetadata(request_id="1", internal_request_id="1")
    pending = PendingRequest(args=[], kwargs={}, metadata=metadata)
    return asyncio.create_task(of._choose_replica_for_request(pending))


async def result(task: "asyncio.Task[Any]") -> Any:
    return await asyncio.wait_for(task, 5)


def test_a_replica_that_is_up_is_taken() -> None:
    async def go() -> Any:
        ours = router()
        ours.update_replicas([replica := Replica("1")])
        return await result(chosen(ours)) is replica

    assert asyncio.run(go())


@pytest.mark.parametrize("others", [1, 4])
def test_replicas_that_refuse_prompts_get_none_while_another_takes_them(others: int) -> None:
    async def go() -> None:
        ours, taking = router(), Replica("taking", refuses=False)
        ours.update_replicas([*(Replica(str(each), refuses=True) for each in range(others)), taking])
        assert {(await result(chosen(ours))).replica_id for _ in range(20)} == {taking.replica_id}

    asyncio.run(go())


def test_where_all_refuse_one_of_them_says_why() -> None:
    async def go() -> None:
        ours = router()
        ours.update_replicas([Replica("1", refuses=True), Replica("2", refuses=True)])
        told = {(await result(chosen(ours))).replica_id.unique_id for _ in range(40)}
        assert told == {"1", "2"}

    asyncio.run(go())


def test_what_a_replica_tells_anew_counts_from_the_next_request_on() -> None:
    async def go() -> None:
        ours = router()
        first, other = Replica("1", refuses=True), Replica("2")
        ours.update_replicas([first, other])
        assert await result(chosen(ours)) is other
        first.routing_stats, other.routing_stats = {}, {"refuses": True}
        assert await result(chosen(ours)) is first

    asyncio.run(go())


def test_with_none_up_a_request_is_refused_at_once() -> None:
    async def go() -> None:
        ours = router()
        ours.update_replicas([Replica("1")])
        ours.update_replicas([])
        with pytest.raises(NoReplica):
            await result(chosen(ours))

    asyncio.run(go())


def test_before_serve_has_told_of_any_it_waits() -> None:
    async def go() -> Any:
        ours = router()
        task = chosen(ours)
        await asyncio.sleep(0.1)
        waits = not task.done()
        ours.update_replicas([replica := Replica("1")])
        return waits and await result(task) is replica

    assert asyncio.run(go())


@pytest.mark.parametrize("how", ["Serve tells", "it is found dead"])
def test_what_waits_when_the_last_one_goes_is_refused_too(how: str) -> None:
    async def go() -> None:
        ours = router()
        ours.update_replicas([busy := BusyReplica("1")])
        task = chosen(ours)
        await asyncio.sleep(0.1)
        assert not task.done()
        if how == "Serve tells":
            ours.update_replicas([])
        else:
            ours.on_replica_actor_died(busy.replica_id)
        with pytest.raises(NoReplica):
            await result(task)

    asyncio.run(go())


def test_what_was_refused_is_forgotten() -> None:
    async def go() -> Any:
        ours = router()
        ours.update_replicas([busy := BusyReplica("1")])
        task = chosen(ours)
        await asyncio.sleep(0.1)
        ours.on_replica_actor_died(busy.replica_id)
        with pytest.raises(NoReplica):
            await result(task)
        return dict(ours._pending_requests_by_id)

    assert asyncio.run(go()) == {}


def test_a_call_to_prefill_goes_where_it_asks_and_elsewhere_only_when_that_one_is_gone() -> None:
    async def go() -> None:
        ours = prefill_router("1", "2")
        for _ in range(8):
            assert (await result(called(ours, replica="2"))).replica_id.unique_id == "2"
        assert (await result(called(ours, replica="gone"))).replica_id.unique_id in ("1", "2")
        assert (await result(called(ours, replica="2", only=True))).replica_id.unique_id == "2"
        with pytest.raises(NoReplica):
            await result(called(ours, replica="gone", only=True))

    asyncio.run(go())


def test_a_call_that_waits_is_held_until_a_replica_is_up_and_another_one_refused() -> None:
    async def go() -> None:
        ours = prefill_router()
        waiting = called(ours, waits=True)
        with pytest.raises(NoReplica):
            await result(called(ours))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        ours.update_replicas([replica := Replica("1")])
        assert await result(waiting) is replica

    asyncio.run(go())


def test_a_hundred_calls_at_once_are_all_given_a_replica_and_nothing_stands_still() -> None:
    async def go() -> None:
        ours, beats = prefill_router("1", "2"), 0

        async def beat() -> None:
            nonlocal beats
            while True:
                await asyncio.sleep(0.001)
                beats += 1

        beating = asyncio.create_task(beat())
        calls = [called(ours, replica=str(at % 3)) for at in range(100)]
        await asyncio.wait_for(asyncio.gather(*calls), 5)
        await asyncio.sleep(0.05)
        beating.cancel()
        assert beats > 10

    asyncio.run(go())


def test_serves_proxy_makes_an_openai_error_with_a_time_to_come_back_of_it() -> None:
    start, body = send_http_response_on_exception(get_http_response_status(NoReplica(), None, "1"), False)
    headers = dict(start["headers"])
    assert start["status"] == 503
    assert headers[b"retry-after"] == b"5"
    assert headers[b"content-type"] == b"application/json"
    error = json.loads(body["body"])
    assert error == error_body(error["error"]["message"], UNAVAILABLE, 503)


_LOADED = """
import base64, sys
sys.modules["diptych"] = None
from ray import cloudpickle
print(cloudpickle.loads(base64.b64decode(sys.stdin.read())).__name__)
"""


@pytest.mark.parametrize("name", ["FacingRouter", "ChosenReplicaRouter"])
def test_serve_can_carry_it_to_where_nothing_of_ours_is_installed(name: str) -> None:
    config = RequestRouterConfig(request_router_class=f"diptych.serving.router:{name}")
    pickled = config.get_serialized_request_router_cls()
    assert pickled
    done = subprocess.run(
        [sys.executable, "-c", _LOADED],
        input=base64.b64encode(pickled).decode(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.strip() == name, done.stderr[-1000:]


@pytest.mark.parametrize(
    ("settings", "ours"),
    [
        ({}, True),
        ({"num_replicas": 2}, True),
        ({"autoscaling_config": {"max_replicas": 2}}, True),
        ({"autoscaling_config": {"min_replicas": 0, "max_replicas": 2}}, False),
        ({"request_router_config": {"request_router_class": "theirs:Router"}}, False),
    ],
)
def test_it_is_ours_unless_the_user_chose_or_a_waiting_request_starts_the_first(
    settings: Mapping[str, Any], ours: bool
) -> None:
    config: Any = SimpleNamespace(deployment_config=settings)
    assert bool(builder._facing_router(config)) == ours
