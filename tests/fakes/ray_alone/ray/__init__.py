"""As much of Ray as Diptych's keeper and deployer call; put first on PYTHONPATH, it starts `sleep`s for daemons.

`FAKE_RAY` says how it behaves, as words between commas: `slow` (takes seconds to start), `broken` (does not
start), `no-engine` (the application never runs), `bad-engine` (the application fails), `dies` (the deployer dies).
Otherwise the application runs at once, and the endpoint answers every completion.
"""

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

_DAEMONS = ("gcs_server", "raylet")


def behaves(how: str) -> bool:
    return how in os.environ.get("FAKE_RAY", "").split(",")


def init(address: str, _temp_dir: str = "", **_: Any) -> SimpleNamespace:
    if address != "local":
        return SimpleNamespace(address_info={"gcs_address": address})
    if behaves("broken"):
        raise ConnectionError("GCS failed to start")
    for name in _DAEMONS:
        daemon = Path(_temp_dir) / name
        daemon.symlink_to("/bin/sleep")
        subprocess.Popen([daemon, "300"], stdin=subprocess.DEVNULL)
    if behaves("slow"):
        # Ray's start is one long call into C++: no signal and no other thread ends it.
        until = time.monotonic() + 4
        while time.monotonic() < until:
            time.sleep(0.05)
    return SimpleNamespace(address_info={"gcs_address": "127.0.0.1:6379"})


# What `from ray import serve` finds, and what a deployer that dies would import in vain.
if behaves("dies") and "diptych.local.deploy" in " ".join(sys.orig_argv):
    raise ImportError("libray.so: cannot open shared object file")
