"""The live view of `up`: lines where nobody watches, a table on a terminal, and what is printed at the end."""

import io
import json
import re
import shlex
import time

import pytest
from rich.console import Console

from diptych.cli import up
from diptych.cli.console import err, out
from diptych.cli.up import LiveView, run_up
from diptych.errors import StartError
from diptych.local.up import Service
from diptych.progress import Event
from fakes.state import a_state, remember

STAGES = ("Ray", "prefill engine", "decode engine")
NOW = time.time()


def shown(view: LiveView, console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", console.file.getvalue())


def a_console(terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=100, color_system=None)


def walk(view: LiveView) -> None:
    began = time.time()
    view.stage(Event("start", "Ray", at=began))
    view.stage(Event("done", "Ray", at=began + 4.7))
    view.stage(Event("start", "prefill engine", at=began + 5))
    view.stage(Event("detail", "prefill engine", "loading weights", at=began + 20))
    view.stage(Event("ready", at=began + 50))


def test_where_nobody_watches_each_step_is_a_line_with_its_time() -> None:
    console = a_console(terminal=False)
    with LiveView(console, STAGES) as view:
        walk(view)
    lines = shown(view, console).splitlines()
    assert [re.sub(r"^\[ *[\d.]+ s\] ", "", line) for line in lines] == [
        "Ray started",
        "Ray done in 4.7 s",
        "prefill engine started",
        "prefill engine: loading weights",
    ]
    assert lines[1].startswith("[ 4.7 s]")


def test_on_a_terminal_every_stage_has_a_row_those_to_come_included() -> None:
    console = a_console(terminal=True)
    with LiveView(console, STAGES) as view:
        walk(view)
        table = Console(file=io.StringIO(), width=100)
        table.print(view._table())
        rows = table.file.getvalue().splitlines()
    assert [row.split()[0] for row in rows[:2]] == ["✓", "…"]
    assert "4.7 s" in rows[0]
    assert "loading weights" in rows[1]
    assert rows[2].strip() == "decode engine"


def test_when_it_fails_the_stage_that_ran_is_marked() -> None:
    console = a_console(terminal=True)
    view = LiveView(console, STAGES)
    with pytest.raises(StartError), view:
        walk(view)
        view.ending()
        raise StartError("x")
    assert "✗" in shown(view, console)
    assert "Ending what was started" in shown(view, console)


def test_what_the_view_is_told_is_text_and_no_markup() -> None:
    console = a_console(terminal=False)
    with LiveView(console, STAGES) as view:
        view.say("[bold]Port 8000[/bold] is in use")
        view.stage(Event("detail", "Ray", "[red]x", at=time.time()))
    assert "[bold]Port 8000[/bold]" in shown(view, console)
    assert "[red]x" in shown(view, console)


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Service:
    """A service that is up; `bring_up` yields it."""
    url = "http://127.0.0.1:8123"
    paths = remember(url=url)
    out.cache_clear()
    err.cache_clear()
    return Service(a_state(url=url), paths, already=False)


def brought_up(
    monkeypatch: pytest.MonkeyPatch, service: Service, ends_with: BaseException | None = None
) -> list[str]:
    told: list[str] = []

    def bring_up(document, path, view, hold=False):
        try:
            yield service
            if ends_with:
                raise ends_with
        finally:
            told.append("closed")

    monkeypatch.setattr(up, "bring_up", bring_up)
    return told


def test_at_the_end_stand_the_endpoint_a_curl_line_and_a_python_line(
    service: Service, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    brought_up(monkeypatch, service)
    assert run_up(None, ["name=one"], foreground=False) == 0
    printed = capsys.readouterr().out
    assert "one is ready after" in printed
    assert "http://127.0.0.1:8123/v1" in printed
    words = shlex.split(printed[printed.index("curl") : printed.index("python -c")].replace("\\\n", ""))
    assert f"@{service.paths.curl_header}" in words
    asked = json.loads(words[words.index("-d") + 1])
    assert asked["model"] == "m"
    assert asked["max_tokens"] < 1000  # a small model may otherwise talk for minutes
    python = shlex.split(next(line for line in printed.splitlines() if "python -c" in line))
    compile(python[2], "printed", "exec")
    assert str(service.paths.api_key) in python[2]


def test_no_key_is_printed(
    service: Service, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    service.paths.api_key.write_text("dk-secret")
    service.paths.curl_header.write_text("Authorization: Bearer dk-secret")
    brought_up(monkeypatch, service)
    run_up(None, ["name=one"], foreground=False)
    captured = capsys.readouterr()
    assert "dk-secret" not in captured.out + captured.err


def test_ctrl_c_while_it_comes_up_is_130(
    service: Service, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def bring_up(document, path, view, hold=False):
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(up, "bring_up", bring_up)
    assert run_up(None, ["name=one"], foreground=False) == 130
    assert "nothing is left running" in capsys.readouterr().err


def test_ctrl_c_in_the_foreground_takes_it_down_and_that_is_no_failure(
    service: Service, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = brought_up(monkeypatch, service, ends_with=KeyboardInterrupt())
    assert run_up(None, ["name=one"], foreground=True) == 0
    assert told == ["closed"]
    assert "Taken down" in capsys.readouterr().err


def test_where_lines_stay_one_that_only_counts_on_is_printed_once_a_minute() -> None:
    console = Console(file=io.StringIO(), width=100)
    view = LiveView(console, STAGES)
    began = time.time()
    for second in range(0, 130, 10):
        view.stage(Event("detail", "Ray", f"waiting for nodes: {second} s", at=began + second))
    view.stage(Event("detail", "Ray", "another thing", at=began + 130))
    printed = [line for line in shown(view, console).splitlines() if line]
    assert [line.rpartition("Ray: ")[2] for line in printed] == [
        "waiting for nodes: 0 s",
        "waiting for nodes: 60 s",
        "waiting for nodes: 120 s",
        "another thing",
    ]
