"""The document that says what to serve and where: its models, its loading, and errors by line and field."""

from diptych.spec.document import Document
from diptych.spec.fields import EMBEDDED, Phase, Place, Section, Topology, is_bucket, is_path
from diptych.spec.load import (
    LoadedDocument,
    load,
    load_leniently,
    load_with_provenance,
    validate_options,
)
from diptych.spec.orchestrator import OrchestratorSection
from diptych.spec.phases import AutoscalingSection, NodesSection, PhaseSection, ResourcesSection
from diptych.spec.places import EksSection, KubernetesSection, SystemNodesSection
from diptych.spec.problems import InvalidDocumentError, Problem
from diptych.spec.schema import json_schema, schema_text
from diptych.spec.sections import (
    AccessSection,
    ImageSection,
    KVTransferSection,
    ModelSection,
    PortsSection,
    StagingSection,
)

__all__ = [
    "EMBEDDED",
    "AccessSection",
    "AutoscalingSection",
    "Document",
    "EksSection",
    "ImageSection",
    "InvalidDocumentError",
    "KVTransferSection",
    "KubernetesSection",
    "LoadedDocument",
    "ModelSection",
    "NodesSection",
    "OrchestratorSection",
    "Phase",
    "PhaseSection",
    "Place",
    "PortsSection",
    "Problem",
    "ResourcesSection",
    "Section",
    "StagingSection",
    "SystemNodesSection",
    "Topology",
    "is_bucket",
    "is_path",
    "json_schema",
    "load",
    "load_leniently",
    "load_with_provenance",
    "schema_text",
    "validate_options",
]
