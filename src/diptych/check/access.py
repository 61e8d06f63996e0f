"""A7xx: who may reach the endpoint, and how secrets get to where they are used."""

import stat
from collections.abc import Iterable
from pathlib import Path

from diptych.catalog.nodes import is_system_folder
from diptych.check.findings import Complaint
from diptych.check.rules import rule
from diptych.check.subject import Subject
from diptych.render.ingress import has_haproxy
from diptych.render.names import has_token
from diptych.render.staging import is_staged
from diptych.spec import EMBEDDED, is_bucket, is_path
from diptych.spec.secrets import looks_secret, masked, names_secret

_FREE_MAPPINGS = (
    "engine_kwargs.",
    "prefill.engine_kwargs.",
    "decode.engine_kwargs.",
    "kv_transfer.kv_connector_extra_",
)

_SYSTEM_FILES = ("/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/proc", "/sbin", "/sys", "/usr")

MANY_ENGINES = 8
"""So many that fetch from the hub at once are often told to wait, unless they name a token."""


@rule("A701", "error", "A secret in the document")
def no_secrets_inline(subject: Subject) -> Iterable[Complaint]:
    for field, value in _texts(subject.document.model_dump(mode="json"), ""):
        last = field.rpartition(".")[2]
        named = names_secret(last) and field.startswith(_FREE_MAPPINGS)
        if named or looks_secret(value) or looks_secret(last):
            yield Complaint(
                masked(field),
                "holds a secret, which ends up in version control, in logs and in the cluster's objects",
                "remove it from here and from the file's history, and refer to it: model.token_file, "
                "model.token_env or model.token_secret",
            )


@rule("A702", "error", "An endpoint without TLS")
def exposed_means_tls(subject: Subject) -> Iterable[Complaint]:
    access = subject.document.access
    if subject.is_local:
        return
    if access.expose == "gateway" and access.tls_secret is None:
        yield Complaint(
            "access.expose",
            "is gateway, and access.tls_secret is not set: keys and answers would cross the network in the clear",
            "set access.tls_secret to a secret of type kubernetes.io/tls",
        )
    if access.expose == "internal-lb" and access.tls_certificate_arn is None:
        yield Complaint(
            "access.expose",
            "is internal-lb, and access.tls_certificate_arn is not set: keys and answers would cross the network "
            "in the clear",
            "set access.tls_certificate_arn to a certificate in AWS Certificate Manager",
        )


@rule("A722", "error", "A certificate of another region")
def certificate_is_in_region(subject: Subject) -> Iterable[Complaint]:
    arn, region = subject.document.access.tls_certificate_arn, subject.document.eks.region
    parts = arn.split(":") if arn else []
    if subject.document.on == "eks" and len(parts) > 3 and parts[3] != region:
        yield Complaint(
            "access.tls_certificate_arn",
            f"names a certificate in {parts[3]}, and eks.region is {region}: a load balancer takes those of its own "
            "region only",
            f"make one in {region}, or correct eks.region",
        )


@rule("A703", "error", "A load balancer of AWS elsewhere")
def load_balancer_is_on_eks(subject: Subject) -> Iterable[Complaint]:
    if subject.document.on == "kubernetes" and subject.document.access.expose == "internal-lb":
        yield Complaint(
            "access.expose",
            "is internal-lb, which is a load balancer of AWS, and on is kubernetes",
            "use gateway, or none with a port-forward",
        )


@rule("A704", "error", "A gateway of no class")
def gateway_has_a_class(subject: Subject) -> Iterable[Complaint]:
    access = subject.document.access
    if not subject.is_local and access.expose == "gateway" and access.gateway_class is None:
        yield Complaint(
            "access.expose",
            "is gateway, and access.gateway_class is not set: no controller would take it",
            "set access.gateway_class to one of `kubectl get gatewayclass`",
        )


@rule("A705", "error", "A Kubernetes secret on this machine")
def no_cluster_secrets_here(subject: Subject) -> Iterable[Complaint]:
    document = subject.document
    for field, value, instead in (
        ("access.api_key_secret", document.access.api_key_secret, "access.api_key_file"),
        ("model.token_secret", document.model.token_secret, "model.token_file"),
    ):
        if subject.is_local and value is not None:
            yield Complaint(field, f"is {value}, a Kubernetes secret, and on is local", f"use {instead}")


