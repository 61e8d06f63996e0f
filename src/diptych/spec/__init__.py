"""The document that says what to serve and where: its models, its loading, and errors by line and field."""

from diptych.spec.document import (
    EMBEDDED,
    AccessSection,
    Document,
    KVTransferSection,
    ModelSection,
    Phase,
    PhaseSection,
)
from diptych.spec.load import LoadedDocument, load, load_with_provenance
from diptych.spec.problems import InvalidDocumentError, Problem
from diptych.spec.schema import example, json_schema

__all__ = [
    "EMBEDDED",
    "AccessSection",
    "Document",
    "InvalidDocumentError",
    "KVTransferSection",
    "LoadedDocument",
    "ModelSection",
    "Phase",
    "PhaseSection",
    "Problem",
    "example",
    "json_schema",
    "load",
    "load_with_provenance",
]
