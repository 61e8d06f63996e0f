"""The variables that everything we start gets: ours, the user's, and none that lead elsewhere."""

import subprocess
import sys
from pathlib import Path

import pytest

from diptych.errors import SetupError
from diptych.local import environment
from diptych.local.environment import require_engines, service_environment
from diptych.local.processes import MARK_ENV


def made(token: str = "/t") -> dict[str, str]:
    return service_environment("run-1", "127.0.0.1", Path(token))


def test_the_users_own_ray_is_never_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    monkeypatch.setenv("RAY_NAMESPACE", "production")
    assert {"RAY_ADDRESS", "RAY_NAMESPACE"} & made().keys() == set()


def test_the_users_other_variables_are_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", "/data/hf")
    assert made()["HF_HOME"] == "/data/hf"


def test_everything_is_marked_private_and_told_to_stay_on_loopback() -> None:
    variables = made("/state/ray-token")
    assert variables[MARK_ENV] == "run-1"
    assert (variables["RAY_AUTH_MODE"], variables["RAY_AUTH_TOKEN_PATH"]) == ("token", "/state/ray-token")
    assert variables["VLLM_HOST_IP"] == "127.0.0.1"
    assert variables["UCX_NET_DEVICES"] == variables["GLOO_SOCKET_IFNAME"] == "lo"
    assert variables["RAY_USAGE_STATS_ENABLED"] == "0"
    assert variables["VLLM_NO_USAGE_STATS"] == "1"


def test_requests_take_the_short_way_through_serve_and_logs_are_written_line_by_line() -> None:
    serve = {name: value for name, value in made().items() if name.startswith("RAY_SERVE_")}
    assert {name for name, value in serve.items() if value == "0"} == {
        "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD",
        "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP",
        "RAY_SERVE_PROXY_USE_GRPC",
    }
    assert serve["RAY_SERVE_USE_GRPC_BY_DEFAULT"] == "1"
    # Each of these would hold log lines back, or open ports to the network.
    never = (
        "THROUGHPUT_OPTIMIZED",
        "REQUEST_PATH_LOG_BUFFER_SIZE",
        "ENABLE_DIRECT_INGRESS",
        "ENABLE_HA_PROXY",
    )
    assert serve.keys() & {f"RAY_SERVE_{name}" for name in never} == set()


def test_what_is_started_elsewhere_finds_this_very_package(tmp_path: Path) -> None:
    """Ray's workers do not start in the checkout."""
    import diptych

    code = "import diptych; print(diptych.__file__)"
    command = [sys.executable, "-S", "-c", code]
    done = subprocess.run(command, env=made(), cwd=tmp_path, capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()) == Path(diptych.__file__)


def test_missing_engines_are_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {"ray": object(), "vllm": None, "nixl": None}
    monkeypatch.setattr(environment.importlib.util, "find_spec", lambda name: installed[name])
    with pytest.raises(SetupError, match="vLLM and NIXL are not installed in") as caught:
        require_engines()
    assert "make up" in caught.value.hint
