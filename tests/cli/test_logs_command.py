"""`diptych logs`: each phase's lines, the last of them, and what comes."""

from pathlib import Path

import pytest

from diptych.cli.logs import run_logs
from diptych.cli.places import LOCAL, Up
from diptych.local.paths import ServicePaths

ONE = Up("one", LOCAL)


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "ray-logs"
    directory.mkdir()
    monkeypatch.setattr(ServicePaths, "ray_logs", directory)
    for phase in ("Prefill", "Decode"):
        header = f":job_id:1\n:actor_name:ServeReplica:diptych:{phase}:m\n"
        lines = "".join(f"\x1b[36m{phase} line {n}\x1b[0m\n" for n in range(5))
        (directory / f"worker-{phase}.out").write_text(header + lines)
    (directory / "raylet.out").write_text("node up\n")
    return directory


def test_a_phases_last_lines_are_shown_without_colours(
    logs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_logs(ONE, "decode", follow=False, lines=2) == 0
    assert capsys.readouterr().out == "Decode line 3\nDecode line 4\n"


def test_without_a_phase_both_are_shown_and_every_line_says_whose_it_is(
    logs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_logs(ONE, None, follow=False, lines=1)
    assert capsys.readouterr().out == "prefill: Prefill line 4\ndecode: Decode line 4\n"


def test_rays_own_lines_are_shown_on_demand(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_logs(ONE, "ray", follow=False, lines=10)
    assert capsys.readouterr().out == "node up\n"


def test_follow_prints_what_is_written_later_once(
    logs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = iter(["new line\n", "another\n"])

    def wait(_: float) -> None:
        text = next(rounds, None)
        if text is None:
            raise KeyboardInterrupt
        with (logs / "worker-Decode.out").open("a") as file:
            file.write(text)

    monkeypatch.setattr("time.sleep", wait)
    with pytest.raises(KeyboardInterrupt):
        run_logs(ONE, "decode", follow=True, lines=1)
    assert capsys.readouterr().out == "Decode line 4\nnew line\nanother\n"
