"""The document: what to serve and where, in one YAML file of which every field has a default.

Each section is a frozen Pydantic model. Fields that Ray Serve LLM and vLLM already name keep their names, so
that people can paste. A place adds its section here, and its word to `SERVED_PLACES`.
"""

import re
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
)

from diptych.spec.problems import nearest, refusal, shown
from diptych.spec.sizes import format_size, parse_size

VERSION = 1

EMBEDDED = "embedded"
EMBEDDED_NAME = "smollm2-135m-instruct"

SERVED_PLACES = ("local",)
MAX_LOCAL_REPLICAS = 8
MIN_KV_CACHE_BYTES = 1024**2

Phase = Literal["prefill", "decode"]
Place = Literal["local", "kubernetes", "eks"]
Topology = Literal["split", "aggregated"]
Backend = Literal["auto", "UCX", "LIBFABRIC"]

RESERVED_ENGINE_KWARGS = {
    "model": ("it names the model a second time", "set model.source"),
    "revision": ("it belongs to the model", "set model.revision"),
    "served_model_name": ("it is the name for clients", "set model.name"),
    "distributed_executor_backend": ("Diptych chooses how an engine starts its workers", "remove it"),
    "kv_transfer_config": ("Diptych writes it for both phases", "set kv_transfer"),
    "api_key": ("no key is written inline", "give a file with access.api_key_file"),
}
"""Arguments of vLLM refused among `engine_kwargs`: why, and what to do instead."""

RESERVED_CONNECTOR_CONFIG = {
    "backends": ("it names the backend a second time", "set kv_transfer.backend"),
    "kv_lease_duration": ("it names the lease a second time", "set kv_transfer.lease_s"),
}

REFUSED_FIELDS = {
    "access.api_key": (
        "a key in a document ends up in version control and logs",
        "put it into a file that only you can read, and set access.api_key_file; without one a key is made",
    ),
    "access.host": ("the endpoint listens on 127.0.0.1 only", "remove it"),
    "kv_transfer.kv_connector": ("it is always NixlConnector", "remove it"),
    "kv_transfer.kv_role": ("Diptych gives each phase its role", "remove it"),
    "prefill.autoscaling_config": (
        "this version starts a fixed number of replicas",
        "set prefill.num_replicas",
    ),
    "decode.autoscaling_config": (
        "this version starts a fixed number of replicas",
        "set decode.num_replicas",
    ),
}
"""Fields that people will look for and this version has not, by dotted path: why, and what to do instead."""

_DNS_LABEL = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?", re.ASCII)
_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?", re.ASCII)
_CLIENT_NAME = re.compile(r"\w[\w.:/-]*", re.ASCII)
_ARGUMENT = re.compile(r"[a-z][a-z0-9_]*", re.ASCII)


def _served_place(place: str) -> str:
    if place not in SERVED_PLACES:
        raise refusal(f"is {place}, and this version of Diptych serves `local` only", "set on: local")
    return place


def _dns_label(name: str) -> str:
    if len(name) > 40 or not _DNS_LABEL.fullmatch(name):
        do = "use at most 40 small letters, digits and '-', a letter first and no '-' last"
        raise refusal(f"is {shown(name)}, which can't name a service", do)
    return name


def _model_source(source: str) -> str:
    if is_path(source) and "\0" not in source:
        return source
    if len(source) > 200 or not _HUB_ID.fullmatch(source):
        do = "give one of these; a path begins with /, ./, ../ or ~"
        raise refusal(f"is {shown(source)}: not `embedded`, no Hugging Face id (owner/name) and no path", do)
    if source != EMBEDDED and "/" not in source and nearest(source, [EMBEDDED]):
        raise refusal(
            f"is {shown(source)}", "did you mean embedded? A Hugging Face id has an owner: owner/name"
        )
    return source


def _memory(size: object) -> object:
    if not isinstance(size, str | int) or isinstance(size, bool):
        return size
    do = "write a number with KiB, MiB, GiB or TiB, like 512MiB"
    try:
        amount = parse_size(size)
    except ValueError as error:
        raise refusal(f"is {shown(size)}: {error}", do) from error
    if amount < MIN_KV_CACHE_BYTES:
        raise refusal(f"is {shown(size)}, less than {format_size(MIN_KV_CACHE_BYTES)}", do)
    return amount


def _key_file(file: Path) -> Path:
    if str(file) == "." or "\0" in str(file):
        raise refusal(f"is {shown(str(file))}, which names no file", "write the path of a file")
    return file


def _engine_argument(name: str) -> str:
    plain = name.lstrip("-").replace("-", "_")
    if plain in RESERVED_ENGINE_KWARGS:
        why, do = RESERVED_ENGINE_KWARGS[plain]
        raise refusal(f"can't be set here: {why}", do)
    if not _ARGUMENT.fullmatch(name):
        do = f"write {plain}" if _ARGUMENT.fullmatch(plain) else "use the name in vLLM's documentation"
        raise refusal("is not how an argument of vLLM is written", do)
    return name


