"""Taking down: what is left of a service, whoever left it, and nothing else."""

import pytest

from diptych.errors import NotUpError
from diptych.local.down import take_down
from diptych.local.paths import ServicePaths
from diptych.local.processes import marked
from fakes.state import remember


@pytest.fixture
def paths(mark) -> ServicePaths:
    """A service of the run whose processes the test starts, its keeper long gone."""
    return remember(run_id=mark.run_id, ray_directory=str(mark.ray_directory))


def test_what_was_never_up_cannot_be_taken_down() -> None:
    with pytest.raises(NotUpError, match="No service called 'one' is up"):
        take_down("one")


def test_down_ends_what_a_killed_keeper_left_and_spares_strangers(start, mark, paths) -> None:
    own, stranger = start(), start(marked=False)
    ended = take_down("one")
    assert [process.pid for process in ended.processes] == [own.pid]
    assert ended.took_s < 10
    assert marked(mark) == []
    assert stranger.is_running()
    assert stranger.status() != "zombie"


def test_after_down_the_service_is_forgotten_with_its_keys(paths) -> None:
    for path in (
        paths.api_key,
        paths.admin_key,
        paths.curl_header,
        paths.ray_token,
        paths.plan,
        paths.events,
    ):
        path.write_text("x")
    take_down("one")
    assert {path.name for path in paths.directory.iterdir()} <= {"lock", "keeper.log", "deploy.log"}
    with pytest.raises(NotUpError):
        take_down("one")
