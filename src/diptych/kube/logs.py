"""The logs of a phase: what its pods' containers print and what Ray keeps in files, merged by time.

Lines are asked for again and again instead of held on to: so following outlives pods, containers and outages.
"""

import contextlib
import datetime
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from diptych.engine_log import clean
from diptych.errors import ClusterError
from diptych.kube.connection import Cluster, RefusedError, UnreachableError
from diptych.kube.objects import Object, container_states, is_head, name_of, phase_of, unix_time
from diptych.kube.ray_logs import RayLogs, files_of_engines, files_of_ray
from diptych.kube.snapshot import take
from diptych.spec import Document

RAY = "ray"
"""Instead of a phase: the head, and Ray's own files."""

_EVERY_S = 1.0
_WINDOW = 400
"""Lines of a file that each look reads."""
_STAMP = re.compile(r"^(?:\w+ )?(?P<year>\d{4})-(?P<rest>\d\d-\d\d[ T]\d\d:\d\d:\d\d)")
_SHORT_STAMP = re.compile(r"\b(?P<rest>\d\d-\d\d \d\d:\d\d:\d\d)\b")


@dataclass(frozen=True)
class Line:
    """A line, who wrote it, and when, in Unix seconds; a line without a time has that of the one before."""

    pod: str
    at: float
    text: str

    def __str__(self) -> str:
        return f"{_short(self.pod)}: {self.text}"


class PhaseLogs:
    """The logs of one phase, or of Ray; open within `with`.

    Attributes:
        missing: why the files of Ray, and so the engines' lines, can't be had; None where they can.
    """

    def __init__(self, cluster: Cluster, document: Document, phase: str) -> None:
        self.missing: str | None = None
        self._cluster, self._document, self._phase = cluster, document, phase
        self._ray: RayLogs | None = None
        self._seen: dict[str, list[str]] = {}

    def __enter__(self) -> "PhaseLogs":
        return self

    def __exit__(self, *_: object) -> None:
        self._close_ray()

    def look(self, tail: int | None = None) -> list[Line]:
        """The lines since the last look, oldest first.

        Args:
            tail: of the first look the last so many only.

        Raises:
            ClusterError: the cluster can't be asked.
        """
        found: list[Line] = []
        self.missing = None
        for pod in self._pods():
            found += self._printed(pod)
            found += self._written(pod)
        lines = sorted(found, key=lambda line: line.at)
        return lines if tail is None else lines[max(0, len(lines) - tail) :]

    def follow(self, tail: int, every_s: float = _EVERY_S) -> Iterator[Line]:
        """The last lines, then those that come, until the caller stops."""
        yield from self.look(tail)
        while True:
            time.sleep(every_s)
            with contextlib.suppress(UnreachableError):  # it is asked again
                yield from self.look()

    def _pods(self) -> list[Object]:
        pods = take(self._cluster, self._document).pods
        if self._phase == RAY:
            return [pod for pod in pods if is_head(pod)]
        return [pod for pod in pods if phase_of(pod) == self._phase and not is_head(pod)]

    def _printed(self, pod: Object) -> list[Line]:
        """What a pod's containers print; of one that was started again, what it printed before, too."""
        found: list[Line] = []
        for state in (*container_states(pod, init=True), *container_states(pod)):
            runs = int(state.get("restartCount") or 0)
            source = f"{name_of(pod)}/{state['name']}"
            if runs and f"{source}/{runs}" not in self._seen:
                found += self._container(pod, state["name"], f"{source}/{runs - 1}", previous=True)
            found += self._container(pod, state["name"], f"{source}/{runs}", previous=False)
        return found

    def _container(self, pod: Object, container: str, source: str, *, previous: bool) -> list[Line]:
        name, namespace = name_of(pod), self._document.kubernetes.namespace
        try:
            lines = self._cluster.log(
                name, namespace, container, tail=_WINDOW, previous=previous, timestamps=True
            )
            told = list(lines)
        except RefusedError:
            return []  # it has not started, or its log is gone with it
        fresh = added(self._seen.get(source, []), told)
        self._seen[source] = told
        found = []
        for line in fresh:
            stamp, _, written = line.partition(" ")
            if text := clean(written):
                found.append(Line(name, unix_time(_microseconds(stamp)) or 0.0, text))
        return found

    def _written(self, pod: Object) -> list[Line]:
        """What replicas and engines wrote into Ray's files."""
        try:
            if self._ray is None:
                self._ray = RayLogs(self._cluster, self._document).__enter__()
            names = self._ray.files(pod)
            wanted = files_of_ray(names) if self._phase == RAY else files_of_engines(names)
            found = [line for name in wanted for line in self._file(self._ray, pod, name)]
        except ClusterError as error:
            self.missing = error.message
            self._close_ray()
            return []
        return found

    def _file(self, ray: RayLogs, pod: Object, name: str) -> list[Line]:
        source = f"{name_of(pod)}:{name}"
        told = ray.tail(pod, name, _WINDOW)
        fresh = added(self._seen.get(source, []), told)
        self._seen[source] = told
        at, found = 0.0, []
        for line in fresh:
            at = stamp_of(line) or at
            if text := clean(line):
                found.append(Line(name_of(pod), at, text))
        return found

    def _close_ray(self) -> None:
        if self._ray is not None:
            self._ray.__exit__()
            self._ray = None


def added(before: Sequence[str], now: Sequence[str]) -> list[str]:
    """The lines at the end of `now` that are new, where both are the last lines of a file that grows.

    >>> added(["a", "b", "c"], ["b", "c", "d"]), added([], ["a"]), added(["a"], ["x", "y"])
    (['d'], ['a'], ['x', 'y'])
    """
    for shared in range(min(len(before), len(now)), 0, -1):
        if list(before[-shared:]) == list(now[:shared]):
            return list(now[shared:])
    return list(now)


def stamp_of(line: str, now: float | None = None) -> float | None:
    """The time that a line of Ray or vLLM begins with, in Unix seconds (both write UTC in their images).

    >>> stamp_of("INFO 2026-11-30 12:00:00,123 controller 7 -- up"), stamp_of("no time")
    (1796040000.0, None)
    """
    if found := _STAMP.search(line):
        return unix_time(f"{found['year']}-{found['rest'].replace(' ', 'T')}Z")
    if found := _SHORT_STAMP.search(line):
        today = datetime.datetime.fromtimestamp(time.time() if now is None else now, datetime.UTC)
        told = unix_time(f"{today.year}-{found['rest'].replace(' ', 'T')}Z")
        # vLLM writes no year: in January, December was last year.
        late = told is not None and told > today.timestamp() + 86_400
        return unix_time(f"{today.year - 1}-{found['rest'].replace(' ', 'T')}Z") if late else told
    return None


def _microseconds(stamp: str) -> str:
    """A time stamp with no finer parts than Python reads."""
    return re.sub(r"(\.\d{6})\d*Z$", r"\1Z", stamp)


def _short(pod: str) -> str:
    """A pod's name without what all pods of the service have.

    >>> _short("ray-llm-x7k2q-prefill-worker-7dl2m"), _short("ray-llm-x7k2q-head-9xkzp")
    ('prefill-worker-7dl2m', 'head-9xkzp')
    """
    found = re.search(r"(?:[a-z0-9]+-worker|head)-[a-z0-9]+$", pod)
    return found[0] if found else pod
