"""Serve's request routers of our deployments: which replica a call goes to, and what it is told when there is none.

Serve runs a router in the process of the caller, beside its own bookkeeping of replicas, and carries its class there
by value: what stands here may need nothing of ours at run time but this module.
"""

import asyncio
import random
from typing import Any

from ray.serve.exceptions import BackPressureError
from ray.serve.request_router import RequestRouter

from diptych.serving.errors import NOBODY_IS_UP
from diptych.serving.ray_llm import PowerOfTwoChoicesRequestRouter

_RETRY_AFTER_S = 5
_AGAIN_AFTER_S = 0.05
_LOOK_EVERY_S = 0.5


class NoReplica(BackPressureError):  # noqa: N818 - what the client is told, no mishap
    """No replica is up that could answer: a 503 with a time to come back, which Serve's proxy turns it into."""

    def __init__(self, *_: Any) -> None:
        super().__init__(0, 0, 503, _RETRY_AFTER_S)

    @property
    def message(self) -> Any:
        """The body, which Serve turns into JSON."""
        return NOBODY_IS_UP


class FacingRouter(PowerOfTwoChoicesRequestRouter):
    """For what faces clients: Serve's own choice; but with no replica up, a refusal at once.

    Serve's own has a request wait for a replica however long that takes to start, which is minutes for a large model.
    Before Serve has told of any replica a request waits here too.

    And replicas that refuse prompts, as Serve tells from their `record_routing_stats`, are left out while there are
    others: refusing, they have the shortest queues, by which Serve chooses.
    """

    _knows = False

    def update_replicas(self, replicas: list[Any]) -> None:
        """Take in what Serve tells."""
        super().update_replicas(replicas)
        self._knows = True
        self._refuse_waiting()

    def on_replica_actor_died(self, replica_id: Any) -> None:
        """Take a replica out, before Serve tells."""
        super().on_replica_actor_died(replica_id)
        self._refuse_waiting()

    async def choose_replicas(
        self, candidate_replicas: list[Any], pending_request: Any = None
    ) -> list[list[Any]]:
        """Replicas to try, the best group first."""
        groups: list[list[Any]] = await super().choose_replicas(candidate_replicas, pending_request)
        taking = [each for each in candidate_replicas if not each.routing_stats.get("refuses")]
        if not taking or len(taking) == len(candidate_replicas):
            return groups
        kept = [[each for each in group if each in taking] for group in groups]
        return [group for group in kept if group] or [random.sample(taking, min(2, len(taking)))]

    async def _choose_replica_for_request(self, pending_request: Any, *, is_retry: bool = False) -> Any:
        if self._knows and not self.curr_replicas:
            raise NoReplica
        try:
            return await super()._choose_replica_for_request(pending_request, is_retry=is_retry)
        except NoReplica:
            self._remove_pending_request_from_indices(pending_request)
            raise

    def _refuse_waiting(self) -> None:
        if self.curr_replicas:
            return
        for pending in self._pending_requests_to_fulfill:
            if not pending.future.done():
                pending.future.set_exception(NoReplica())


class ChosenReplicaRouter(RequestRouter):
    """Takes the replica that a call asks for while Serve knows it, else any; a call may insist (`only`).

    With no replica up a call is refused, but one that `waits` for one: what waits has Serve start one, where it scales.

    Serve's own routing tasks are left out: with a router that matches calls one by one, Ray 2.58's spin for seconds, in
    which nothing else of the caller runs, and lose a call now and then.
    """

    async def choose_replicas(
        self, candidate_replicas: list[Any], pending_request: Any = None
    ) -> list[list[Any]]:
        """Replicas to try, the best group first."""
        asked = _asked(pending_request)
        chosen = [each for each in candidate_replicas if each.replica_id.unique_id == asked.get("replica")]
        others = [each for each in candidate_replicas if each not in chosen and not asked.get("only")]
        return [group for group in (chosen, others) if group]

    async def _choose_replica_for_request(self, pending_request: Any, *, is_retry: bool = False) -> Any:
        if is_retry:  # the one before had no room, or is gone
            await asyncio.sleep(_AGAIN_AFTER_S)
        while not (groups := await self.choose_replicas([*self.curr_replicas.values()], pending_request)):
            if not _asked(pending_request).get("waits"):
                raise NoReplica
            await asyncio.sleep(_LOOK_EVERY_S)
        return random.choice(groups[0])


def _asked(pending_request: Any) -> dict[str, Any]:
    arguments = getattr(pending_request, "args", None) or ()
    return next((each for each in arguments if isinstance(each, dict)), {})
