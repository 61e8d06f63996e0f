"""The five documents that golden files are kept for, and what is known about each when it is rendered."""

from pathlib import Path

from diptych.models import ModelShape, shipped_config
from diptych.render.inputs import Facts
from diptych.spec import Document, load

HERE = Path(__file__).parent
DOCUMENTS = {file.stem: file for file in sorted((HERE / "documents").glob("*.yaml"))}
ARCHIVE = b"stands for the serving code, which may change without a word in these files"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
_GB = 10**9
_KNOWN = {
    "walkthrough": ("Qwen/Qwen3.5-9B", COMMIT, 19_320_000_000, "us-east-2a"),
    "g6e-prefill-g6-decode": ("meta-llama/Llama-3.1-8B-Instruct", None, 16 * _GB, None),
    "p5en-2p3d-reservation": ("Qwen/Qwen3-235B-A22B", COMMIT, 470 * _GB, None),
    "aggregated-tp4-two-nodes": ("Qwen/Qwen3-32B", None, None, None),
}


def example(name: str) -> tuple[Document, Facts]:
    """A document by its file's name, and the facts that a look-up would have found."""
    document = load(DOCUMENTS[name], environ={})
    if name not in _KNOWN:
        return document, Facts(source=f"{name}.yaml")
    model, commit, size, zone = _KNOWN[name]
    config = shipped_config(model)
    assert config is not None
    facts = Facts(
        source=f"{name}.yaml",
        shape=ModelShape.from_config(config),
        model_revision=commit,
        checkpoint_bytes=size,
        serving_archive=ARCHIVE,
        zone=zone,
    )
    return document, facts
