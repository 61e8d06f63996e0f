"""How far a model is on its way into an engine, read from the lines of who carries it: staging, then vLLM.

Slow and stuck look alike from outside. So what is said has a rate and an estimate wherever the lines have bytes.
"""

import re
from collections.abc import Iterable, Sequence

from diptych.engine_log import clean
from diptych.kube.waiting import duration

SLOW_BYTES_PER_S = 100e6
"""A rate below this is called slow: a local NVMe disk reads ten times as fast, a hub delivers as much."""

_STAGED = re.compile(r"^stage: (?P<gb>[\d.]+) GB are here, (?P<rate>\d+) MB/s")
_HERE = re.compile(r"^stage: .+ is in .+ already")
_FETCHED = re.compile(r"^stage: .+ is in \S+: (?P<rate>[\d.]+ GB in \d+ s, \d+ MB/s)")
_AGAIN = re.compile(r"^stage: (?P<what>attempt \d+ of \d+ failed, again in \d+ s): (?P<why>.*)")
_TURN = re.compile(r"^stage: another pod on this node is fetching the model")

_SHARDS = re.compile(
    r"(?:Multi-thread )?[Ll]oading [\w ]*(?:shards|Streamer|loader)(?: \(eager\))?:\s+(?P<share>\d+)% Completed"
    r" \| (?P<done>\d+)/(?P<all>\d+) \[(?P<elapsed>[\d:]+)<(?P<left>[\d:?]+)"
)
_PREFETCH = re.compile(r"Prefetching checkpoint files: (?P<share>\d+)%")
_SIZE = re.compile(r"Filesystem type for checkpoints: (?P<disk>\S+)\. Checkpoint size: (?P<gib>[\d.]+) GiB")
_NETWORK_DISKS = ("NFS", "NFS4", "LUSTRE", "EFS")

_STAGES = (
    (
        re.compile(r"Not up yet, for (?P<s>\d+) s: (?P<what>.*)"),
        "waits for the proof of a KV transfer: {what}",
    ),
    (re.compile(r"Proving a KV transfer"), "waits for the proof of a KV transfer"),
    (
        re.compile(r"init engine \(profile, create kv cache, warmup model\) took"),
        "has its engine up; it is warming up",
    ),
    (re.compile(r"Graph capturing finished"), "has captured its CUDA graphs"),
    (re.compile(r"Capturing CUDA graphs.*?:\s+(?P<share>\d+)%"), "captures CUDA graphs, {share} %"),
    (re.compile(r"GPU KV cache size: (?P<tokens>[\d,]+) tokens"), "has its KV cache, for {tokens} tokens"),
    (re.compile(r"torch\.compile took"), "has compiled the model"),
    (re.compile(r"(?:Dynamo bytecode transform|Compiling a graph)"), "compiles the model (torch.compile)"),
    (
        re.compile(r"Model loading took (?P<gib>[\d.]+) GiB"),
        "has loaded the weights, {gib} GiB, and measures memory",
    ),
    (re.compile(r"Loading weights took (?P<s>[\d.]+) seconds"), "has read the weights, in {s} s"),
)
"""What comes after the weights are read, the latest first."""

_BEGUN = re.compile(r"Starting to load model")


def staging(lines: Sequence[str], checkpoint_bytes: int | None) -> str:
    """What the container that fetches the model does, in words to be read after the pod's name; empty: unknown.

    Args:
        lines: of `diptych.serving.stage`.
        checkpoint_bytes: size of the model's files, for the estimate.
    """
    for line in reversed(lines):
        if found := _STAGED.match(line):
            return _fetching(float(found["gb"]) * 1e9, float(found["rate"]) * 1e6, checkpoint_bytes)
        if found := _AGAIN.match(line):
            return f"fetches the model: {found['what']}: {found['why'][:200]}"
        if _TURN.match(line):
            return "waits for another pod of its node that is fetching the model"
        if _HERE.match(line):
            return "has the model on its node already (warm)"
        if found := _FETCHED.match(line):
            return f"has fetched the model (cold): {found['rate']}"
    return ""


def engine(lines: Iterable[str], checkpoint_bytes: int | None) -> str:
    """What an engine that starts does, likewise; the latest stage that its lines tell of.

    Args:
        lines: of one engine; those of its two streams may stand one after the other.
    """
    told = [text for line in lines if (text := clean(line))]
    for pattern, words in _STAGES:
        if found := _last(pattern, told):
            return words.format(**found.groupdict())
    disk = _last(_SIZE, told)
    size = checkpoint_bytes or (float(disk["gib"]) * 2**30 if disk else None)
    if found := _last(_SHARDS, told):
        return _reading(found, size, disk["disk"] if disk else "")
    if found := _last(_PREFETCH, told):
        return f"reads the weights into memory, {found['share']} %"
    return "loads the weights" if _last(_BEGUN, told) else ""


def _last(pattern: re.Pattern[str], lines: Sequence[str]) -> re.Match[str] | None:
    return next((found for line in reversed(lines) if (found := pattern.search(line))), None)


def _fetching(there: float, rate: float, checkpoint_bytes: int | None) -> str:
    text = f"fetches the model: {there / 1e9:.1f}"
    if checkpoint_bytes is None:
        return f"{text} GB at {_rate(rate)}"
    left_s = (checkpoint_bytes - there) / rate if rate else None
    text += f" of {checkpoint_bytes / 1e9:.1f} GB at {_rate(rate)}"
    return text if left_s is None else f"{text}, about {duration(max(0.0, left_s))} left"


def _reading(found: re.Match[str], size: float | None, disk: str) -> str:
    share, elapsed_s = int(found["share"]), _clock_s(found["elapsed"])
    text = f"loads the weights: {found['done']} of {found['all']} files, {share} %"
    if size and elapsed_s and share:
        text += f", {_rate(size * share / 100 / elapsed_s)}"
    left_s = _clock_s(found["left"])
    if left_s is not None and share < 100:
        text += f", about {duration(left_s)} left"
    if disk.upper() in _NETWORK_DISKS:
        text += f"; they lie on a network disk ({disk}): `staging.enabled: true` puts them on the nodes' own"
    return text


def _rate(bytes_per_s: float) -> str:
    slow = ", which is slow" if bytes_per_s < SLOW_BYTES_PER_S else ""
    return f"{bytes_per_s / 1e6:.0f} MB/s{slow}"


def _clock_s(written: str) -> float | None:
    """A time as progress bars write it, in seconds; None where they don't know it.

    >>> _clock_s("01:05"), _clock_s("1:00:00"), _clock_s("?")
    (65.0, 3600.0, None)
    """
    parts = written.split(":")
    if not all(part.isdigit() for part in parts):
        return None
    seconds = 0.0
    for part in parts:
        seconds = seconds * 60 + int(part)
    return seconds
