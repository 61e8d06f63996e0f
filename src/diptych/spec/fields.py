"""What the values of the document's fields may be: words, names, sizes, paths and references, each checked once."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
)
from pydantic_core import CoreSchema, core_schema

from diptych.spec.problems import nearest, refusal, shown
from diptych.spec.sizes import format_size, parse_size

EMBEDDED = "embedded"
EMBEDDED_NAME = "smollm2-135m-instruct"
MIN_MEMORY_BYTES = 1024**2

Phase = Literal["prefill", "decode"]
Place = Literal["local", "kubernetes", "eks"]
Topology = Literal["split", "aggregated"]
Backend = Literal["auto", "UCX", "LIBFABRIC"]
Market = Literal["on-demand", "spot", "capacity-block"]
TaintEffect = Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]
Expose = Literal["none", "internal-lb", "gateway"]
Ingress = Literal["auto", "haproxy", "proxy"]

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

_DNS_LABEL = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?", re.ASCII)
_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?", re.ASCII)
_S3 = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[\w.!*'()/-]*)?", re.ASCII)
_ARGUMENT = re.compile(r"[a-z][a-z0-9_]*", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_SECRET = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?(/(?!\.$|\.\.)[\w.-]+)?", re.ASCII)


class Section(BaseModel):
    """What all parts of the document share: no unknown fields, no silent conversion, no change once made."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def is_path(source: str) -> bool:
    """Whether a model's source is a folder (it begins with /, ./, ../ or ~), not a Hugging Face id or a bucket."""
    return source in (".", "..") or source.startswith(("/", "./", "../", "~"))


def is_bucket(source: str) -> bool:
    """Whether a model's source lies in S3 (`s3://bucket/folder`)."""
    return source.startswith("s3://")


def _dns_label(name: str) -> str:
    if len(name) > 40 or not _DNS_LABEL.fullmatch(name):
        do = "use at most 40 small letters, digits and '-', a letter first and no '-' last"
        raise refusal(f"is {shown(name)}, which can't name a service", do)
    return name


def _namespace(name: str) -> str:
    if len(name) > 63 or not _DNS_LABEL.fullmatch(name):
        do = "use at most 63 small letters, digits and '-', a letter first and no '-' last"
        raise refusal(f"is {shown(name)}, which can't name a namespace", do)
    return name


def _model_source(source: str) -> str:
    if (is_path(source) and "\0" not in source) or _S3.fullmatch(source):
        return source
    if len(source) > 200 or not _HUB_ID.fullmatch(source):
        do = "give one of these; a path begins with /, ./, ../ or ~, a bucket with s3://"
        raise refusal(
            f"is {shown(source)}: not `embedded`, no Hugging Face id (owner/name), path or bucket", do
        )
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
    if amount < MIN_MEMORY_BYTES:
        raise refusal(f"is {shown(size)}, less than {format_size(MIN_MEMORY_BYTES)}", do)
    return amount


def _file(file: Path) -> Path:
    if str(file) == "." or "\0" in str(file):
        raise refusal(f"is {shown(str(file))}, which names no file", "write the path of a file")
    return file


def _variable(name: str) -> str:
    if not _VARIABLE.fullmatch(name):
        do = "write the variable's name, like HF_TOKEN; its value never stands in a document"
        raise refusal("is not the name of a variable", do)
    return name


def _secret(name: str) -> str:
    if len(name) > 253 or not _SECRET.fullmatch(name):
        raise refusal(f"is {shown(name)}, which can't name a secret", "write NAME or NAME/KEY")
    return name


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


@dataclass(frozen=True)
class Word:
    """A text that must match `pattern` (ASCII, as a whole); otherwise it is no `what`, and `do` says what to write."""

    pattern: str
    what: str
    do: str
    longest: int = 512

    def check(self, value: str) -> str:
        if len(value) > self.longest or not re.fullmatch(self.pattern, value, re.ASCII):
            raise refusal(f"is {shown(value)}, which is no {self.what}", self.do)
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {**handler(schema), "pattern": f"^({self.pattern})$", "maxLength": self.longest}


def without_default(schema: dict[str, Any]) -> None:
    """For `json_schema_extra`: a default that is worked out is not a default to write down."""
    del schema["default"]


def _in_schema(pattern: re.Pattern[str], longest: int | None = None) -> Any:
    length = {} if longest is None else {"maxLength": longest}
    return Field(json_schema_extra={"pattern": f"^({pattern.pattern})$", **length})


