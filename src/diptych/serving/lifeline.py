"""A process that must not outlive its parent, however that ends.

As a program it runs another one so: `python lifeline.py PARENT COMMAND…`, where PARENT is the process id of who starts
it. It stands alone, and imports nothing but what every Python has.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies, or the parent's thread that started it.

    Nothing happens where the kernel is not Linux.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _main(parent: str, *command: str) -> None:
    die_with_parent()
    if os.getppid() == int(parent):  # else it has died already
        os.execvp(command[0], command)


if __name__ == "__main__":
    _main(*sys.argv[1:])