@rule("A706", "error", "The embedded model on a cluster")
def embedded_is_local(subject: Subject) -> Iterable[Complaint]:
    if not subject.is_local and subject.document.model.source == EMBEDDED:
        yield Complaint(
            "model.source" if subject.is_written("model") else "on",
            f"the model is embedded, which exists on this machine only, and on is {subject.document.on}",
            "name one of the hub, for example HuggingFaceTB/SmolLM2-135M-Instruct",
        )


@rule("A707", "error", "A bucket on this machine")
def buckets_are_for_clusters(subject: Subject) -> Iterable[Complaint]:
    source = subject.document.model.source
    if subject.is_local and is_bucket(source):
        yield Complaint(
            "model.source",
            f"is {source}, and on is local, where models come from the hub or a folder",
            "copy it here (`aws s3 sync`), and give the folder",
        )


@rule("A708", "warning", "A folder on the nodes")
def folder_is_on_nodes(subject: Subject) -> Iterable[Complaint]:
    source = subject.document.model.source
    if not subject.is_local and is_path(source):
        yield Complaint(
            "model.source",
            f"is the folder {source}, which must be in the image or on every node: it is not copied from this machine",
            "give a Hugging Face id or an s3:// bucket, unless the image has it",
        )


@rule("A710", "warning", "A reference to what is not here")
def references_are_here(subject: Subject) -> Iterable[Complaint]:
    document = subject.document
    for field, file in _files(subject):
        if subject.facts.files.get(file, 0) is None:
            yield Complaint(
                field,
                f"is {file}, and there is no such file here",
                "make it before `up`, or correct the path",
            )
    variables = (
        ("model.token_env", document.model.token_env),
        ("access.api_key_env", document.access.api_key_env),
    )
    for field, variable in variables:
        if variable is not None and not subject.facts.environ.get(variable):
            yield Complaint(
                field, f"is {variable}, and that variable is not set here", "set it where `up` is run"
            )


@rule("A711", "error", "A key file that others can read")
def key_file_is_private(subject: Subject) -> Iterable[Complaint]:
    for field, file in _files(subject):
        mode = subject.facts.files.get(file) or 0
        if not mode & 0o077 or _is_no_key_file(mode):
            continue
        of_system = any(file.is_relative_to(folder) for folder in _SYSTEM_FILES)
        if file in subject.facts.foreign or of_system:
            owner = "which is the system's own" if of_system else "which belongs to another user"
            what = f"is {file}, {owner} and which others can read"
            yield Complaint(field, what, "name a file of your own that only you can read (chmod 600)")
        else:
            what = f"is {file}, which other users of this machine can read"
            yield Complaint(field, what, f"run chmod 600 {file}")


@rule("A721", "error", "A reference to what is no file")
def key_file_is_a_file(subject: Subject) -> Iterable[Complaint]:
    for field, file in _files(subject):
        mode = subject.facts.files.get(file) or 0
        if _is_no_key_file(mode):
            kind = "a folder" if stat.S_ISDIR(mode) else "a device"
            yield Complaint(
                field, f"is {file}, which is {kind} and no file with a key", "name the file itself"
            )


@rule("A732", "error", "A line of keys that lets nobody in")
def keys_are_well_formed(subject: Subject) -> Iterable[Complaint]:
    lines = subject.facts.faulty_keys
    if not lines:
        return
    file = subject.document.access.api_key_file
    field = "access.api_key_file" if file is not None else "access.api_key_env"
    named = f"line {lines[0]}" if len(lines) == 1 else f"lines {', '.join(map(str, lines))}"
    yield Complaint(
        field,
        f"is {file or subject.document.access.api_key_env}, which has more than keys on {named}",
        "write one key per line; behind it may stand admin, priority=N or both",
    )


@rule("A733", "error", "A cluster that asks for no key")
def clusters_ask_for_keys(subject: Subject) -> Iterable[Complaint]:
    if not subject.is_local and subject.document.access.api_keys == "none":
        yield Complaint(
            "access.api_keys",
            f"is none, and on is {subject.document.on}: whoever reaches the pods could use the endpoint",
            "remove it: an endpoint without keys is for this machine alone",
        )


