"""What rendering is told beside the document: everything that a pure function cannot find out."""

from dataclasses import dataclass, field

from diptych.models.config import ModelShape


@dataclass(frozen=True)
class Facts:
    """What was found out about a document before it is rendered.

    Args:
        source: name of the document's file, for the headers.
        shape: the model's numbers; None where its config.json was not found.
        model_revision: the commit that the model's revision (or the hub's main branch) stands for, so that all nodes
            get the same; None where nobody asked the hub.
        checkpoint_bytes: size of the checkpoint on disk; None where it is not known.
        serving_archive: `diptych.serving` as a zip archive, as it is mounted into the pods.
        zone: the availability zone that was chosen for `eks.zone: auto`; None before one was.
        public_access_cidrs: who may reach the cluster's API, where the document doesn't say; empty: nobody yet.
        any_phase_nodes: on EKS, worker pods may stand on every node of the service, whichever phase it was made for;
            else on those of their own phase.
    """

    source: str = "diptych.yaml"
    shape: ModelShape | None = None
    model_revision: str | None = None
    checkpoint_bytes: int | None = None
    serving_archive: bytes = field(default=b"", repr=False)
    zone: str | None = None
    public_access_cidrs: tuple[str, ...] = ()
    any_phase_nodes: bool = False
