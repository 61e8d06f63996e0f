"""The turns of a comparison on a cluster: the service becomes each side, and whatever ends that, what it was."""

import os
import signal
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from diptych.cli import cluster_down, cluster_up, places
from diptych.cli.bench_clusters import NOTHING, STEPS, Comparing
from diptych.cli.bench_places import Side
from diptych.cli.console import err, format_duration, print_error, safe
from diptych.cli.places import Up
from diptych.cli.view import LiveView
from diptych.errors import ClusterError, DiptychError
from diptych.kube import remembered

if TYPE_CHECKING:
    from diptych.kube.job import Job

BringUp = Callable[[Side], Up]
"""Has the service be a side, ready and proven; the service."""


@contextmanager
def taking_turns(comparing: Comparing) -> Iterator[BringUp]:
    """Become sides, one after the other; whatever ends the context, the service is what it was, or that is said.

    Raises:
        ClusterError: another command is at work on it, or has changed it since it was shown.
        DiptychError: it could not be put back; the message says what is up now, and what puts it back.
    """
    up = comparing.up
    with _ended_as_by_ctrl_c(), remembered.exclusive(up.name, up.place):
        now = remembered.unchanged(up.name, up.place, comparing.known)
        if now is None and not comparing.was_up:
            remembered.remember(up.known)
        service = _Service(comparing)
        try:
            yield service.become
        except BaseException as failure:
            _end_after(failure, service)
            raise
        service.put_back()


class _Service:
    """The service while it is compared: which side it is, and the way back."""

    def __init__(self, comparing: Comparing) -> None:
        self._comparing = comparing
        self._is = comparing.before
        self._is_ready = True
        self._has_served = comparing.was_up
        self._was_another = False

    @property
    def is_as_it_was(self) -> bool:
        """Nothing has to be put back."""
        return self._is == self._comparing.before and self._is_ready

    @property
    def fails_as_it_was(self) -> bool:
        """It did not get ready with its own document, and was nothing else before."""
        return self._comparing.was_up and not self._was_another and not self._is_ready

    def tell_that_it_fails(self) -> None:
        """Say that there is no way back to go."""
        comparing = self._comparing
        err().print(
            f"Nothing but its own document ({comparing.own}) was applied to {comparing.up.name}, and it did not get "
            f"ready with it; {comparing.command} goes on from there.",
            highlight=False,
            soft_wrap=True,
        )

    def become(self, side: Side) -> Up:
        """Have the service be that side, ready and proven.

        Raises:
            DiptychError: it does not get ready, or its proof fails.
        """
        self._apply(side.name, self._comparing.jobs[side.name])
        return self._comparing.up

    def put_back(self) -> None:
        """Have it be its own document again, or go, where it was not there.

        Raises:
            DiptychError: that did not come about; what is up now, and what to do.
        """
        comparing = self._comparing
        if self.is_as_it_was:
            self._forget()
            return
        began = time.monotonic()
        try:
            if comparing.was_up:
                err().print(
                    f"Putting {comparing.up.name} back to what it was: {comparing.own} …", highlight=False
                )
                self._has_served = False
                self._apply(comparing.own, comparing.job)
            else:
                self._take_down()
        except DiptychError as error:
            raise ClusterError(
                f"{self._not_put_back()} {error.message}", self._way_back(error.hint)
            ) from error
        except KeyboardInterrupt:
            err().print(f"{self._not_put_back()} {self._way_back()}", highlight=False, soft_wrap=True)
            raise
        took = format_duration(time.monotonic() - began)
        if comparing.was_up:
            service = remembered.recall(comparing.up.name, comparing.up.place)
            if service is not None:  # a KV transfer is proven again
                remembered.remember(service.model_copy(update={"fallback": None}))
            err().print(
                f"{comparing.up.name} is what it was again after {took}: {comparing.own}.", highlight=False
            )
        else:
            self._forget()
            err().print(f"{comparing.up.name} is down again, after {took}.", highlight=False)

    def _apply(self, name: str, job: "Job") -> None:
        comparing = self._comparing
        self._was_another |= name != comparing.own or comparing.fresh
        with LiveView(err(), STEPS) as view:
            viewed = replace(job, view=view)
            if self._has_served and (comparing.fresh or self._is not in (NOTHING, name)):
                self._end_what_would_stay(viewed)
            self._is, self._is_ready = name, False
            cluster_up.take(comparing.up, viewed, STEPS)
        self._is_ready = self._has_served = True

    def _end_what_would_stay(self, job: "Job") -> None:
        """End engines that have served another side, or any where none may serve twice.

        From split to split their number is changed in place, and those that stayed would know the round's tokens.
        """
        from diptych.kube import service
        from diptych.kube.removal import remove_ray_service

        comparing = self._comparing
        with places.cluster_of(comparing.up, job) as cluster:
            if comparing.fresh or service.plan(job, cluster).kind == "in-place":
                self._is, self._is_ready = NOTHING, False
                remove_ray_service(job, cluster)

    def _take_down(self) -> None:
        comparing = self._comparing
        err().print(f"{comparing.up.name} was not up before: taking it down …", highlight=False)
        with LiveView(err(), STEPS) as view:
            cluster_down.take(comparing.up, replace(comparing.job, view=view), STEPS)
        self._is = NOTHING

    def _forget(self) -> None:
        """What was remembered for the sake of the comparison alone."""
        comparing = self._comparing
        is_ours = comparing.known is None and not comparing.was_up
        if is_ours and cluster_down.is_nowhere(comparing.up, comparing.job):
            remembered.forget(comparing.up.name, comparing.up.place)

    def _not_put_back(self) -> str:
        comparing = self._comparing
        try:
            from diptych.kube.service import what_is_up

            with places.cluster_of(comparing.up, comparing.job) as cluster:
                is_up = what_is_up(comparing.job, cluster)
        except DiptychError as error:
            is_up = f"{self._is} was applied last, and the cluster can't be asked: {error.message}"
        verb = "put back" if comparing.was_up else "taken down again"
        return f"{comparing.up.name} was not {verb}. Up now: {is_up}"

    def _way_back(self, hint: str = "") -> str:
        comparing = self._comparing
        if comparing.was_up:
            return f"{hint} Then put it back: {comparing.command}".strip()
        return f"{hint} Then take it down: diptych down --name {comparing.up.name} --step service".strip()


