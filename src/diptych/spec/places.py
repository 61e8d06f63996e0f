"""The places beyond this machine: a Kubernetes cluster that exists, and an EKS cluster with all that is in it."""

from typing import Literal

from pydantic import Field

from diptych.spec.fields import (
    Annotations,
    Cidr,
    InstanceTypeName,
    KubernetesVersion,
    Labels,
    Memory,
    Namespace,
    Region,
    Section,
    ServiceName,
    TagKey,
    TagValue,
    Version,
    ZoneOrAuto,
)


class KubernetesSection(Section):
    """Where in a cluster; for `on: kubernetes` and `on: eks`."""

    context: str | None = Field(
        default=None, description="Context of the kubeconfig, for `on: kubernetes`. Default: the current one."
    )
    namespace: Namespace = Field(default="diptych", description="Namespace of the service.")
    kuberay_version: Version = Field(default="1.7.0", description="Version of the KubeRay operator.")
    privileged: Literal["auto", "always", "never"] = Field(
        default="auto",
        description="Privileged workers: `auto` starts without, and a proof that fails names this switch.",
    )
    upgrade: Literal["in-place", "new-cluster"] = Field(
        default="in-place",
        description="What a changed pod does: `new-cluster` needs all GPUs twice while it changes over.",
    )
    head_memory: Memory = Field(default=8 * 2**30, description="Memory of Ray's head pod.")
    head_cpus: int = Field(default=2, ge=1, description="CPU cores of Ray's head pod.")
    head_selector: Labels = Field(
        default_factory=dict, description="Labels of the nodes for the head pod and the operator."
    )
    service_account_annotations: Annotations = Field(
        default_factory=dict,
        description="Annotations of the workers' ServiceAccount, by which a cluster gives pods a role for a bucket.",
    )


class SystemNodesSection(Section):
    """The nodes without GPUs, for Ray's head, the operator and what Kubernetes itself needs."""

    instance_type: InstanceTypeName = Field(default="m7i.xlarge", description="EC2 instance type.")
    count: int = Field(default=1, ge=1, le=100, description="Nodes.")


class EksSection(Section):
    """The account's side of an EKS cluster. Never set by variables: a stray one must not spend money elsewhere."""

    cluster: ServiceName | None = Field(
        default=None, description="Name of the cluster. Default: the service's."
    )
    region: Region = Field(default="us-east-2", description="AWS region.")
    zone: ZoneOrAuto = Field(
        default="auto",
        description="The one zone of all GPU nodes; `auto`: one that offers the instance types with EFA.",
    )
    kubernetes_version: KubernetesVersion = Field(
        default="1.35", description="Kubernetes version, in quotes."
    )
    system_nodes: SystemNodesSection = Field(
        default_factory=SystemNodesSection, description="The nodes without GPUs."
    )
    public_access_cidrs: list[Cidr] = Field(
        default_factory=list,
        description="Addresses that may reach the cluster's API. Default: the one that `up` is run from.",
    )
    private_access_only: bool = Field(
        default=False, description="No public API endpoint at all: `up` must run inside the network."
    )
    tags: dict[TagKey, TagValue] = Field(default_factory=dict, description="Tags of all that is made.")
