"""The engine's own counters, read from the process that keeps them (vLLM's Prometheus metrics)."""

from typing import Any

from prometheus_client import REGISTRY

_COUNTERS = {
    "prompt_tokens": ("vllm:prompt_tokens_total", {}),
    "generation_tokens": ("vllm:generation_tokens_total", {}),
    "local_compute_tokens": ("vllm:prompt_tokens_by_source_total", {"source": "local_compute"}),
    "local_cache_tokens": ("vllm:prompt_tokens_by_source_total", {"source": "local_cache_hit"}),
    "external_kv_tokens": ("vllm:prompt_tokens_by_source_total", {"source": "external_kv_transfer"}),
    "requests_finished": ("vllm:request_success_total", {}),
    "requests_running": ("vllm:num_requests_running", {}),
    "requests_waiting": ("vllm:num_requests_waiting", {}),
    "kv_cache_usage": ("vllm:kv_cache_usage_perc", {}),
    "kv_transfers": ("vllm:nixl_bytes_transferred_count", {}),
    "kv_transfer_bytes": ("vllm:nixl_bytes_transferred_sum", {}),
    "kv_transfer_seconds": ("vllm:nixl_xfer_time_seconds_sum", {}),
    "kv_transfers_failed": ("vllm:nixl_num_failed_transfers_total", {}),
    "kv_leases_expired": ("vllm:nixl_num_kv_expired_reqs_total", {}),
    "steps": ("vllm:iteration_tokens_total_count", {}),
}


def read_counters() -> dict[str, float]:
    """Every counter of `_COUNTERS` by our name, summed over its label values; 0 for one never counted.

    Tokens, bytes and requests are counts since the engine started; `kv_cache_usage` is a share from 0 to 1.
    """
    samples: dict[str, list[Any]] = {}
    for family in REGISTRY.collect():
        if family.name.startswith("vllm:"):
            for sample in family.samples:
                samples.setdefault(sample.name, []).append(sample)
    return {ours: _sum(samples.get(name, ()), labels) for ours, (name, labels) in _COUNTERS.items()}


def _sum(samples: Any, labels: dict[str, str]) -> float:
    return float(sum(s.value for s in samples if labels.items() <= s.labels.items()))