def _connector_field(name: str) -> str:
    if name in RESERVED_CONNECTOR_CONFIG:
        why, do = RESERVED_CONNECTOR_CONFIG[name]
        raise refusal(f"can't be set here: {why}", do)
    return name


def _without_default(schema: dict[str, Any]) -> None:
    del schema["default"]


EngineKwargs = dict[Annotated[str, AfterValidator(_engine_argument)], Any]
Memory = Annotated[int, BeforeValidator(_memory, json_schema_input_type=int | str)]


def is_path(source: str) -> bool:
    """Whether a model's source is a folder (it begins with /, ./, ../ or ~) and not a Hugging Face id."""
    return source in (".", "..") or source.startswith(("/", "./", "../", "~"))


class Section(BaseModel):
    """What all parts of the document share: no unknown fields, no silent conversion, no change once made."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ModelSection(Section):
    """Which model, under which name."""

    source: Annotated[str, AfterValidator(_model_source)] = Field(
        default=EMBEDDED,
        description="`embedded` (SmolLM2-135M-Instruct), a Hugging Face id, or a path.",
    )
    name: str = Field(
        default="",
        validate_default=True,
        description="The name that clients use. Default: the last part of the source, in small letters.",
        json_schema_extra=_without_default,
    )
    revision: str | None = Field(
        default=None,
        description="Commit, branch or tag on the Hugging Face hub. Default: the hub's main branch.",
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
        if revision is not None and source is not None and (source == EMBEDDED or is_path(source)):
            raise refusal(f"belongs to a Hugging Face id, and model.source is {shown(source)}", "remove it")
        return revision


class PhaseSection(Section):
    """One of the two phases."""

    num_replicas: int = Field(
        default=1, ge=1, le=MAX_LOCAL_REPLICAS, description="Engines that run this phase."
    )
    engine_kwargs: EngineKwargs = Field(
        default_factory=dict, description="Arguments of vLLM for this phase; they win over the shared ones."
    )
    cores: int | None = Field(
        default=None, ge=1, description="CPU cores for each replica. Default: the machine's, shared out."
    )
    kv_cache_memory: Memory | None = Field(
        default=None,
        description="Memory for each replica's KV cache: 512MiB, or bytes. Default: what the machine allows.",
    )


class KVTransferSection(Section):
    """How KV cache moves from prefill to decode. Fields that NixlConnector knows keep its names."""

    backend: Backend = Field(default="auto", description="NIXL's backend; `auto` takes vLLM's default, UCX.")
    lease_s: int = Field(
        default=120,
        ge=10,
        le=3600,
        description="Seconds for which prefill keeps KV cache that nobody has fetched.",
    )
    kv_connector_extra_config: dict[Annotated[str, AfterValidator(_connector_field)], Any] = Field(
        default_factory=dict, description="Further settings of NixlConnector, passed through."
    )


class AccessSection(Section):
    """How clients reach the endpoint. On this machine it listens on 127.0.0.1."""

    port: int | None = Field(
        default=None,
        ge=1,
        le=65535,
        description="TCP port, exactly this one. Default: 8000, or the next one that is free.",
    )
    api_key_file: Annotated[Path, Field(strict=False), AfterValidator(_key_file)] | None = Field(
        default=None, description="File whose content is the key of the endpoint. Default: a key is made."
    )


def _model_shorthand(value: object) -> object:
    return {"source": value} if isinstance(value, str) else value


class Document(Section):
    """What to serve and where. `Document()` serves the embedded model, split, on this machine.

    With `topology: aggregated` one engine does both phases: `decode` describes it and `prefill` is not used,
    so that the same document serves a comparison.
    """

    version: Literal[1] = Field(default=1, description="Version of this format.")
    name: Annotated[str, AfterValidator(_dns_label)] = Field(
        default="diptych", description="Name of the service."
    )
    on: Annotated[Place, AfterValidator(_served_place)] = Field(
        default="local", description="Where to serve."
    )
    model: Annotated[ModelSection, BeforeValidator(_model_shorthand)] = Field(
        default_factory=ModelSection, description="The model; a plain word is its source."
    )
    topology: Topology = Field(
        default="split", description="`split`: prefill and decode apart. `aggregated`: one engine does both."
    )
    engine_kwargs: EngineKwargs = Field(
        default_factory=dict, description="Arguments of vLLM under their own names, for both phases."
    )
    prefill: PhaseSection = Field(default_factory=PhaseSection, description="The phase that reads prompts.")
    decode: PhaseSection = Field(default_factory=PhaseSection, description="The phase that writes answers.")
    kv_transfer: KVTransferSection = Field(
        default_factory=KVTransferSection, description="How KV cache moves from prefill to decode."
    )
    access: AccessSection = Field(
        default_factory=AccessSection, description="How clients reach the endpoint."
    )

    def engine_kwargs_for(self, phase: Phase) -> dict[str, Any]:
        """The arguments of vLLM for `phase`: the shared ones, and over them its own (whole values)."""
        return {**self.engine_kwargs, **getattr(self, phase).engine_kwargs}


SHORTHANDS = {"model": "source"}
"""Sections that may be written as one plain word, and the field which that word stands for."""
