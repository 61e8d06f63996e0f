"""The document that the tests of EKS bring up."""

from typing import Any

from diptych.spec import Document

REGION = "us-east-2"


def document(**fields: Any) -> Document:
    """Two g6.8xlarge for prefill and decode, in one cluster called "llm"."""
    whole = {
        "on": "eks",
        "name": "llm",
        "model": "Qwen/Qwen3-8B",
        "kubernetes": {"namespace": "inference"},
        "eks": {"public_access_cidrs": ["203.0.113.7/32"], **fields.pop("eks", {})},
        **fields,
    }
    return Document.model_validate(whole)
