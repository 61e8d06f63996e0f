"""Memory: what each phase gets, and a refusal that shows the sum."""

import re

import pytest

from diptych.catalog.instances import GIB, MIB
from diptych.errors import StartError
from diptych.local.budget import Demand, check_memory, default_max_model_len
from diptych.local.hardware import Hardware
from diptych.models.on_cpu import default_kv_cache


def machine(available: float, total: float = 24 * GIB) -> Hardware:
    return Hardware((0, 1), int(total), int(available))


def test_what_fits_is_let_through() -> None:
    check_memory([Demand("prefill", 1, GIB, GIB), Demand("decode", 1, GIB, GIB)], machine(20 * GIB))


def test_what_does_not_fit_is_refused_with_numbers_that_add_up() -> None:
    demands = [Demand("prefill", 2, GIB, 2 * GIB), Demand("decode", 1, GIB, 4 * GIB)]
    with pytest.raises(StartError) as caught:
        check_memory(demands, machine(8 * GIB))
    said = caught.value.message
    needed = float(re.search(r"([\d.]+) GiB needed", said)[1])
    rows = [int(n) * float(gib) for n, gib in re.findall(r"(\d+) × \w+: ([\d.]+) GiB", said)]
    ray = float(re.search(r"Ray: ([\d.]+) GiB", said)[1])
    assert len(rows) == 2
    assert needed == pytest.approx(sum(rows) + ray, abs=0.2)
    assert "8.0 GiB available of 24.0 GiB" in said
    assert "KV cache 2.0 GiB" in said
    assert "kv_cache_memory" in caught.value.hint


def test_replicas_count_each() -> None:
    one = Demand("decode", 1, GIB, GIB)
    check_memory([one], machine(6 * GIB))
    with pytest.raises(StartError):
        check_memory([Demand("decode", 4, GIB, GIB)], machine(6 * GIB))


def test_the_default_kv_cache_holds_more_than_one_request_of_full_length() -> None:
    assert default_kv_cache(46_080, 8192) > 46_080 * 8192


def test_the_default_kv_cache_of_a_small_model_is_not_tiny() -> None:
    assert default_kv_cache(100, 512) == 256 * MIB


def test_the_default_kv_cache_of_a_large_model_is_one_full_request_and_no_more() -> None:
    assert 8 * GIB < default_kv_cache(2**20, 8192) <= 8 * GIB + 2 * 128 * 2**20  # and two blocks


@pytest.mark.parametrize(
    ("limit", "kwargs", "expected"),
    [
        (2048, {}, 2048),
        (131072, {}, 8192),
        (None, {}, 8192),
        (2048, {"max_model_len": 4096}, 4096),
        (131072, {"max_model_len": "auto"}, 8192),
    ],
)
def test_the_context_is_the_users_else_the_models_up_to_8192(limit, kwargs, expected) -> None:
    assert default_max_model_len(limit, kwargs) == expected