def _end_after(failure: BaseException, service: _Service) -> None:
    """Put the service back after a failure; one of the way back does not hide the first."""
    if isinstance(failure, DiptychError) and service.fails_as_it_was:
        service.tell_that_it_fails()  # the same again would fail the same way
        return
    if not service.is_as_it_was:
        if isinstance(failure, KeyboardInterrupt):
            err().print("Interrupted. Press Ctrl-C again to leave the service as it is now.")
        else:
            says = failure.message if isinstance(failure, DiptychError) else repr(failure)
            err().print(f"It ends here: {safe(says)}", highlight=False, soft_wrap=True)
    try:
        service.put_back()
    except DiptychError:
        if isinstance(failure, DiptychError):
            print_error(failure)
        raise


@contextmanager
def _ended_as_by_ctrl_c() -> Iterator[None]:
    """Whoever ends this process, or closes its terminal, gets the service put back as after Ctrl-C."""
    ends = (signal.SIGTERM, signal.SIGHUP) if threading.current_thread() is threading.main_thread() else ()
    heard = [number for number in ends if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, _interrupt) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(number: int, frame: object) -> None:
    # Both may come twice: by the shell and the kernel of a terminal that is closed, to a process and its group.
    signal.signal(number, signal.SIG_IGN)
    if number == signal.SIGHUP:  # a terminal that is gone can't be written to
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (1, 2):
            if stat.S_ISCHR(os.fstat(stream).st_mode):
                os.dup2(nowhere, stream)
    raise KeyboardInterrupt
