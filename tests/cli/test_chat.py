"""`diptych chat`: the answer and its cost, from a pipe, on a terminal, and in a talk."""

import fcntl
import io
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import diptych
from diptych.cli.chat import cost, run_chat
from diptych.cli.console import format_bytes, format_duration, format_ms, safe
from diptych.endpoint import Endpoint
from diptych.endpoint.result import ChatResult, Timing, Usage
from fakes.openai_endpoint import KEY, MODEL, FakeEndpoint, Script

COST = "4 prompt tokens · prefill 212 ms · KV transfer 3.1 MiB in 2.4 ms · first token "

# A process of its own, on the terminal that it is given, as the command line would call `run_chat`.
CHILD = """
import fcntl, json, os, signal, sys, termios
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)
if os.isatty(0):
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from diptych.cli.chat import run_chat
from diptych.endpoint import Endpoint
url, key_file, text, options = json.loads(sys.argv[1])
sys.exit(run_chat(Endpoint(url, Path(key_file), "tiny"), text, **options))
"""


@pytest.fixture
def fake() -> Iterator[FakeEndpoint]:
    with FakeEndpoint() as server:
        yield server


@pytest.fixture
def endpoint(fake: FakeEndpoint, tmp_path: Path) -> Endpoint:
    return Endpoint(fake.url, fake.key_file(tmp_path), MODEL)


def _options(**given: Any) -> dict[str, Any]:
    return {"json_output": False, "max_tokens": None, "system": None, "temperature": None, **given}


def _chat(endpoint: Endpoint, text: str | None, **given: Any) -> int:
    return run_chat(endpoint, text, **_options(**given))


def _command(endpoint: Endpoint, text: str | None, **given: Any) -> list[str]:
    arguments = [endpoint.url, str(endpoint.api_key_file), text, _options(**given)]
    return [sys.executable, "-c", CHILD, json.dumps(arguments)]


