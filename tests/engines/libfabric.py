"""NIXL's LIBFABRIC backend on a machine without EFA and without a GPU: over libfabric's TCP provider.

NIXL's plugin is linked with libfabric (1.21 or newer), hwloc, CUDA's runtime and CUDA's driver. The first three lie in
wheels of packages that have nothing to do with us; of the driver it calls three functions, which say here that there
is no GPU.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import platformdirs
import pytest

from engines.service import NAME, START_TIMEOUT_S, Service

PORT = 18465

_WHEELS = {
    "mpich==5.0.2": "libfabric.so.1",
    "tcmlib==1.6.0": "libhwloc.so.15",
    "nvidia-cuda-runtime>=13,<14": "libcudart.so.13",
}
_DRIVER = "libcuda.so.1"
_NO_GPU = """
enum { no_device = 100 };
int cuCtxSetCurrent(void *context) { return no_device; }
int cuDeviceGetPCIBusId(char *id, int length, int device) { return no_device; }
int cuPointerGetAttributes(unsigned count, int *names, void **values, unsigned long long pointer) { return no_device; }
"""
_DOWNLOAD_S = 300.0


def libraries() -> Path:
    """A directory with all of them, made once in the user's cache; skips the test where it can't be."""
    ready = platformdirs.user_cache_path("diptych") / "tests" / "libfabric"
    if {each.name for each in ready.glob("*")} >= {_DRIVER, *_WHEELS.values()}:
        return ready
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("LIBFABRIC without a GPU needs a C compiler, for what stands in for CUDA's driver")
    ready.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ready.parent) as directory:
        made = Path(directory) / "libraries"
        made.mkdir()
        for requirement, library in _WHEELS.items():
            _take(requirement, library, made)
        _compile(compiler, made / _DRIVER)
        shutil.rmtree(ready, ignore_errors=True)
        made.rename(ready)
    return ready


def _take(requirement: str, library: str, made: Path) -> None:
    """Put a library out of a wheel into the directory `made`."""
    with tempfile.TemporaryDirectory(dir=made.parent) as wheels:
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--no-deps",
            "--only-binary",
            ":all:",
            "--dest",
            wheels,
        ]
        done = subprocess.run([*command, requirement], capture_output=True, text=True, timeout=_DOWNLOAD_S)
        if done.returncode != 0:
            last = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1]
            pytest.skip(f"{library} of the wheel {requirement} can't be had: {last}")
        with zipfile.ZipFile(next(Path(wheels).glob("*.whl"))) as wheel:
            name = next(each for each in wheel.namelist() if each.endswith(f"/{library}"))
            made.joinpath(library).write_bytes(wheel.read(name))


def _compile(compiler: str, library: Path) -> None:
    command = [
        compiler,
        "-shared",
        "-fPIC",
        "-x",
        "c",
        "-",
        f"-Wl,-soname,{library.name}",
        "-o",
        str(library),
    ]
    subprocess.run(command, input=_NO_GPU, text=True, check=True, timeout=60)


class LibfabricService(Service):
    """The service on one machine, asked for LIBFABRIC in ways that `diptych check` refuses there.

    Args:
        root: as for `Service`.
        settings: of the document.
        asked: `transport` of `build_app`, in the place of what the document gives.
        variables: of the engines' processes, beside those of this process.
    """

    def __init__(
        self,
        root: Path,
        *settings: str,
        asked: dict[str, Any] | None = None,
        variables: dict[str, str] | None = None,
    ) -> None:
        super().__init__(root)
        self._settings, self._asked = settings, asked
        path = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.environment |= {"PYTHONPATH": os.pathsep.join(path)} | (variables or {})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{PORT}"

    def up(self) -> "subprocess.CompletedProcess[str]":
        common = (f"name={NAME}", f"access.port={PORT}", "engine_kwargs.max_model_len=2048")
        return subprocess.run(
            [sys.executable, "-m", "engines.unchecked", json.dumps(self._asked), *common, *self._settings],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=START_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
        )
