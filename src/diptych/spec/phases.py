"""One phase of the document: how many replicas, on which nodes, with which share of them."""

from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from diptych.spec.fields import (
    EngineKwargs,
    InstanceTypeName,
    LabelKey,
    Labels,
    LabelValue,
    Market,
    Memory,
    Reservation,
    Section,
    TaintEffect,
    Zone,
)
from diptych.spec.problems import refusal, shown

MAX_REPLICAS = 512


class AutoscalingSection(Section):
    """Ray Serve's `autoscaling_config`, its own names and defaults."""

    min_replicas: int = Field(default=1, ge=0, description="Replicas that stay when nobody asks.")
    initial_replicas: int | None = Field(default=None, ge=0, description="Replicas at the start.")
    max_replicas: int = Field(default=1, ge=1, le=MAX_REPLICAS, description="Most replicas.")
    target_ongoing_requests: float | None = Field(
        default=None,
        gt=0,
        description="Requests per replica that Serve aims at. Default: Ray's.",
    )
    look_back_period_s: float | None = Field(
        default=None, gt=0, description="Seconds over which requests are averaged."
    )
    upscale_delay_s: float | None = Field(
        default=None, ge=0, description="Seconds of need before a replica is added."
    )
    downscale_delay_s: float | None = Field(
        default=None, ge=0, description="Seconds without need before a replica is taken away."
    )
    upscaling_factor: float | None = Field(
        default=None, gt=0, description="How strongly a need for more replicas counts."
    )
    downscaling_factor: float | None = Field(
        default=None, gt=0, description="How strongly a need for fewer replicas counts."
    )


class TolerationSection(Section):
    """A taint to tolerate, in Kubernetes' own names."""

    key: LabelKey | None = Field(default=None, description="Key of the taint. Default: any, with `Exists`.")
    operator: Literal["Exists", "Equal"] = Field(
        default="Equal",
        validate_default=True,
        description="`Exists`: whatever the taint's value. `Equal` (default): that of `value`.",
    )
    value: LabelValue | None = Field(default=None, description="Value of the taint.")
    effect: TaintEffect | None = Field(default=None, description="Effect of the taint. Default: any.")
    tolerationSeconds: int | None = Field(  # noqa: N815
        default=None, ge=0, description="Seconds until a pod is evicted, for the effect `NoExecute`."
    )

    @field_validator("operator")
    @classmethod
    def _operator_for_the_key(cls, operator: str, info: ValidationInfo) -> str:
        if operator == "Equal" and "key" in info.data and info.data["key"] is None:
            raise refusal("is Equal, and there is no key to compare", "set key, or write operator: Exists")
        return operator

    @field_validator("value")
    @classmethod
    def _value_to_compare(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value and info.data.get("operator") == "Exists":
            what = f"is {shown(value)}, and operator is Exists, which takes any"
            raise refusal(what, "remove it, or write operator: Equal")
        return value

    @field_validator("tolerationSeconds")
    @classmethod
    def _seconds_until_eviction(cls, seconds: int | None, info: ValidationInfo) -> int | None:
        if seconds is not None and "effect" in info.data and info.data["effect"] != "NoExecute":
            raise refusal(
                f"is {seconds}, and counts for NoExecute only", "write effect: NoExecute, or remove it"
            )
        return seconds


class NodesSection(Section):
    """The nodes of a phase: a node group on EKS, a selection of nodes that exist on Kubernetes.

    A field that is not set here is taken from the document's shared `nodes`.
    """

    instance_type: InstanceTypeName | None = Field(
        default=None, description="EC2 instance type, like g6.8xlarge."
    )
    count: int | None = Field(
        default=None, ge=1, le=1000, description="Nodes. Default: as many as the replicas need."
    )
    zone: Zone | None = Field(default=None, description="Availability zone. Default: eks.zone.")
    market: Market | None = Field(
        default=None, description="`on-demand` (default), `spot` or `capacity-block`."
    )
    capacity_reservation: Reservation | None = Field(
        default=None, description="Capacity reservation (cr-…), or the ARN of a resource group of them."
    )
    volume_size: Memory | None = Field(
        default=None,
        description="Root volume of each node. Default: image and checkpoint with room to spare.",
    )
    selector: Labels | None = Field(default=None, description="Labels of the nodes to use, on Kubernetes.")
    tolerations: list[TolerationSection] | None = Field(
        default=None, description="Taints to tolerate, as Kubernetes writes them."
    )

    def over(self, shared: "NodesSection") -> "NodesSection":
        """These nodes, with the fields that are not set here taken from `shared`."""
        own = {name: value for name, value in dict(self).items() if value is not None}
        return shared.model_copy(update=own)


class ResourcesSection(Section):
    """What each worker pod of a phase gets of its node. Default: all of the node that Kubernetes can give."""

    cpus: int | None = Field(default=None, ge=1, description="CPU cores.")
    memory: Memory | None = Field(default=None, description="Host memory: 100GiB, or bytes.")
    gpus: int | None = Field(default=None, ge=1, le=16, description="GPUs.")
    efa: int | None = Field(default=None, ge=0, le=32, description="EFA interfaces.")
    shared_memory: Memory | None = Field(default=None, description="/dev/shm. Default: 8 GiB.")
    hugepages_2mi: Memory | None = Field(default=None, description="Huge pages of 2 MiB. Default: none.")


class PhaseSection(Section):
    """One of the two phases."""

    num_replicas: int = Field(default=1, ge=1, le=MAX_REPLICAS, description="Engines that run this phase.")
    autoscaling_config: AutoscalingSection | None = Field(
        default=None, description="Ray Serve's autoscaling in place of num_replicas."
    )
    max_ongoing_requests: int | None = Field(
        default=None, ge=1, description="Requests that a replica takes at a time. Default: Ray Serve LLM's."
    )
    engine_kwargs: EngineKwargs = Field(
        default_factory=dict, description="Arguments of vLLM for this phase; they win over the shared ones."
    )
    nodes: NodesSection = Field(
        default_factory=NodesSection, description="The phase's own nodes; they win over the shared ones."
    )
    resources: ResourcesSection = Field(
        default_factory=ResourcesSection, description="What each worker pod gets of its node."
    )
    cores: int | None = Field(
        default=None,
        ge=1,
        description="On this machine: CPU cores for each replica. Default: the machine's, shared out.",
    )
    kv_cache_memory: Memory | None = Field(
        default=None,
        description="Memory for each replica's KV cache: 512MiB, or bytes. Default: what the machine allows.",
    )

    @property
    def least_replicas(self) -> int:
        """Replicas that must always find a place."""
        return self.autoscaling_config.min_replicas if self.autoscaling_config else self.num_replicas

    @property
    def most_replicas(self) -> int:
        """Replicas for which there must be room."""
        return self.autoscaling_config.max_replicas if self.autoscaling_config else self.num_replicas
