#!/usr/bin/env python3
"""A keeper without Ray: speaks the real one's protocol (plan in, leash on standard input, events out).

Called as `python -m diptych.local.keeper PLAN` is; `FAKE_KEEPER` says what becomes of the service.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from diptych.local.events import EventLog
from diptych.local.paths import ServicePaths
from diptych.local.plan import Plan
from diptych.local.state import load, save


def main() -> int:
    plan_path = Path(sys.argv[-1])
    plan, paths = Plan.load(plan_path), ServicePaths(plan_path.parent)
    events, fate = EventLog(Path(plan.events)), os.environ["FAKE_KEEPER"]
    subprocess.Popen(
        ["/bin/sleep", "120"], stdin=subprocess.DEVNULL
    )  # stands for Ray: marked, and left behind
    events.append("start", "Ray")
    if fate == "fails":
        events.append(
            "failed", text="The decode engine did not start. Its own last words: MemoryError", hint="See."
        )
        return 1
    if fate == "ends silently":
        print("ImportError: libfoo.so", flush=True)
        return 3
    if fate == "is killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if fate == "hangs":
        time.sleep(120)
    while (state := load(paths)) is None or state.keeper_pid != os.getpid():
        time.sleep(0.01)
    save(paths, state.model_copy(update={"ready_at": time.time()}))
    events.append("ready")
    said = sys.stdin.readline().strip()
    (paths.directory / "leash").write_text(said or "closed")
    if said == "detach":
        time.sleep(120)
    return 0


if __name__ == "__main__":
    sys.exit(main())
