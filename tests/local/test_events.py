"""Events: written by one process, followed by another, line by line."""

from itertools import islice
from pathlib import Path

from diptych.local.events import EventLog
from diptych.progress import Event


def read(log: EventLog, count: int) -> list[Event | None]:
    return list(islice(log.follow(poll_s=0.0), count))


def test_what_one_appends_another_follows_in_order(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events")
    log.append("start", "Ray")
    log.append("failed", text="The decode engine did not start.", hint="See the log.")
    first, second = read(EventLog(tmp_path / "events"), 2)
    assert (first.kind, first.stage) == ("start", "Ray")
    assert (second.kind, second.text, second.hint) == (
        "failed",
        "The decode engine did not start.",
        "See the log.",
    )
    assert second.at >= first.at > 1.7e9


def test_one_who_follows_before_there_is_a_file_waits_for_it(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events")
    following = log.follow(poll_s=0.0)
    assert next(following) is None
    log.append("ready")
    assert next(following).kind == "ready"
    assert next(following) is None


def test_a_line_that_is_half_written_is_told_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "events"
    log = EventLog(path)
    log.append("start", "Ray", "ünïcode")
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    following = log.follow(poll_s=0.0)
    assert next(following) is None
    with path.open("ab") as file:
        file.write(whole[-20:])
    assert next(following).text == "ünïcode"


def test_a_disk_that_cannot_be_written_does_not_stop_the_one_who_writes(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "missing" / "events")
    log.append("failed", text="No space left.")
    assert log.so_far() == []


def test_a_line_that_a_full_disk_cut_short_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "events"
    log = EventLog(path)
    log.append("start", "Ray")
    with path.open("a") as file:
        file.write('{"kind": "do\n')
    log.append("ready")
    assert [event.kind for event in log.so_far()] == ["start", "ready"]
    assert [event.kind for event in read(log, 2)] == ["start", "ready"]