def _environment(**more: str) -> dict[str, str]:
    """This environment, less Python's own settings: an unbuffered output would hide what is never flushed."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    source = str(Path(diptych.__file__).parents[1])
    return {**inherited, "PYTHONPATH": source, "TERM": "xterm", "LC_ALL": "C.UTF-8", **more}


def _start(endpoint: Endpoint, text: str | None, **more: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        _command(endpoint, text),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=_environment(**more),
    )


class Terminal:
    """A terminal with `run_chat` on it: what it shows, and a keyboard."""

    def __init__(
        self,
        endpoint: Endpoint,
        text: str | None = None,
        *,
        environment: dict[str, str] | None = None,
        **given: Any,
    ) -> None:
        self._master, slave = pty.openpty()
        fcntl.fcntl(self._master, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
        self.process = subprocess.Popen(
            _command(endpoint, text, **given),
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env=_environment(**(environment or {})),
        )
        os.close(slave)
        self._shown = b""
        self._read = 0

    @property
    def shown(self) -> str:
        """Everything shown so far."""
        return self._shown.decode("utf-8", "replace")

    def type(self, keys: str | bytes) -> None:
        os.write(self._master, keys.encode() if isinstance(keys, str) else keys)

    def interrupt(self) -> None:
        """Press Ctrl-C, once the process waits for something.

        Between writing a prompt and waiting for its line, CPython keeps a signal until the next key.
        """
        process = psutil.Process(self.process.pid)
        while process.status() != psutil.STATUS_SLEEPING:
            time.sleep(0.005)
        self.type("\x03")

    def wait_for(self, text: str, timeout_s: float = 20.0) -> str:
        """Wait until `text` is shown after what was last waited for; returns what came up to it."""
        wanted, deadline = text.encode(), time.monotonic() + timeout_s
        while (at := self._shown.find(wanted, self._read)) < 0:
            assert self._more(deadline), f"{text!r} was not shown after {self.shown!r}"
        since, self._read = self._read, at + len(wanted)
        return self._shown[since:at].decode("utf-8", "replace")

    def leave(self, timeout_s: float = 20.0) -> int:
        """Wait for the end of the process; returns its exit code."""
        deadline = time.monotonic() + timeout_s
        while self._more(deadline):
            pass
        return self.process.wait(timeout_s)

    def _more(self, deadline: float) -> bool:
        ready, _, _ = select.select([self._master], [], [], max(0, deadline - time.monotonic()))
        try:
            data = os.read(self._master, 65536) if ready else b""
        except OSError:
            data = b""  # how Linux says that nobody has the terminal open any more
        self._shown += data
        return bool(data)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)


@pytest.fixture
def talk(endpoint: Endpoint) -> Iterator[Terminal]:
    terminal = Terminal(endpoint)
    try:
        terminal.wait_for("> ")
        yield terminal
    finally:
        terminal.close()


# One question, its answer into a pipe or a file.


def test_the_answer_goes_to_output_and_its_cost_to_error(
    endpoint: Endpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _chat(endpoint, "Say hello to me") == 0
    shown = capsys.readouterr()
    assert shown.out == "Hello, world.\n"
    assert shown.err.startswith(COST)
    assert shown.err.endswith(" tokens/s (4 tokens)\n")
    assert shown.err.count("\n") == 1


def test_an_answer_that_ends_its_line_gets_no_second_line_end(
    endpoint: Endpoint, fake: FakeEndpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.script = Script(tokens=("[bold]a[/bold]", "\n"))
    assert _chat(endpoint, "Hello") == 0
    assert capsys.readouterr().out == "[bold]a[/bold]\n"


def test_the_request_carries_what_was_asked_for(endpoint: Endpoint, fake: FakeEndpoint) -> None:
    assert _chat(endpoint, "Hello", max_tokens=5, temperature=0.5, system="Be brief.") == 0
    assert fake.chats[0]["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
    ]
    assert (fake.chats[0]["max_tokens"], fake.chats[0]["temperature"]) == (5, 0.5)


def test_json_is_one_object_and_nothing_else(endpoint: Endpoint, capsys: pytest.CaptureFixture[str]) -> None:
    assert _chat(endpoint, "Say hello to me", json_output=True) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    result = json.loads(shown.out)
    assert list(result) == ["text", "usage", "timing", "finish_reason", "model", "path", "computed"]
    assert result["text"] == "Hello, world."
    assert result["timing"]["kv_transfer_bytes"] == 3_250_586
    assert list(result["timing"]) == [
        "ttft_ms",
        "prefill_ms",
        "kv_transfer_ms",
        "kv_transfer_bytes",
        "tokens_per_s",
    ]


@pytest.mark.parametrize("json_output", [True, False])
def test_a_failure_is_two_lines_on_error_and_an_exit_code(
    endpoint: Endpoint, fake: FakeEndpoint, capsys: pytest.CaptureFixture[str], json_output: bool
) -> None:
    fake.script = Script(status=503, body={"error": {"message": "starting " + 30 * "slowly "}})
    assert _chat(endpoint, "Hello", json_output=json_output) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    first, second = shown.err.splitlines()
    assert first.startswith(f"Error: The endpoint at {fake.url} takes no request now (503): starting slowly")
    assert second.startswith("Try again")
    assert KEY not in shown.err


def test_what_came_before_a_failure_stays(
    endpoint: Endpoint, fake: FakeEndpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.script = Script(cut_after=2)
    assert _chat(endpoint, "Hello") == 1
    shown = capsys.readouterr()
    assert shown.out == "Hello, \n"
    assert "cut off after at least 2 tokens" in shown.err


@pytest.mark.parametrize("text", ["-", None])
def test_the_prompt_may_come_from_standard_input(
    endpoint: Endpoint, fake: FakeEndpoint, monkeypatch: pytest.MonkeyPatch, text: str | None
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("Grüß\nGott\n".encode())))
    assert _chat(endpoint, text) == 0
    assert fake.chats[0]["messages"] == [{"role": "user", "content": "Grüß\nGott"}]


@pytest.mark.parametrize(
    ("stdin", "text", "said"),
    [
        (b" \n", None, "the prompt is empty"),
        (b"", "-", "the prompt is empty"),
        (b"", "", "the prompt is empty"),
        (None, None, "the prompt is empty"),
        (b"caf\xe9", None, "The prompt is not UTF-8"),
        (b"", "caf\udce9", "The prompt is not UTF-8"),
    ],
)
def test_a_prompt_that_is_none_is_refused_before_anything_is_sent(
    endpoint: Endpoint,
    fake: FakeEndpoint,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    stdin: bytes | None,
    text: str | None,
    said: str,
) -> None:
    monkeypatch.setattr(sys, "stdin", None if stdin is None else io.TextIOWrapper(io.BytesIO(stdin)))
    assert _chat(endpoint, text) == 2
    assert said in capsys.readouterr().err
    assert fake.requests == []


def test_the_answer_leaves_as_it_comes(endpoint: Endpoint, fake: FakeEndpoint) -> None:
    fake.script = Script(tokens=("first\n", "second\n"), between_s=3.0)
    with _start(endpoint, "Hello") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "first\n"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1)
        process.kill()


def test_a_reader_that_has_enough_ends_it_in_silence(endpoint: Endpoint, fake: FakeEndpoint) -> None:
    fake.script = Script(tokens=("line\n",) * 1000, between_s=0.02)
    with _start(endpoint, "Hello") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(20) == 141
        assert process.stderr.read() == ""
    assert fake.client_left.wait(5)


def test_ctrl_c_ends_one_question_with_130_and_no_traceback(endpoint: Endpoint, fake: FakeEndpoint) -> None:
    fake.script = Script(tokens=("line\n",) * 1000, between_s=0.05)
    with _start(endpoint, "Hello") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
        assert process.stderr.read() == ""
    assert fake.client_left.wait(5)


def test_characters_that_the_output_lacks_become_question_marks(
    endpoint: Endpoint, fake: FakeEndpoint
) -> None:
    fake.script = Script(tokens=("naïve ", "🙂"))
    process = _start(endpoint, "Hello", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    shown, failed = process.communicate(timeout=20)
    assert (process.returncode, shown) == (0, "na?ve ?\n")
    assert "Traceback" not in failed


def test_a_full_disk_is_an_error_and_no_traceback(endpoint: Endpoint) -> None:
    with Path("/dev/full").open("w") as full:
        process = subprocess.run(
            _command(endpoint, "Hello"), stdout=full, stderr=subprocess.PIPE, text=True, env=_environment()
        )
    assert process.returncode == 1
    assert process.stderr.startswith("Error: Standard output cannot be written: No space left on device.\n")
    assert "Traceback" not in process.stderr


def test_a_closed_output_is_no_failure(endpoint: Endpoint) -> None:
    shell = ["sh", "-c", 'exec "$@" >&-', "sh", *_command(endpoint, "Hello")]
    process = subprocess.run(shell, stderr=subprocess.PIPE, text=True, env=_environment())
    assert process.returncode == 0
    assert process.stderr.startswith("1 prompt token")


# One question on a terminal.


def test_on_a_terminal_the_cost_stands_dim_below_the_answer(endpoint: Endpoint) -> None:
    terminal = Terminal(endpoint, "Say hello to me")
    assert terminal.leave() == 0
    terminal.close()
    assert f"Hello, world.\r\n\x1b[2m{COST}" in terminal.shown


def test_an_answer_cannot_command_the_terminal(endpoint: Endpoint, fake: FakeEndpoint) -> None:
    fake.script = Script(
        tokens=("a\x1b[2J", "\x9b31m", "\x07\x00", "over\rwritten", "[red]", "\ud800", "end")
    )
    terminal = Terminal(endpoint, "Hello")
    assert terminal.leave() == 0
    terminal.close()
    assert terminal.shown.startswith("a␛[2J\ufffd31m␇␀overwritten[red]\ufffdend\r\n")


def test_a_servers_message_cannot_command_the_terminal(endpoint: Endpoint, fake: FakeEndpoint) -> None:
    fake.script = Script(status=400, body={"error": {"message": "bad [red]\x1b]0;title\x07"}})
    terminal = Terminal(endpoint, "Hello")
    assert terminal.leave() == 1
    terminal.close()
    assert "bad [red]␛]0;title␇" in terminal.shown


def test_a_terminal_without_unicode_still_gets_the_cost(endpoint: Endpoint) -> None:
    terminal = Terminal(endpoint, "Hello", environment={"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
    assert terminal.leave() == 0
    terminal.close()
    assert "1 prompt token ? prefill 212 ms" in terminal.shown


def test_json_without_a_prompt_is_refused_on_a_terminal(endpoint: Endpoint) -> None:
    terminal = Terminal(endpoint, json_output=True)
    assert terminal.leave() == 2
    terminal.close()
    assert "There is nothing to ask" in terminal.shown


# The talk.


def _ask(talk: Terminal, line: str) -> None:
    """Say `line` and wait for the answer's cost and the next prompt."""
    talk.type(f"{line}\r")
    talk.wait_for("Hello, world.\r\n")
    talk.wait_for(" tokens/s (4 tokens)")
    talk.wait_for("> ")