ServiceName = Annotated[str, AfterValidator(_dns_label), _in_schema(_DNS_LABEL, 40)]
Namespace = Annotated[str, AfterValidator(_namespace), _in_schema(_DNS_LABEL, 63)]
ModelSource = Annotated[str, AfterValidator(_model_source)]
EngineKwargs = dict[Annotated[str, AfterValidator(_engine_argument)], Any]
ConnectorConfig = dict[Annotated[str, AfterValidator(_connector_field)], Any]
_SIZE = r"^\s*\d+(\.\d+)?\s*([KkMmGgTt](i[Bb]?|[Bb])|[Bb])?\s*$"
_WrittenMemory = Annotated[int, Field(ge=MIN_MEMORY_BYTES)] | Annotated[str, Field(pattern=_SIZE)]
Memory = Annotated[int, BeforeValidator(_memory, json_schema_input_type=_WrittenMemory)]
File = Annotated[Path, Field(strict=False), AfterValidator(_file)]
Variable = Annotated[str, AfterValidator(_variable), _in_schema(_VARIABLE)]
Secret = Annotated[str, AfterValidator(_secret), _in_schema(_SECRET, 253)]
Revision = Annotated[
    str,
    Word(
        r"(?!.*\.\.)[A-Za-z0-9_][\w./-]*",
        "commit, branch or tag",
        "use letters, digits and . _ / -, at most 200, no . or - first and no ..",
        longest=200,
    ),
]
_REGION = r"[a-z]{2}(-[a-z]+)+-\d"
Region = Annotated[str, Word(_REGION, "AWS region", "write it like us-east-2")]
Zone = Annotated[str, Word(rf"{_REGION}[a-z]", "availability zone", "write it like us-east-2a")]
ZoneOrAuto = Annotated[
    str, Word(rf"auto|{_REGION}[a-z]", "availability zone", "write it like us-east-2a, or auto")
]
InstanceTypeName = Annotated[
    str, Word(r"[a-z][a-z0-9-]*\.[a-z0-9-]+", "EC2 instance type", "write it like g6.8xlarge")
]
Reservation = Annotated[
    str,
    Word(
        r"cr-[0-9a-f]{8,}|arn:aws[a-z-]*:resource-groups:.+",
        "capacity reservation",
        "write its id, like cr-0123456789abcdef0, or the ARN of a resource group",
    ),
]
Certificate = Annotated[
    str,
    Word(
        r"arn:aws[a-z-]*:acm:[a-z0-9-]+:\d{12}:certificate/[0-9a-f-]+",
        "certificate in AWS Certificate Manager",
        "write its ARN, like arn:aws:acm:REGION:ACCOUNT:certificate/ID",
    ),
]
_HOST_LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
HostName = Annotated[
    str, Word(rf"({_HOST_LABEL}\.)*{_HOST_LABEL}", "host name", "write it like llm.example.com", longest=253)
]
ImageName = Annotated[
    str, Word(r"[a-z0-9][\w.:/@-]*", "container image", "write it like registry.example.com/llm:1.0")
]
Version = Annotated[str, Word(r"\d+\.\d+\.\d+", "version", "write it like 1.7.0")]
KubernetesVersion = Annotated[str, Word(r"1\.\d\d", "Kubernetes version", 'write it like "1.35", in quotes')]
NodeFolder = Annotated[str, Word(r"/[\w./-]+", "folder on a node", "write an absolute path without spaces")]
Package = Annotated[
    str,
    Word(
        r"[A-Za-z0-9][\w.-]*(\[[\w,.-]+\])?\s*((===?|~=|!=|[<>]=?)\s*[\w.*+!-]+\s*,?\s*)*",
        "Python requirement",
        "write it like accelerate==1.10.0",
    ),
]
_BYTE = r"(25[0-5]|2[0-4]\d|1?\d?\d)"
Cidr = Annotated[
    str,
    Word(rf"({_BYTE}\.){{3}}{_BYTE}/(3[0-2]|[12]?\d)", "address range", "write it like 203.0.113.7/32"),
]
ObjectName = Annotated[
    str,
    Word(
        r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?",
        "name of a Kubernetes object",
        "use at most 253 small letters, digits, - and .",
        longest=253,
    ),
]
LabelKey = Annotated[
    str,
    Word(
        r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?",
        "key of a label",
        "use letters, digits and . _ -, at most 63, after a domain and / where there is one",
    ),
]
LabelValue = Annotated[
    str,
    Word(r"([A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?)?", "value of a label", "use letters, digits and . _ -"),
]
Labels = dict[LabelKey, LabelValue]
AnnotationValue = Annotated[
    str,
    Word(r"[^\x00-\x1f]*", "value of an annotation", "use one line of at most 2048 characters", longest=2048),
]
Annotations = dict[LabelKey, AnnotationValue]
TagKey = Annotated[
    str,
    Word(
        r"(?!aws:)[^\x00-\x1f]{1,128}",
        "key of a tag",
        "use at most 128 characters, and not aws: at the start",
    ),
]
TagValue = Annotated[str, Word(r"[^\x00-\x1f]{0,256}", "value of a tag", "use at most 256 characters")]
Port = Annotated[int, Field(ge=1, le=65535)]
