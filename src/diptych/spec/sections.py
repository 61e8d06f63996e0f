"""What both phases share: the model, the way of the KV cache, access, the image, staging."""

import re
from pathlib import PurePosixPath
from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from diptych.spec.fields import (
    EMBEDDED,
    EMBEDDED_NAME,
    Backend,
    Certificate,
    ConnectorConfig,
    Expose,
    File,
    HostName,
    ImageName,
    Ingress,
    ModelSource,
    NodeFolder,
    ObjectName,
    Package,
    Port,
    Revision,
    Secret,
    Section,
    Variable,
    Version,
    is_bucket,
    is_path,
    without_default,
)
from diptych.spec.problems import refusal, shown

_CLIENT_NAME = re.compile(r"\w[\w.:/-]*", re.ASCII)


class ModelSection(Section):
    """Which model, under which name."""

    source: ModelSource = Field(
        default=EMBEDDED,
        description="`embedded` (SmolLM2-135M-Instruct), a Hugging Face id, a path, or s3://bucket/folder.",
    )
    name: str = Field(
        default="",
        validate_default=True,
        description="The name that clients use. Default: the last part of the source, in small letters.",
        json_schema_extra=without_default,
    )
    revision: Revision | None = Field(
        default=None,
        description="Commit, branch or tag on the Hugging Face hub. Default: the hub's main branch.",
    )
    token_file: File | None = Field(
        default=None, description="File that holds the Hugging Face token. Default: HF_TOKEN, here."
    )
    token_env: Variable | None = Field(
        default=None, description="Variable of the machine that runs `up` which holds the token."
    )
    token_secret: Secret | None = Field(
        default=None, description="Kubernetes secret that holds the token: NAME, or NAME/KEY (key: token)."
    )

    @field_validator("name")
    @classmethod
    def _name_for_clients(cls, name: str, info: ValidationInfo) -> str:
        source = info.data.get("source", EMBEDDED)
        derived = EMBEDDED_NAME if source == EMBEDDED else PurePosixPath(source).name.lower()
        resolved = name or derived
        if not resolved:
            raise refusal(f"has no default for the source {shown(source)}", "set model.name")
        if len(resolved) > 128 or not _CLIENT_NAME.fullmatch(resolved):
            do = "set model.name to letters, digits and . _ : / -, a letter or digit first, at most 128"
            raise refusal(f"is {shown(resolved)}, which can't name a model", do)
        return resolved

    @field_validator("revision")
    @classmethod
    def _revision_of_a_hub_model(cls, revision: str | None, info: ValidationInfo) -> str | None:
        source = info.data.get("source")
        elsewhere = source is not None and (source == EMBEDDED or is_path(source) or is_bucket(source))
        if revision is not None and elsewhere:
            raise refusal(f"belongs to a Hugging Face id, and model.source is {shown(source)}", "remove it")
        return revision

    @field_validator("token_env", "token_secret")
    @classmethod
    def _one_token(cls, token: str | None, info: ValidationInfo) -> str | None:
        return _only(token, info, ("token_file", "token_env", "token_secret"), "the token")

    @property
    def is_on_hub(self) -> bool:
        """Whether the source is a Hugging Face id."""
        return not (self.source == EMBEDDED or is_path(self.source) or is_bucket(self.source))


class PortsSection(Section):
    """Where replicas meet for a KV transfer: the first port of each phase; a replica's ranks take the next ones."""

    prefill: Port = Field(default=20000, description="First port of the prefill replicas.")
    decode: Port = Field(default=22000, description="First port of the decode replicas.")