def test_a_talk_remembers_until_it_is_reset(talk: Terminal, fake: FakeEndpoint) -> None:
    _ask(talk, "one")
    _ask(talk, "two")
    talk.type("/reset\r")
    talk.wait_for("> ")
    _ask(talk, "three")
    talk.type("/exit\r")
    assert talk.leave() == 0
    said = [[message["content"] for message in body["messages"]] for body in fake.chats]
    assert said == [["one"], ["one", "Hello, world.", "two"], ["three"]]


def test_ctrl_d_leaves_a_talk(talk: Terminal) -> None:
    talk.type("\x04")
    assert talk.leave() == 0
    assert "Traceback" not in talk.shown


def test_ctrl_c_stops_an_answer_and_keeps_what_was_said(talk: Terminal, fake: FakeEndpoint) -> None:
    fake.script = Script(tokens=("on ", "and ", *["on "] * 1000), between_s=0.05)
    talk.type("go\r")
    talk.wait_for("on and ")
    talk.interrupt()
    talk.wait_for("Stopped.")
    talk.wait_for("> ")
    assert fake.client_left.wait(5)
    fake.script = Script()
    _ask(talk, "and then?")
    question, answer, _ = fake.chats[1]["messages"]
    assert question == {"role": "user", "content": "go"}
    assert answer["content"].startswith("on and ")