@rule("A734", "error", "HAProxy that Ray does not bring")
def ray_brings_haproxy(subject: Subject) -> Iterable[Complaint]:
    ray = subject.engine.ray
    if subject.is_local or subject.document.access.ingress != "haproxy" or ray is None:
        return
    if not has_haproxy(ray):
        yield Complaint(
            "access.ingress",
            f"is haproxy, and Ray {ray} of {subject.engine.source} does not bring it",
            "remove it, or use an image with Ray 2.58 or newer",
        )


@rule("A714", "error", "A folder that is the node's own")
def staging_is_apart(subject: Subject) -> Iterable[Complaint]:
    path = subject.document.staging.path
    if subject.is_local or path is None:
        return
    if is_system_folder(path):
        yield Complaint(
            "staging.path",
            f"is {path}, which belongs to the node's system: pods would read or overwrite what is not theirs",
            "use a folder of its own, like /var/lib/diptych, or remove it",
        )


@rule("A712", "warning", "Access without its switch")
def access_is_exposed(subject: Subject) -> Iterable[Complaint]:
    access = subject.document.access
    if subject.is_local:
        return
    needs = {
        "access.hostname": (access.hostname, ("gateway", "internal-lb")),
        "access.tls_secret": (access.tls_secret, ("gateway",)),
        "access.gateway_class": (access.gateway_class, ("gateway",)),
        "access.tls_certificate_arn": (access.tls_certificate_arn, ("internal-lb",)),
    }
    for field, (value, ways) in needs.items():
        if value is not None and access.expose not in ways:
            what = f"is set, and access.expose is {access.expose}: it has no effect"
            yield Complaint(field, what, f"set access.expose: {' or '.join(ways)}, or remove it")


@rule("A713", "warning", "A cluster that everybody can reach")
def api_is_not_open(subject: Subject) -> Iterable[Complaint]:
    for index, cidr in enumerate(subject.document.eks.public_access_cidrs):
        if subject.document.on == "eks" and cidr.endswith("/0"):
            yield Complaint(
                f"eks.public_access_cidrs.{index}",
                f"is {cidr}: the whole internet may try the cluster's API",
                "name the addresses that need it, or remove it: `up` then takes the one that it runs from",
            )


def _is_no_key_file(mode: int) -> bool:
    """Whether what is there is nothing to read a key from: a folder, a device."""
    return stat.S_ISDIR(mode) or stat.S_ISCHR(mode) or stat.S_ISBLK(mode)


@rule("A715", "warning", "Many engines that fetch without a token")
def hub_serves_many(subject: Subject) -> Iterable[Complaint]:
    document = subject.document
    if subject.is_local or not document.model.is_on_hub or is_staged(document) or has_token(document):
        return
    engines = sum(view.section.most_replicas for view in subject.phases)
    if engines >= MANY_ENGINES:
        yield Complaint(
            "staging.enabled",
            f"is false, and up to {engines} engines fetch the model from the hub without a token, which may tell them "
            "to wait (HTTP 429)",
            "remove it: nodes then keep the model; or name a token (model.token_secret)",
        )


@rule("A731", "warning", "A bucket that pods may not read")
def bucket_can_be_read(subject: Subject) -> Iterable[Complaint]:
    document = subject.document
    if document.on != "kubernetes" or not is_bucket(document.model.source):
        return
    if not document.kubernetes.service_account_annotations:
        yield Complaint(
            "model.source",
            f"is {document.model.source}, and nothing gives the pods the right to read it: a node's own role is out of "
            "their reach",
            "set kubernetes.service_account_annotations, for example eks.amazonaws.com/role-arn: "
            "arn:aws:iam::ACCOUNT:role/NAME",
        )


def _files(subject: Subject) -> Iterable[tuple[str, Path]]:
    document = subject.document
    files = {
        "model.token_file": document.model.token_file,
        "access.api_key_file": document.access.api_key_file,
    }
    return ((field, file) for field, file in files.items() if file is not None)


def _texts(values: object, field: str) -> Iterable[tuple[str, str]]:
    """Every text in nested mappings and lists, with its dotted path."""
    if isinstance(values, dict):
        for key, value in values.items():
            yield from _texts(value, f"{field}.{key}".lstrip("."))
    elif isinstance(values, list):
        for index, value in enumerate(values):
            yield from _texts(value, f"{field}.{index}")
    elif isinstance(values, str):
        yield field, values