class KVTransferSection(Section):
    """How KV cache moves from prefill to decode. Fields that vLLM's `kv_transfer_config` knows keep its names."""

    backend: Backend = Field(
        default="auto",
        description="NIXL's backend; `auto`: LIBFABRIC where both phases have EFA, else vLLM's default, UCX.",
    )
    lease_s: int = Field(
        default=120,
        ge=10,
        le=3600,
        description="Seconds for which prefill keeps KV cache that nobody has fetched.",
    )
    kv_load_failure_policy: Literal["recompute", "fail"] = Field(
        default="recompute", description="What decode does when KV cache does not arrive."
    )
    kv_buffer_device: Literal["auto", "cuda", "cpu"] = Field(
        default="auto", description="Memory that NIXL registers; `auto`: where the engine computes."
    )
    allow_fallback: bool = Field(
        default=False,
        description="Be ready on another transport than the one asked for, and say so in every status.",
    )
    ports: PortsSection = Field(
        default_factory=PortsSection, description="Ports of the phases; on this machine free ones are taken."
    )
    kv_connector_extra_config: ConnectorConfig = Field(
        default_factory=dict, description="Further settings of NixlConnector, passed through."
    )


class AccessSection(Section):
    """How clients reach the endpoint. On this machine it listens on 127.0.0.1."""

    port: Port | None = Field(
        default=None, description="TCP port, exactly this one. Default: 8000, or the next one that is free."
    )
    api_keys: Literal["required", "none"] = Field(
        default="required",
        description="`none`: clients on this machine need no key, but for admin routes. With `on: local` only.",
    )
    api_key_file: File | None = Field(
        default=None, description="File with the endpoint's keys, one per line. Default: a key is made."
    )
    api_key_env: Variable | None = Field(
        default=None, description="Variable of the machine that runs `up` which holds the keys."
    )
    api_key_secret: Secret | None = Field(
        default=None, description="Kubernetes secret that holds the keys: NAME, or NAME/KEY (key: keys)."
    )
    expose: Expose = Field(
        default="none",
        description="`none`: by port-forward only. `internal-lb`, `gateway`: inside the network, with TLS.",
    )
    ingress: Ingress = Field(
        default="auto",
        description="What stands before decode: `haproxy`, or `proxy`, Ray Serve's own, as here. `auto`: haproxy "
        "where the image's Ray brings it.",
    )
    hostname: HostName | None = Field(
        default=None, description="Name under which clients reach it from outside."
    )
    tls_secret: ObjectName | None = Field(
        default=None, description="Kubernetes TLS secret (kubernetes.io/tls) for `gateway`."
    )
    tls_certificate_arn: Certificate | None = Field(
        default=None, description="Certificate in AWS Certificate Manager for `internal-lb`."
    )
    gateway_class: ObjectName | None = Field(default=None, description="GatewayClass for `gateway`.")

    @field_validator("api_key_env", "api_key_secret")
    @classmethod
    def _one_key(cls, key: str | None, info: ValidationInfo) -> str | None:
        return _only(key, info, ("api_key_file", "api_key_env", "api_key_secret"), "the keys")


class ImageSection(Section):
    """The container image of all pods."""

    name: ImageName | None = Field(
        default=None,
        description="Image that the pods run. Default: the tested one of AWS Deep Learning Containers.",
    )
    packages: list[Package] = Field(
        default_factory=list,
        description="Further Python packages on the tested image: `render` writes a Dockerfile; `name` is its result.",
    )
    base: ImageName | None = Field(default=None, description="Image that the Dockerfile starts from.")
    ray_version: Version | None = Field(
        default=None, description="Ray in the image. Default: known by its tag."
    )
    vllm_version: Version | None = Field(
        default=None, description="vLLM in the image. Default: known by its tag."
    )
    pull_policy: Literal["IfNotPresent", "Always", "Never"] = Field(
        default="IfNotPresent", description="Kubernetes' imagePullPolicy."
    )
    pull_secret: ObjectName | None = Field(
        default=None, description="Kubernetes secret for a private registry."
    )


class StagingSection(Section):
    """The model's files on the nodes: fetched once per node, kept when a pod is replaced."""

    enabled: bool = Field(
        default=True, description="Stage the model on each node; otherwise each engine fetches it itself."
    )
    path: NodeFolder | None = Field(
        default=None,
        description="Folder on the node. Default: on local NVMe where the instance type has some.",
    )


def _only(value: str | None, info: ValidationInfo, names: tuple[str, ...], what: str) -> str | None:
    others = [name for name in names if name != info.field_name and info.data.get(name) is not None]
    if value is not None and others:
        raise refusal(f"names {what} a second time, beside {others[0]}", "keep one of them")
    return value
