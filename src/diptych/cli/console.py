"""The terminal: one console for output, one for everything else, and how values are written on them.

Rich is imported when something is printed through it, not before: `diptych --help` should not wait for it.
"""

from __future__ import annotations

import io
import os
import sys
from functools import cache
from typing import IO, TYPE_CHECKING

from diptych.errors import DiptychError, SetupError

if TYPE_CHECKING:
    from rich.console import Console

# What commands a terminal (moves the cursor, colours, clears), as a picture of itself: ESC becomes U+241B.
# Line feed and tab stay. Carriage return goes: it ends lines in some texts and overwrites them otherwise.
_VISIBLE = {
    **{code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t\r"},
    ord("\r"): None,
    0x7F: 0x2421,
    **dict.fromkeys(range(0x80, 0xA0), 0xFFFD),
}


@cache
def out() -> Console:
    """The console of standard output: what was asked for."""
    return _console(stderr=False)


@cache
def err() -> Console:
    """The console of standard error: progress, remarks, failures."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    """Takes what its stream's encoding lacks as `?`, and lets a command finish that nobody reads any more."""
    from rich.console import Console

    class Patient(Console):
        def on_broken_pipe(self) -> None:
            self.quiet = True
            if not stderr:
                drop_output()

    stream = sys.stderr if stderr else sys.stdout
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="replace")
    return Patient(stderr=stderr, highlight=False, markup=False, emoji=False)


def is_terminal(stream: IO[str] | None) -> bool:
    """Whether `stream` is open and a terminal."""
    return stream is not None and not stream.closed and stream.isatty()


def print_error(error: DiptychError) -> None:
    """Print a failure on standard error: a line with the message, one with the hint, where there is one."""
    from rich.text import Text

    message = Text.assemble(("Error: ", "bold red"), safe(error.message))
    err().print(message, soft_wrap=True)
    if error.hint:
        err().print(Text(safe(error.hint), style="dim"), soft_wrap=True)


def print_dim(console: Console, text: str) -> None:
    """Print a remark: one line, dim on a terminal, plain elsewhere."""
    from rich.text import Text

    console.print(Text(_encodable(safe(text), console.file), style="dim"), soft_wrap=True)


def write(text: str) -> None:
    """Write text that came from elsewhere to standard output, now, and safely.

    On a terminal, control characters are shown and not obeyed; anywhere else the text goes out as it is.
    What the output's encoding lacks becomes `?`. After an error, further output goes nowhere.

    Raises:
        BrokenPipeError: nobody reads any more.
        SetupError: the output cannot take it; its disk may be full.
    """
    stream = sys.stdout
    if stream is None:  # closed when the process started
        return
    if is_terminal(stream):
        text = safe(text)
    try:
        stream.write(_encodable(text, stream))
        stream.flush()
    except OSError as error:
        drop_output()
        if isinstance(error, BrokenPipeError):
            raise
        raise cannot_write(error) from error


def cannot_write(error: OSError) -> SetupError:
    """Standard output takes no more."""
    return SetupError(
        f"Standard output cannot be written: {error.strerror}.", "Is the disk that it goes to full?"
    )


def _encodable(text: str, stream: IO[str]) -> str:
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "replace").decode(encoding)


def drop_output() -> None:
    """Point standard output at nothing, or the interpreter complains at exit about what it cannot write."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def safe(text: str) -> str:
    """`text` with each control character, other than line feed and tab, made visible.

    >>> safe("\\x1b[2J gone?")
    '␛[2J gone?'
    """
    return text.translate(_VISIBLE)


def format_ms(value: float) -> str:
    """Milliseconds, in three digits or so: `0.41 ms`, `2.4 ms`, `212 ms`, `3.46 s`, `125 s`."""
    if value >= 99_950:
        return f"{value / 1000:.0f} s"
    if value >= 999.5:
        return f"{value / 1000:.3g} s"
    for below, digits in ((0.995, 2), (9.95, 1)):
        if value < below:
            return f"{value:.{digits}f} ms"
    return f"{value:.0f} ms"


def format_bytes(count: float) -> str:
    """Bytes in powers of 1024: `512 B`, `1.5 KiB`, `3.1 MiB`, `9.0 GiB`."""
    if count < 1024:
        return f"{count:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        count /= 1024
        if count < 1023.95:
            return f"{count:.1f} {unit}"
    return f"{count / 1024:.1f} TiB"


def format_duration(seconds: float) -> str:
    """How long something has been going on: `0.4 s`, `12 s`, `3 min 05 s`, `2 h 07 min`, `4 d 11 h`."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours:02} h"
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
