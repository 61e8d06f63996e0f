"""T4xx: where engines publish KV events. Each listens on an endpoint of its own; one that is taken ends the engine."""

import re
from collections.abc import Iterable

from diptych.check.findings import Complaint
from diptych.check.ports import FIXED_PORTS, port_ranges
from diptych.check.rules import rule
from diptych.check.subject import PhaseView, Subject
from diptych.render.names import serve_port

DEFAULT_ENDPOINT = "tcp://*:5557"
"""vLLM's own."""

_PORT = re.compile(r"tcp://.*:(\d+)")


@rule("T416", "error", "KV events on a port that is taken")
def events_have_own_ports(subject: Subject) -> Iterable[Complaint]:
    listening = {view.name: _endpoints(view) for view in subject.phases}
    for view in subject.phases:
        for endpoint in listening[view.name]:
            user = _other_user(subject, view, endpoint)
            if user:
                do = "choose a port that nobody uses, like 5557, with one engine in each pod; or remove it"
                yield Complaint(
                    view.path("kv_events_config"), f"engines listen on {endpoint}, and {user}", do
                )
    if subject.is_local and subject.is_split:
        shared = [endpoint for endpoint in listening["prefill"] if endpoint in listening["decode"]]
        for endpoint in shared:
            yield Complaint(
                subject.phases[1].path("kv_events_config"),
                f"prefill and decode both listen on {endpoint} of this machine: the second engine does not start",
                "give each phase an endpoint of its own, for example decode tcp://*:5558",
            )


def _endpoints(view: PhaseView) -> list[str]:
    """Where an engine of this phase listens for readers of its KV events."""
    config = view.kwargs.get("kv_events_config")
    if not isinstance(config, dict) or config.get("enable_kv_cache_events") is not True:
        return []
    if config.get("publisher") == "null":
        return []
    endpoint = str(config.get("endpoint") or DEFAULT_ENDPOINT)
    binds = "*" in endpoint or "::" in endpoint or endpoint.startswith(("ipc://", "inproc://"))
    replay = config.get("replay_endpoint")
    found = ([endpoint] if binds else []) + ([str(replay)] if replay else [])
    return [each for each in found if not each.startswith("inproc://")]


def _other_user(subject: Subject, view: PhaseView, endpoint: str) -> str | None:
    """Who else listens there, in words; None if nobody does."""
    together = _engines_on_one_host(view)
    if together > 1:
        host = "on this machine" if subject.is_local else "in one pod"
        return f"up to {together} engines of {view.name} run {host}: only the first one starts"
    match = _PORT.fullmatch(endpoint)
    if match is None or subject.is_local:
        return None
    port = int(match[1])
    fixed = {**FIXED_PORTS, serve_port(subject.document): "Ray Serve"}
    if port in fixed:
        return f"{port} is the port of {fixed[port]}"
    held = next(
        (each for each in port_ranges(subject) if each.phase == view.name and port in each.ports), None
    )
    return f"{port} is one of the ports for KV transfers ({held})" if held else None


def _engines_on_one_host(view: PhaseView) -> int:
    replicas = view.section.most_replicas
    return min(replicas, view.group.replicas_per_pod) if view.group else replicas
