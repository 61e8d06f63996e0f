"""The document: what to serve and where, in one YAML file of which every field has a default.

Each section is a frozen Pydantic model. Fields that Ray Serve LLM, vLLM and KubeRay already name keep their names,
so that people can paste. What one field may hold is checked here and in `fields`; what fields mean for each other,
and what the place makes of them, in `diptych.check`.
"""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from diptych.spec.fields import EngineKwargs, Phase, Place, Section, ServiceName, Topology
from diptych.spec.orchestrator import OrchestratorSection
from diptych.spec.phases import NodesSection, PhaseSection
from diptych.spec.places import EksSection, KubernetesSection
from diptych.spec.sections import AccessSection, ImageSection, KVTransferSection, ModelSection, StagingSection

VERSION = 1

REFUSED_FIELDS = {
    "access.api_key": (
        "a key in a document ends up in version control and logs",
        "put it into a file that only you can read, and set access.api_key_file; without one a key is made",
    ),
    "model.token": (
        "a token in a document ends up in version control and logs",
        "name a file, a variable or a secret: model.token_file, model.token_env or model.token_secret",
    ),
    "access.host": (
        "the endpoint listens on 127.0.0.1 here and on the pods' addresses elsewhere",
        "remove it",
    ),
    "kv_transfer.kv_connector": ("it is always NixlConnector", "remove it"),
    "kv_transfer.kv_role": ("Diptych gives each phase its role", "remove it"),
    "kv_transfer.engine_id": ("each replica must have one of its own, and gets it", "remove it"),
    "kv_transfer.kv_lease_duration": ("it has a field of its own", "set kv_transfer.lease_s"),
    "kv_transfer.backends": ("NIXL has one backend here", "set kv_transfer.backend"),
    "model_loading_config": ("the model has a section of its own", "set model.source and model.name"),
    "deployment_config": (
        "each phase has its own",
        "set num_replicas or autoscaling_config in prefill and decode",
    ),
    "kv_transfer_config": ("it has a section of its own", "set kv_transfer"),
    "accelerator_type": ("the nodes say which GPU it is", "set nodes.instance_type or nodes.selector"),
    **{
        f"{phase}.{field}": words
        for phase in ("prefill", "decode")
        for field, words in {
            "deployment_config": (
                "its fields stand here themselves",
                "write num_replicas or autoscaling_config",
            ),
            "accelerator_type": (
                "the nodes say which GPU it is",
                "set nodes.instance_type or nodes.selector",
            ),
            "placement_group_config": ("it follows from the parallel sizes in engine_kwargs", "remove it"),
            "kv_transfer_config": ("it holds for both phases", "set kv_transfer"),
        }.items()
    },
    "eks.kuberay_version": ("it holds for every cluster", "set kubernetes.kuberay_version"),
    "eks.namespace": ("it holds for every cluster", "set kubernetes.namespace"),
    "eks.spot": ("it belongs to the nodes", "set nodes.market: spot"),
    "eks.capacity_reservation": ("it belongs to the nodes", "set nodes.capacity_reservation"),
}
"""Fields that people will look for elsewhere or not at all, by dotted path: why, and what to do instead."""


def _model_shorthand(value: object) -> object:
    return {"source": value} if isinstance(value, str) else value


class Document(Section):
    """What to serve and where. `Document()` serves the embedded model, split, on this machine.

    With `topology: aggregated` one engine does both phases: `decode` describes it and `prefill` is not used,
    so that the same document serves a comparison.
    """

    version: Literal[1] = Field(default=1, description="Version of this format.")
    name: ServiceName = Field(default="diptych", description="Name of the service.")
    on: Place = Field(default="local", description="Where to serve: `local`, `kubernetes` or `eks`.")
    model: Annotated[ModelSection, BeforeValidator(_model_shorthand)] = Field(
        default_factory=ModelSection, description="The model; a plain word is its source."
    )
    topology: Topology = Field(
        default="split", description="`split`: prefill and decode apart. `aggregated`: one engine does both."
    )
    engine_kwargs: EngineKwargs = Field(
        default_factory=dict, description="Arguments of vLLM under their own names, for both phases."
    )
    nodes: NodesSection = Field(
        default_factory=NodesSection, description="Settings of both phases' nodes, beyond this machine."
    )
    prefill: PhaseSection = Field(default_factory=PhaseSection, description="The phase that reads prompts.")
    decode: PhaseSection = Field(default_factory=PhaseSection, description="The phase that writes answers.")
    kv_transfer: KVTransferSection = Field(
        default_factory=KVTransferSection, description="How KV cache moves from prefill to decode."
    )
    orchestrator: OrchestratorSection = Field(
        default_factory=OrchestratorSection,
        description="Where each request's prefill runs, what may wait, and when something counts as failed.",
    )
    access: AccessSection = Field(
        default_factory=AccessSection, description="How clients reach the endpoint."
    )
    image: ImageSection = Field(default_factory=ImageSection, description="The image of all pods.")
    staging: StagingSection = Field(
        default_factory=StagingSection, description="The model's files on the nodes."
    )
    monitoring: bool = Field(
        default=True,
        description="Render PodMonitor, alert rules and a Grafana board for the Prometheus operator.",
    )
    kubernetes: KubernetesSection = Field(
        default_factory=KubernetesSection, description="Where in a cluster, beyond this machine."
    )
    eks: EksSection = Field(default_factory=EksSection, description="The EKS cluster, for `on: eks`.")

    @property
    def phases(self) -> dict[Phase, PhaseSection]:
        """The phases that have engines of their own: prefill and decode, or decode alone where it does both."""
        if self.topology == "aggregated":
            return {"decode": self.decode}
        return {"prefill": self.prefill, "decode": self.decode}

    def engine_kwargs_for(self, phase: Phase) -> dict[str, Any]:
        """The arguments of vLLM for `phase`: the shared ones, and over them its own (whole values)."""
        return {**self.engine_kwargs, **getattr(self, phase).engine_kwargs}

    def nodes_for(self, phase: Phase) -> NodesSection:
        """The nodes of `phase`: its own settings, and the shared ones where it has none."""
        own: NodesSection = getattr(self, phase).nodes
        return own.over(self.nodes)

    @property
    def cluster_name(self) -> str:
        """The name of the EKS cluster."""
        return self.eks.cluster or self.name


SHORTHANDS = {"model": "source"}
"""Sections that may be written as one plain word, and the field which that word stands for."""
