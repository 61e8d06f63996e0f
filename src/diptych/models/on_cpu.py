"""What an engine on CPUs takes of its machine: measured with vLLM 0.29 and Ray 2.60, in bytes."""

from diptych.catalog.instances import GIB, MIB

PROCESSES_PER_REPLICA = int(1.7 * GIB)
"""Replica and engine process, without weights and KV cache."""
CHUNK_ACTIVATIONS = int(0.2 * GIB)
RAY = int(0.9 * GIB)
"""Ray with Serve."""

LEAST_KV_CACHE = 256 * MIB
_MOST_KV_CACHE = 4 * GIB
_FULL_LENGTH_REQUESTS = 1.25
_BLOCK_TOKENS = 128
_SPARE_BLOCKS = 2  # vLLM keeps one for itself, and a request may end inside another


def default_kv_cache(bytes_per_token: int, max_model_len: int) -> int:
    """The KV cache of a replica for which none is asked: one request of full length and a quarter more.

    At least 256 MiB; at most 4 GiB, unless one request of full length needs more.
    """
    wanted = int(bytes_per_token * max_model_len * _FULL_LENGTH_REQUESTS)
    one_request = bytes_per_token * (max_model_len + _SPARE_BLOCKS * _BLOCK_TOKENS)
    return min(max(wanted, LEAST_KV_CACHE), max(_MOST_KV_CACHE, one_request))
