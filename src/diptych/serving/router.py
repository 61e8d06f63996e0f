"""Serve's request router for prefill: each call goes to the replica that the orchestrator chose.

Serve runs it in the process of the caller, beside its own bookkeeping of replicas; a call names its replica in its
argument.
"""

from typing import Any

from ray.serve.request_router import RequestRouter


class ChosenReplicaRouter(RequestRouter):
    """Takes the replica that a call asks for while Serve knows it and it has room, else any."""

    async def choose_replicas(
        self, candidate_replicas: list[Any], pending_request: Any = None
    ) -> list[list[Any]]:
        """Replicas to try, the best group first."""
        wanted = _wanted(pending_request)
        chosen = [each for each in candidate_replicas if each.replica_id.unique_id == wanted]
        others = [each for each in candidate_replicas if each not in chosen]
        return [group for group in (chosen, others) if group]


def _wanted(pending_request: Any) -> str | None:
    arguments = getattr(pending_request, "args", None) or ()
    asked = next((each for each in arguments if isinstance(each, dict)), {})
    wanted: str | None = asked.get("replica")
    return wanted
