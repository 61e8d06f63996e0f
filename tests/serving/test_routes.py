"""Routes by name: those that the endpoint has, and one word for all that it has not."""

import pytest

pytest.importorskip("ray.serve.llm")

from diptych.serving.routes import ENGINE_ROUTES, OTHER, route_of


@pytest.mark.parametrize("route", ENGINE_ROUTES)
def test_every_route_is_known_by_name(route: str) -> None:
    path = route.replace("{response_id}", "resp_5f").replace("{model:path}", "org/name")
    assert route_of(path) == route


@pytest.mark.parametrize("path", ["/wp-login.php", "/v1/chat/completions/", "/v1/responses/a/b", "", "/v1"])
def test_a_path_that_a_client_made_up_has_no_name_of_its_own(path: str) -> None:
    assert route_of(path) == OTHER
