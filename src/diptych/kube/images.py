"""Images on their way to a node: how long the pull takes and might take, and why one fails."""

import re

from diptych.kube.blocker import Blocker, cut
from diptych.kube.objects import Object, name_of, node_of, phase_of
from diptych.kube.snapshot import Snapshot, last_seen
from diptych.kube.waiting import duration

PULL_FAILED = (
    "ImagePullBackOff",
    "ErrImagePull",
    "ErrImageNeverPull",
    "InvalidImageName",
    "RegistryUnavailable",
)
_PULLED = re.compile(
    r'Successfully pulled image "(?P<image>[^"]+)" in (?P<took>[\w.]+) \((?P<waited>[\w.]+) including waiting\)\.'
    r" Image size: (?P<bytes>\d+) bytes"
)
_PULLING = re.compile(r'Pulling image "(?P<image>[^"]+)"')
_SPAN = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<unit>h|ms|m|s|µs|us|ns)")
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}

_FAILURES = (
    (
        ("no match for platform", "no matching manifest"),
        "the image is not there for this node's kind of processor",
        "Name an image for it in `image.name`, or use x86-64 nodes.",
        True,
    ),
    (
        ("not found", "manifest unknown", "name unknown"),
        "there is no such image or tag",
        "Correct `image.name` in the document.",
        True,
    ),
    (
        ("toomanyrequests", "429", "rate limit"),
        "the registry turns it away for too many requests",
        "It tries again; set `image.pull_secret` to have a quota of your own.",
        False,
    ),
    (
        (
            "unauthorized",
            "denied",
            "authorization failed",
            "authentication required",
            "no basic auth",
            "403",
            "401",
        ),
        "the registry does not let it in",
        "Set `image.pull_secret`, or let the nodes' role read that registry.",
        True,
    ),
    (
        ("no space left on device",),
        "the node's disk is full",
        "Raise `nodes.volume_size` and make the nodes anew.",
        True,
    ),
    (
        (
            "no such host",
            "i/o timeout",
            "connection refused",
            "TLS handshake",
            "connection reset",
            "Try again",
        ),
        "the registry can't be reached from the node",
        "Do the nodes have a way out: a NAT gateway, a proxy, a mirror of the registry?",
        False,
    ),
)


def failed_pull(pod: Object, container: str, waiting: Object, image: str) -> Blocker:
    """A pull that failed, and whether it may yet work."""
    message = str(waiting.get("message") or "")
    where, phase = f"pod {name_of(pod)}", phase_of(pod)
    if waiting.get("reason") == "InvalidImageName":
        what = f"can't have the image {image!r} of its container {container}: that is no image name"
        return Blocker(where, what, "Correct `image.name` in the document.", is_fatal=True, phase=phase)
    start = f"can't pull the image {image} on node {node_of(pod)}"
    for words, why, do, is_fatal in _FAILURES:
        if any(word in message for word in words):
            return Blocker(where, f"{start}: {why}", do, is_fatal=is_fatal, phase=phase)
    return Blocker(
        where, f"{start}: {cut(message, 300) or waiting.get('reason')}", "It tries again.", phase=phase
    )


def pull(pod: Object, snapshot: Snapshot, now: float) -> Blocker | None:
    """The pull that a pod waits for; None where none is on its way."""
    told = snapshot.events_of(pod, "Pulling", "Pulled", "Failed", "BackOff")
    if not told or told[-1].get("reason") != "Pulling":
        return None
    found = _PULLING.search(str(told[-1].get("message") or ""))
    image = found["image"] if found else "its image"
    what = f"pulls the image {image} on node {node_of(pod)}, for {duration(now - last_seen(told[-1]))}"
    other = _other_pull(image, snapshot)
    return Blocker(f"pod {name_of(pod)}", f"{what}{other}", phase=phase_of(pod))


def _other_pull(image: str, snapshot: Snapshot) -> str:
    """What the same image took on another node: the only thing that tells of its size."""
    for event in reversed(snapshot.events):
        found = _PULLED.search(str(event.get("message") or ""))
        if found and found["image"] == image and (took_s := span_s(found["took"])) > 0:
            size, host = int(found["bytes"]), (event.get("source") or {}).get("host")
            rate = f"{size / 1e9:.1f} GB in {duration(took_s)}, {size / 1e6 / took_s:.0f} MB/s"
            return f"; {f'node {host}' if host else 'another node'} took {rate}"
    return ""


def span_s(written: str) -> float:
    """A span of time as Go writes it, in seconds.

    >>> span_s("3m2.5s"), span_s("313ms")
    (182.5, 0.313)
    """
    return sum(float(each["number"]) * _SECONDS[each["unit"]] for each in _SPAN.finditer(written))
