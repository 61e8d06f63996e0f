"""Keeps one service: starts Ray, has the application deployed, and ends everything when it is told or left alone.

Run as `python -m diptych.local.keeper PLAN`, in a session of its own. Its standard input is the leash: as long as
`up` waits, `up` holds the other end, and when it closes (Ctrl-C, a crash, a closed terminal) the keeper ends all it
started. The line "detach" lets go of the leash. Ray lives as long as this process, its engines as long as Ray.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from diptych.errors import DiptychError
from diptych.local.deploy import TOLD
from diptych.local.events import EventLog
from diptych.local.logs import last_words, other_log_files
from diptych.local.paths import ServicePaths
from diptych.local.plan import Plan
from diptych.local.processes import Mark, end_all
from diptych.local.state import load, save

_WATCH_S = 2.0
_RAY_DEADLINE_S = 120.0
_NOTICED_WITHIN_S = 2.0
_IDLERS = (
    "/dashboard/dashboard.py",
    "/log_monitor.py",
    "/autoscaler/_private/monitor.py",
    "/autoscaler/v2/monitor.py",
)


class Keeper:
    """One run of a service, from Ray's start to its end."""

    def __init__(self, plan: Plan, plan_path: Path) -> None:
        self._plan = plan
        self._plan_path = plan_path
        self._events = EventLog(Path(plan.events))
        self._paths = ServicePaths(plan_path.parent)
        self._stop = threading.Event()
        self._cleaning = threading.Event()
        self._why = ""

    def run(self) -> int:
        """Start, watch and end the service.

        Returns:
            0 when it was told to stop, 1 when the service failed.
        """
        self._guard = post_guard(self._mark)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: self._end("it was told to"))
        threading.Thread(target=self._hold_leash, daemon=True).start()
        failed = True
        try:
            failed = not self._start() or not self._watch()
        except Exception as error:
            self._fail(
                f"The keeper failed: {type(error).__name__}: {error}", f"See {self._paths.keeper_log}."
            )
            raise
        finally:
            self._clean_up(failed)
        return int(failed)

    def _end(self, why: str) -> None:
        self._why = self._why or why
        self._stop.set()

    def _hold_leash(self) -> None:
        if sys.stdin.readline().strip() == "detach":
            return
        self._end("`diptych up` was interrupted")
        if not self._cleaning.wait(_NOTICED_WITHIN_S):  # Ray's start cannot be interrupted: end it from here
            self._end_everything()
            os._exit(0)

    def _start(self) -> bool:
        deployer = subprocess.Popen(
            [sys.executable, "-m", "diptych.local.deploy", str(self._plan_path)],
            stdin=subprocess.PIPE,
            stdout=(self._paths.deploy_log).open("w"),
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._events.append("start", "Ray")
        address = self._start_ray()
        if address is None:
            deployer.kill()
            return self._stop.is_set()
        self._events.append("done", "Ray")
        for stage in self._plan.engine_stages:
            self._events.append("start", stage)
        with contextlib.suppress(BrokenPipeError):
            print(address, file=deployer.stdin, flush=True)
        while deployer.poll() is None and not self._stop.wait(0.2):
            if not self._ray_lives():
                deployer.kill()
                return False
        if self._stop.is_set():
            deployer.kill()
            return True
        return self._deployed(deployer.returncode)

    def _deployed(self, exit_code: int) -> bool:
        if exit_code == 0:
            self._remember(ready=True)
            self._events.append("ready")
            return True
        if exit_code != TOLD:
            words = last_words([self._paths.deploy_log]) or f"exit code {exit_code}"
            self._fail(f"Deploying the application failed: {words}", f"See {self._paths.deploy_log}.")
        return False

    def _start_ray(self) -> str | None:
        """Start Ray on the loopback interface; its address, or None after a failure that was told."""
        import ray

        too_late = threading.Timer(_RAY_DEADLINE_S, self._ray_is_late)
        too_late.daemon = True
        too_late.start()
        try:
            context: Any = ray.init(
                address="local",
                namespace="serve",
                num_cpus=self._plan.num_cpus,
                num_gpus=self._plan.num_gpus,
                object_store_memory=self._plan.object_store_bytes,
                include_dashboard=False,
                log_to_driver=False,
                configure_logging=False,
                _temp_dir=self._plan.ray_directory,
            )
        except Exception as error:
            if not self._stop.is_set():
                words = (
                    last_words(other_log_files(Path(self._plan.ray_logs)))
                    or f"{type(error).__name__}: {error}"
                )
                self._fail(
                    f"Ray did not start: {words}", f"See {self._plan.ray_logs} and {self._paths.keeper_log}."
                )
            return None
        finally:
            too_late.cancel()
        children = psutil.Process().children()
        self._ray_processes = {p.pid: p.name() for p in children if p.name() in ("raylet", "gcs_server")}
        _end_idlers(children)
        address: str = context.address_info["gcs_address"]
        return address

    def _ray_is_late(self) -> None:
        self._fail(f"Ray did not start within {_RAY_DEADLINE_S:.0f} s.", f"See {self._plan.ray_logs}.")
        end_all(self._mark, grace_s=1.0)
        os._exit(1)

    def _ray_lives(self) -> bool:
        """Whether Ray's own processes are there; tells the failure when one is not."""
        for pid, name in self._ray_processes.items():
            try:
                gone = psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
            except psutil.NoSuchProcess:
                gone = True
            if gone and not self._stop.is_set():
                self._fail(
                    f"Ray's {name} process (pid {pid}) died{_how(pid)}; without it nothing can be served.",
                    "Run `diptych up` again. If it was killed for memory, `dmesg` says so.",
                )
                return False
        return True

    def _watch(self) -> bool:
        while not self._stop.wait(_WATCH_S):
            if not self._ray_lives():
                return False
        return True

    def _fail(self, text: str, hint: str) -> None:
        self._remember(failure=text)
        self._events.append("failed", text=text, hint=hint)

    def _remember(self, *, ready: bool = False, failure: str | None = None) -> None:
        state = load(self._paths)
        if state is not None:
            with contextlib.suppress(DiptychError):
                save(
                    self._paths,
                    state.model_copy(update={"ready_at": time.time() if ready else None, "failure": failure}),
                )

    @property
    def _mark(self) -> Mark:
        return Mark(self._plan.run_id, Path(self._plan.ray_directory))

    def _clean_up(self, failed: bool) -> None:
        self._cleaning.set()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        if failed:
            end_all(self._mark, grace_s=4.0)
        else:
            self._end_everything()

    def _end_everything(self) -> None:
        """End all processes of the run and leave no state of it; its events say that it was stopped."""
        end_all(self._mark, grace_s=4.0)
        self._paths.forget()
        self._events.append("stopped", text=self._why)


def post_guard(mark: Mark) -> int:
    """Fork a process that ends the whole run if this one dies without a chance to.

    Ray notices a killed keeper itself, but its agents outlive it. Must be called before there are threads.

    Returns:
        a file descriptor that holds the guard off as long as it is open; the kernel closes it with this process.
    """
    watched, held = os.pipe()
    if os.fork():
        os.close(watched)
        return held
    os.close(held)
    os.read(watched, 1)
    end_all(mark, grace_s=2.0)
    os._exit(0)


def _end_idlers(children: list[psutil.Process]) -> None:
    """End what Ray starts for drivers and clusters that do not exist here; each polls for ever."""
    for child in children:
        with contextlib.suppress(psutil.Error):
            if any(part.endswith(_IDLERS) for part in child.cmdline()):
                child.terminate()


def _how(pid: int) -> str:
    """How a child of ours ended, as far as the kernel tells."""
    with contextlib.suppress(ChildProcessError, OSError):
        _, status = os.waitpid(pid, os.WNOHANG)
        if os.WIFSIGNALED(status):
            return f", killed by signal {os.WTERMSIG(status)} ({signal.Signals(os.WTERMSIG(status)).name})"
    return ""


def main() -> int:
    """Keep the service of the plan named on the command line."""
    path = Path(sys.argv[1])
    return Keeper(Plan.load(path), path).run()


if __name__ == "__main__":
    sys.exit(main())
