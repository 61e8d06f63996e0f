"""The endpoint's routes by name, for counts, log lines and spans: a path that a client makes up gets into none."""

import re
from collections.abc import Mapping
from typing import Any

ENGINE_ROUTES = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/responses/{response_id}",
    "/v1/responses/{response_id}/cancel",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/models",
    "/v1/models/{model:path}",
    "/tokenize",
    "/detokenize",
    "/version",
    "/metrics",
)
OWN_ROUTES = (
    "/health",
    "/ready",
    "/diptych/v1/status",
    "/diptych/v1/canary",
    "/diptych/v1/probe",
    "/diptych/v1/nccl",
    "/diptych/v1/requests",
)
OTHER = "other"

_BLANKS = {"{response_id}": "[^/]+", "{model:path}": ".+"}


def route_path(scope: Mapping[str, Any]) -> str:
    """The path of a request as routes see it: without the prefix under which Serve has mounted the application."""
    path: str = scope["path"]
    prefix: str = scope.get("root_path", "")
    return path.removeprefix(prefix) if path.startswith(f"{prefix}/") else path


def route_of(path: str) -> str:
    """The route that a URL's path belongs to, its blanks unfilled; `other` for one that there is none of.

    >>> route_of("/v1/responses/resp_123/cancel"), route_of("/wp-login.php")
    ('/v1/responses/{response_id}/cancel', 'other')
    """
    if path in _PLAIN:
        return path
    return next((route for route, pattern in _PATTERNS if pattern.fullmatch(path)), OTHER)


def _pattern(route: str) -> re.Pattern[str]:
    text = re.escape(route)
    for blank, filled in _BLANKS.items():
        text = text.replace(re.escape(blank), filled)
    return re.compile(text)


_PLAIN = frozenset(route for route in ENGINE_ROUTES + OWN_ROUTES if "{" not in route)
_PATTERNS = [(route, _pattern(route)) for route in ENGINE_ROUTES if "{" in route]
