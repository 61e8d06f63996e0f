"""Whatever ends `diptych up` before the service is ready leaves nothing running."""

import json
import signal
from pathlib import Path

import pytest

from engines.service import NAME, Service, leftovers, seconds_until, seconds_until_nothing_is_left

pytestmark = [pytest.mark.engines, pytest.mark.long]


def stages_done(service: Service) -> dict[str, str]:
    """The last thing told of each stage of the start that is going on."""
    try:
        lines = (service.directory / "events.jsonl").read_text().splitlines()
        events = [json.loads(line) for line in lines]
    except (OSError, ValueError):
        return {}
    return {event["stage"]: event["text"] or event["kind"] for event in events}


MOMENTS = {
    "while Ray starts": lambda told: told.get("Ray") == "start",
    "when Ray is up": lambda told: told.get("Ray") == "done",
    "while the engines load": lambda told: (
        told.get("decode engine") in ("loading weights", "joining NIXL", "warming up")
    ),
}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["SIGKILL", "SIGINT"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_up_ended_in_the_middle_leaves_nothing(
    stopped: Service, tmp_path: Path, moment: str, number: signal.Signals
) -> None:
    output = tmp_path / "up.log"
    (stopped.directory / "events.jsonl").unlink(missing_ok=True)  # an earlier start's
    up = stopped.start(output)
    seconds_until(lambda: bool(MOMENTS[moment](stages_done(stopped))), 120.0, every_s=0.05)
    assert stopped.plan["name"] == NAME
    assert leftovers(stopped) != []
    up.send_signal(number)
    code = up.wait(60)
    gone = seconds_until_nothing_is_left(stopped)
    print(f"\n{number.name} {moment}: nothing left {gone:.1f} s after `up` had ended")
    assert code == (130 if number == signal.SIGINT else -signal.SIGKILL)
    assert "Traceback" not in output.read_text()
    assert stopped.run("status", "--name", NAME).returncode in (1, 3)
