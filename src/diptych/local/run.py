"""One run of a service as the process sees it that starts it: the keeper on its leash, from first to last."""

import contextlib
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from diptych.errors import StartError
from diptych.local.environment import service_environment
from diptych.local.events import EventLog
from diptych.local.ingress import haproxy_environment
from diptych.local.paths import ServicePaths
from diptych.local.plan import Plan
from diptych.local.processes import end_all
from diptych.local.state import ServiceState, load, save
from diptych.progress import View

_CLEAN_UP_S = 30.0
_BEYOND_THE_KEEPERS_DEADLINE_S = 180.0
_LAST_KINDS = ("ready", "failed", "stopped")


class Run:
    """Starts a keeper, follows it, and lets it go or ends it with all it started."""

    def __init__(self, plan: Plan, state: ServiceState, paths: ServicePaths, view: View) -> None:
        self._plan = plan
        self._state = state
        self._paths = paths
        self._view = view
        self._events = EventLog(Path(plan.events))
        self._keeper: subprocess.Popen[str] | None = None

    @contextlib.contextmanager
    def ended_on_failure(self) -> Iterator[None]:
        """Whatever goes wrong inside, Ctrl-C included, leaves nothing of the run."""
        try:
            yield
        except BaseException:
            with _no_interrupts():
                self._view.ending()
                self.end()
            raise

    def start(self) -> None:
        """Spawn the keeper, in a session of its own, and remember it.

        Raises:
            StartError: Ray's temporary directory cannot be made.
        """
        directory = Path(self._plan.ray_directory)
        shutil.rmtree(directory, ignore_errors=True)
        try:
            directory.mkdir(mode=0o700)
        except OSError as error:
            raise StartError(
                f"Ray's temporary directory {directory} cannot be made: {error.strerror}.",
                "Remove what is there, or point TMPDIR at a directory of your own.",
            ) from None
        ray_token = Path(self._plan.ray_token_file)
        with self._paths.keeper_log.open("w") as log:
            self._keeper = subprocess.Popen(
                [sys.executable, "-m", "diptych.local.keeper", str(self._paths.plan)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._paths.directory,
                # Engines that are killed leave sockets and files behind: in a directory that goes with the service.
                env=service_environment(
                    self._plan.run_id,
                    self._plan.host,
                    ray_token,
                    self._plan.withheld_variables,
                    haproxy_environment(directory, self._plan.haproxy_ports),
                )
                | {"TMPDIR": str(directory)},
                text=True,
                start_new_session=True,
            )
        save(self._paths, self._state.model_copy(update={"keeper_pid": self._keeper.pid}))

    def follow(self) -> ServiceState:
        """Show what the keeper tells until the service is ready.

        Raises:
            StartError: it failed, was stopped, or said nothing for too long.
        """
        deadline = time.monotonic() + self._plan.start_deadline_s + _BEYOND_THE_KEEPERS_DEADLINE_S
        for event in self._events.follow():
            if event is None:
                self._view.tick()
                self._expect_keeper()
                if time.monotonic() > deadline:
                    raise StartError("The service did not come up in time.", f"See {self._paths.keeper_log}.")
                continue
            self._view.stage(event)
            if event.kind == "failed":
                raise StartError(event.text, event.hint)
            if event.kind == "stopped":
                raise StartError(f"The service was stopped while it came up: {event.text}.")
            if event.kind == "ready":
                break
        return load(self._paths) or self._state

    def let_go(self) -> None:
        """Take off the leash: the service lives on without us.

        Raises:
            StartError: the keeper died in the meantime.
        """
        self._expect_keeper()
        try:
            print("detach", file=self._keeper_input, flush=True)
        except OSError:
            raise StartError("The keeper of the service died.", f"See {self._paths.keeper_log}.") from None

    def wait(self) -> None:
        """Stay as long as the service lives.

        Raises:
            StartError: it failed; the message says why.
        """
        while self._keeper is not None and self._keeper.poll() is None:
            time.sleep(0.3)
            self._view.tick()
        for event in self._events.so_far():
            if event.kind == "failed":
                raise StartError(event.text, event.hint)

    def end(self) -> None:
        """End the keeper and all it started; the leash first, so that it does so itself.

        Raises:
            StartError: some processes could not be ended.
        """
        if self._keeper is not None:
            with contextlib.suppress(OSError, ValueError):
                self._keeper_input.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._keeper.wait(_CLEAN_UP_S)
        left = end_all(self._state.mark, grace_s=1.0)
        remembered = load(self._paths)
        if remembered is None or remembered.run_id == self._plan.run_id:
            self._paths.forget()
        if left:
            rows = ", ".join(f"{process.name} (pid {process.pid})" for process in left)
            raise StartError(f"These processes could not be ended: {rows}.", "End them by hand.")

    @property
    def _keeper_input(self) -> IO[str]:
        if self._keeper is None or self._keeper.stdin is None:
            raise ValueError("the keeper was not started")
        return self._keeper.stdin

    def _expect_keeper(self) -> None:
        """The keeper lives, or has told how it ended (the event may be written and not read yet)."""
        if self._keeper is None or self._keeper.poll() is None:
            return
        told = self._events.so_far()
        if not told or told[-1].kind not in _LAST_KINDS:
            raise StartError(self._silent_end(self._keeper.returncode), f"See {self._paths.keeper_log}.")

    def _silent_end(self, code: int) -> str:
        if code < 0:
            return f"The keeper of the service was killed by signal {-code}."
        lines: list[str] = []
        with contextlib.suppress(OSError):
            lines = self._paths.keeper_log.read_text(errors="replace").strip().splitlines()
        return (
            f"The keeper of the service ended with code {code}: {lines[-1] if lines else 'it wrote nothing'}"
        )


@contextlib.contextmanager
def _no_interrupts() -> Iterator[None]:
    """Ctrl-C does nothing meanwhile: ending must end."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
