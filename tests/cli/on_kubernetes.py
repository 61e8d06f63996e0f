"""A cluster that exists, as a user's shell finds it, and a service `llm` on it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cli.commands import Shell
from kube.world import World, look_often, programs_first, world

DOCUMENT = """\
version: 1
name: llm
on: kubernetes
model: Qwen/Qwen3-8B
nodes: {{instance_type: g6.8xlarge}}
kubernetes: {{namespace: inference, head_selector: {{pool: system}}}}
access: {{api_key_file: {keys}}}
"""


@contextmanager
def cluster(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[World]:
    """One with nodes and no operator, to which this process's kubeconfig leads."""
    patch.setenv("HF_HUB_OFFLINE", "1")
    programs_first(patch)
    look_often(patch)
    with world(folder) as made:
        patch.setenv("KUBECONFIG", str(made.fake.kubeconfig(folder / "kubeconfig")))
        yield made


def document(of: World) -> Path:
    """That of a service `llm`, with keys that its endpoint knows."""
    path = of.folder / "diptych.yaml"
    path.write_text(DOCUMENT.format(keys=of.keys))
    return path


def brought_up(file: Path, shell: Shell) -> Path:
    """The same document, its service up."""
    done = shell("up", file, "--yes")
    assert done.code == 0, done.err
    return file