def test_ctrl_c_before_the_first_token_forgets_the_question(talk: Terminal, fake: FakeEndpoint) -> None:
    fake.script = Script(before_first_s=3.0)
    talk.type("go\r")
    while not fake.chats:
        time.sleep(0.02)
    talk.interrupt()
    talk.wait_for("Stopped.")
    talk.wait_for("> ")
    fake.script = Script()
    _ask(talk, "hello")
    assert fake.chats[1]["messages"] == [{"role": "user", "content": "hello"}]


def test_ctrl_c_at_the_prompt_clears_the_line_and_the_second_leaves(
    talk: Terminal, fake: FakeEndpoint
) -> None:
    talk.type("never mind")
    talk.wait_for("never mind")
    talk.interrupt()
    talk.wait_for("Ctrl-C once more leaves")
    talk.wait_for("> ")
    _ask(talk, "hello")
    talk.interrupt()
    talk.wait_for("Ctrl-C once more leaves")
    talk.wait_for("> ")
    talk.interrupt()
    assert talk.leave() == 0
    assert "Traceback" not in talk.shown
    assert [body["messages"][-1]["content"] for body in fake.chats] == ["hello"]


def test_ctrl_c_in_an_answer_and_again_at_the_prompt_leaves(talk: Terminal, fake: FakeEndpoint) -> None:
    fake.script = Script(tokens=("on ",) * 1000, between_s=0.05)
    talk.type("go\r")
    talk.wait_for("on on ")
    talk.interrupt()
    talk.wait_for("Stopped.")
    talk.wait_for("> ")
    talk.interrupt()
    assert talk.leave() == 0


