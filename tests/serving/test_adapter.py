"""The adapter to Ray's internals: it is the only one, and serves the versions that it names."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import diptych
from diptych.catalog.engines import PAIRS, minor
from diptych.serving.ray_versions import RAY_VERSIONS, require_ray

SOURCE = Path(diptych.__file__).parent
ADAPTER = "serving/ray_llm.py"
# A program of its own, which runs with the Ray of an image and imports nothing of Diptych.
BESIDE = {"check/ray_probe.py"}


def imported(file: Path) -> Iterator[str]:
    """The modules that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{each.name}" for each in node.names)


def is_internal(module: str) -> bool:
    return module.startswith("ray.") and any(part in ("_private", "_internal") for part in module.split("."))


def test_rays_internals_are_imported_by_the_adapter_alone() -> None:
    files = {file.relative_to(SOURCE).as_posix(): file for file in SOURCE.rglob("*.py")}
    users = {name for name, file in files.items() if any(map(is_internal, imported(file)))}
    assert users - BESIDE == {ADAPTER}


def test_it_serves_the_pairs_that_are_tested() -> None:
    assert {minor(pair.ray): minor(pair.vllm) for pair in PAIRS} == RAY_VERSIONS
    for version in (*(pair.ray for pair in PAIRS), "2.60.3"):
        require_ray(version)


@pytest.mark.parametrize("version", ["2.57.1", "2.59.0", "2.61.0", "3.0.0.dev0"])
def test_another_version_is_refused_in_words(version: str) -> None:
    with pytest.raises(ImportError, match=rf"Ray {version} .*Install Ray 2.58 with vLLM 0.26 or Ray 2.60"):
        require_ray(version)


def test_with_another_version_the_adapter_is_not_imported_at_all() -> None:
    pytest.importorskip("ray")
    program = "import ray; ray.__version__ = '2.57.1'; import diptych.serving.ray_llm"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("ImportError: diptych.serving extends internals of Ray")
