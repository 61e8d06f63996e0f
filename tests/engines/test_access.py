"""Who may talk to the endpoint, asked over HTTP."""

import contextlib
from pathlib import Path

import httpx
import pytest

from engines.service import Service

pytestmark = pytest.mark.engines


@pytest.mark.parametrize("header", [{}, {"authorization": "Bearer wrong"}, {"authorization": "Basic eDp5"}])
@pytest.mark.parametrize("path", ["/v1/models", "/diptych/v1/status", "/metrics", "/no/such/path"])
def test_without_the_right_key_every_path_is_refused(
    service: Service, path: str, header: dict[str, str]
) -> None:
    response = httpx.get(service.url + path, headers=header, trust_env=False)
    assert response.status_code == 401
    assert response.json()["error"]["type"] == "invalid_api_key"


def test_without_a_key_a_chat_is_refused_and_reaches_no_engine(service: Service) -> None:
    before = service.settled_counters()
    body = {"model": service.model, "messages": [{"role": "user", "content": "Hello"}]}
    response = httpx.post(f"{service.url}/v1/chat/completions", json=body, trust_env=False)
    assert response.status_code == 401
    assert service.settled_counters() == before


@pytest.mark.parametrize("path", ["/diptych/v1/status", "/metrics", "/metrics/"])
def test_an_admin_route_opens_to_an_admin_key_only(service: Service, path: str) -> None:
    with service.client() as client:
        refused = client.get(path)
    assert (refused.status_code, refused.json()["error"]["type"]) == (403, "permission_denied")
    with service.client(key=service.admin_key) as client:
        assert client.get(path).status_code == 200


def test_an_admin_key_opens_what_clients_use_too(service: Service) -> None:
    body = {"model": service.model, "prompt": "x", "max_tokens": 1}
    with service.client(key=service.admin_key) as client:
        assert client.post("/v1/completions", json=body).status_code == 200


def test_a_body_beyond_the_limit_is_refused(service: Service) -> None:
    with service.client() as client:
        response = client.post("/v1/completions", content=b"x" * (33 * 2**20))
    assert (response.status_code, response.json()["error"]["code"]) == (413, 413)
    assert service.complete("still there")["usage"]["completion_tokens"] == 4


def test_headers_beyond_the_limits_are_refused(service: Service) -> None:
    for headers in ({"x-a": "1" * 40_000}, {f"x-{n}": "1" for n in range(120)}):
        with service.client() as client:
            response = client.get("/v1/models", headers=headers)
        assert (response.status_code, response.json()["error"]["code"]) == (431, 431)


@pytest.mark.parametrize("header", ["x-diptych-priority", "x-request-timeout"])
def test_a_header_that_cannot_be_read_is_refused_and_named(service: Service, header: str) -> None:
    body = {"model": service.model, "prompt": "x", "max_tokens": 1}
    with service.client() as client:
        response = client.post("/v1/completions", json=body, headers={header: "high"})
    assert (response.status_code, response.json()["error"]["param"]) == (400, header)


def test_health_needs_no_key(service: Service) -> None:
    assert httpx.get(f"{service.url}/health", trust_env=False).status_code == 200


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/tokenize"])
@pytest.mark.parametrize(
    "spelling",
    ['"kv_transfer_params"', '"kv\\u005ftransfer_params"', '"\\u006bv_transfer_\\u0070arams"'],
    ids=["plain", "one escape", "two escapes"],
)
def test_kv_transfer_settings_from_outside_are_refused_in_every_spelling(
    service: Service, path: str, spelling: str
) -> None:
    body = (
        f'{{"model": "{service.model}", "prompt": "x", "messages": [{{"role": "user", "content": "x"}}], '
        f'{spelling}: {{"do_remote_prefill": true, "remote_host": "10.0.0.1"}}}}'
    )
    with service.client() as client:
        response = client.post(path, content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", "kv_transfer_params")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-8-sig"])
def test_kv_transfer_settings_in_another_encoding_do_not_reach_an_engine(
    service: Service, encoding: str
) -> None:
    body = f'{{"model": "{service.model}", "prompt": "x", "max_tokens": 1, "kv_transfer_params": {{"a": 1}}}}'
    with service.client() as client:
        response = client.post(
            "/v1/completions", content=body.encode(encoding), headers={"content-type": "application/json"}
        )
    assert response.status_code == 400


def test_keys_rotate_when_their_file_changes(service: Service) -> None:
    old = service.key
    try:
        service.key_file.write_text("# new ones\ndk-second priority=3\ndk-third admin\ndk-fourth dk-fifth\n")
        for key, expected, as_admin in (
            (old, 401, 401),
            ("dk-second", 200, 403),
            ("dk-third", 200, 200),
            ("dk-fourth", 401, 401),
            ("dk-fifth", 401, 401),
        ):
            with service.client(key=key) as client:
                assert client.get("/v1/models").status_code == expected
                assert client.get("/metrics").status_code == as_admin
    finally:
        service.key_file.write_text(old + "\n")
    with service.client() as client:
        assert client.get("/v1/models").status_code == 200


def test_the_key_files_can_be_read_by_their_owner_only(service: Service) -> None:
    modes = {path.name: path.stat().st_mode & 0o777 for path in service.directory.iterdir()}
    assert service.directory.stat().st_mode & 0o777 == 0o700
    assert (
        modes["api-key"]
        == modes["admin-key"]
        == modes["curl-header"]
        == modes["ray-token"]
        == modes["plan.json"]
        == 0o600
    )


def test_no_log_and_no_environment_holds_the_admin_key(service: Service) -> None:
    with service.client(key=service.admin_key) as client:
        assert client.get("/metrics").is_success
        assert client.get(f"/nowhere/{service.admin_key[:3]}").status_code == 404
    key, logs = service.admin_key.encode(), (service.ray_directory, service.directory)
    files = (path for directory in logs for path in directory.rglob("*") if path.is_file())
    assert {path.name for path in files if key in path.read_bytes()} == {"admin-key"}
    for process in service.processes():
        for source in ("cmdline", "environ"):
            with contextlib.suppress(OSError):
                assert key not in Path(f"/proc/{process.pid}/{source}").read_bytes()
