"""Ray or the keeper killed under a ready service: nothing is left running, and it can be started again."""

import pytest

from engines.service import Service, check_status_names, kill, seconds_until_nothing_is_left

pytestmark = [pytest.mark.engines, pytest.mark.long]


def test_when_the_keeper_is_killed_all_it_started_ends_and_the_service_can_be_started_again(
    service: Service,
) -> None:
    keeper = next(process for process in service.processes() if "diptych.local.keeper" in process.cmdline())
    kill(keeper)
    gone = seconds_until_nothing_is_left(service)
    print(f"\nkeeper killed: nothing left after {gone:.1f} s")
    status = service.status()
    assert status["ready"] is False
    assert "keeper" in status["blocker"]
    down = service.down()
    assert down.returncode == 0, down.stderr
    up = service.up()
    assert up.returncode == 0, up.stderr
    assert service.complete("Once more")["diptych"]["path"] == "remote"


def test_when_rays_node_process_is_killed_status_names_it_and_nothing_is_left(service: Service) -> None:
    raylet = next(process for process in service.processes() if process.name() == "raylet")
    kill(raylet)
    gone = seconds_until_nothing_is_left(service)
    print(f"\nraylet killed: nothing left after {gone:.1f} s")
    check_status_names(service, "raylet")