def test_errors_and_unknown_commands_do_not_end_a_talk(talk: Terminal, fake: FakeEndpoint) -> None:
    fake.script = Script(status=400, body={"error": {"message": "too long a prompt"}})
    talk.type("much\r")
    talk.wait_for("too long a prompt")
    talk.wait_for("> ")
    talk.type("/help\r")
    talk.wait_for("There is no /help, only /reset and /exit.")
    talk.wait_for("> ")
    talk.type("\r")
    talk.wait_for("> ")
    fake.script = Script()
    _ask(talk, "/etc/passwd is what?")
    assert fake.chats[1]["messages"] == [{"role": "user", "content": "/etc/passwd is what?"}]
    assert len(fake.chats) == 2


def test_bytes_that_are_not_utf8_do_not_end_a_talk(talk: Terminal, fake: FakeEndpoint) -> None:
    talk.type(b"caf\xe9 x\r")
    talk.wait_for("> ")
    _ask(talk, "hello")
    assert "Traceback" not in talk.shown


def test_earlier_lines_come_back_with_the_arrow_key(talk: Terminal, fake: FakeEndpoint) -> None:
    pytest.importorskip("readline")
    _ask(talk, "hello")
    _ask(talk, "\x1b[A")
    assert [body["messages"][-1]["content"] for body in fake.chats] == ["hello", "hello"]


# What a request cost, in words.


def test_the_cost_says_all_that_is_known() -> None:
    result = ChatResult(
        text="",
        model="tiny",
        usage=Usage(34, 42, 76),
        timing=Timing(431.2, 212.0, 2.41, 3_250_586, 15.21),
        path="remote",
    )
    assert cost(result) == (
        "34 prompt tokens · prefill 212 ms · KV transfer 3.1 MiB in 2.4 ms · first token 431 ms"
        " · 15.2 tokens/s (42 tokens)"
    )


def test_the_cost_leaves_out_what_is_not_known_and_marks_what_was_computed() -> None:
    result = ChatResult(
        text="",
        model="tiny",
        usage=Usage(1, 1, 2),
        timing=Timing(kv_transfer_bytes=2048, prefill_ms=1350),
        computed=("kv_transfer_bytes",),
    )
    assert cost(result) == "1 prompt token · prefill 1.35 s · KV transfer 2.0 KiB (computed) · 1 token"
    assert cost(ChatResult(text="", model="tiny")) == ""


def test_the_cost_says_when_the_phases_were_not_apart() -> None:
    result = ChatResult(text="", model="tiny", timing=Timing(ttft_ms=9.0), path="local-no-prefill")
    assert cost(result) == "not split: no prefill replica is ready · first token 9.0 ms"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.412, "0.41 ms"),
        (0.996, "1.0 ms"),
        (2.41, "2.4 ms"),
        (9.96, "10 ms"),
        (431.4, "431 ms"),
        (999.6, "1 s"),
        (3456, "3.46 s"),
        (99_960, "100 s"),
        (125_000, "125 s"),
    ],
)
def test_milliseconds_are_written_with_about_three_digits(value: float, text: str) -> None:
    assert format_ms(value) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (1024**2 - 1, "1.0 MiB"),
        (9 * 1024**3, "9.0 GiB"),
        (1024**4, "1.0 TiB"),
    ],
)
def test_bytes_are_written_in_powers_of_1024(count: int, text: str) -> None:
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.44, "0.4 s"),
        (12.2, "12 s"),
        (59.6, "1 min 00 s"),
        (185, "3 min 05 s"),
        (7620, "2 h 07 min"),
        (385_200, "4 d 11 h"),
    ],
)
def test_durations_are_written_in_the_two_units_that_matter(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_every_control_character_is_made_harmless() -> None:
    harmful = [chr(code) for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"]
    assert all(char not in safe("".join(harmful)) for char in harmful)
    assert safe("line\n\ttab größe") == "line\n\ttab größe"


def test_the_console_is_imported_without_rich_or_httpx() -> None:
    code = "import sys, diptych.cli.console; print(sorted({'rich', 'httpx'} & set(sys.modules)))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=_environment())
    assert shown.stdout == "[]\n"
