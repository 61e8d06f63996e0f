"""In place of ssh, which pods do not have: mpirun calls a small program like ssh, and Ray runs the command there.

The program leaves HOST and COMMAND in a private folder and waits for the answer; `Relay` takes them from there.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

logger = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.1
# mpirun gives its daemon's command in several arguments, which ssh would join by blanks for the shell there.
_AGENT = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
call="${0%/*}/calls/$$"
mkdir "$call" || exit 255
printf %s "$1" > "$call/host"
shift
printf %s "$*" > "$call/command"
: > "$call/asked"
while [ ! -e "$call/answered" ]; do
  [ -d "$call" ] && kill -0 "$PPID" 2> /dev/null || exit 255
  sleep 0.1
done
cat "$call/log" >&2
exit "$(cat "$call/code")"
"""

Run = Callable[[str, str], Awaitable[tuple[int, str]]]


class Relay:
    """Answers what the agent asks for.

    Args:
        folder: private, and empty; its path has neither blanks nor colons, at which Open MPI would part it.
        run: runs a command of a shell on a host; returns its exit status and what to say of it. What it raises is
            said, and counts as 255.

    Attributes:
        agent: the program that mpirun is to call.
    """

    def __init__(self, folder: Path, run: Run) -> None:
        self.agent = folder / "agent"
        self._calls = folder / "calls"
        self._run = run
        self._calls.mkdir()
        self.agent.write_text(_AGENT)
        self.agent.chmod(0o700)

    async def serve(self) -> None:
        """Take calls until cancelled, each beside the others; those that are under way are cancelled with it."""
        async with asyncio.TaskGroup() as under_way:
            taken: set[str] = set()
            while True:
                for call in self._calls.iterdir():
                    if call.name not in taken and (call / "asked").exists():
                        taken.add(call.name)
                        under_way.create_task(self._answer(call))
                await asyncio.sleep(_LOOK_EVERY_S)

    async def _answer(self, call: Path) -> None:
        host = "a host"
        try:
            host, command = ((call / name).read_text() for name in ("host", "command"))
            code, log = await self._run(host, command)
        except Exception as error:
            logger.warning("mpirun's daemon on %s could not be run: %s", host, error)
            code, log = 255, f"{host}: {error}\n"
        with contextlib.suppress(OSError):  # the folder is gone
            (call / "log").write_text(log)
            (call / "code").write_text(str(code))
            (call / "answered").touch(0o600)
