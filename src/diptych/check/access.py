"""A7xx: who may reach the endpoint, and how secrets get to where they are used."""

import posixpath
import re
from collections.abc import Iterable
from pathlib import Path

from diptych.check.findings import Complaint
from diptych.check.rules import rule
from diptych.check.subject import Subject
from diptych.spec import EMBEDDED, is_bucket, is_path

_SECRET_ARGUMENT = re.compile(r"(^|_)(token|api_key|password|secret|access_key)$")
_SECRET_VALUE = re.compile(
    r"(hf_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_-]{20,}|AKIA[0-9A-Z]{16}|dk-[A-Za-z0-9_-]{30,})"
)

_OF_THE_NODE = (
    *("/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/proc", "/root", "/run", "/sbin", "/sys", "/usr"),
    *("/var/lib/kubelet", "/var/lib/containerd", "/var/run", "/var/log"),
)


@rule("A701", "error", "A secret in the document")
def no_secrets_inline(subject: Subject) -> Iterable[Complaint]:
    document = subject.document
    places = [("engine_kwargs", document.engine_kwargs)]
    places += [(f"{view.name}.engine_kwargs", view.section.engine_kwargs) for view in subject.phases]
    places += [("kv_transfer.kv_connector_extra_config", document.kv_transfer.kv_connector_extra_config)]
    places += [("eks.tags", dict(document.eks.tags))]
    for field, values in places:
        for name, value in _texts(values, field):
            if _SECRET_ARGUMENT.search(name.rpartition(".")[2]) or _SECRET_VALUE.search(value):
                yield Complaint(
                    name,
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
        if (subject.facts.files.get(file) or 0) & 0o077:
            yield Complaint(
                field, f"is {file}, which other users of this machine can read", f"run chmod 600 {file}"
            )


@rule("A714", "error", "A folder that is the node's own")
def staging_is_apart(subject: Subject) -> Iterable[Complaint]:
    path = subject.document.staging.path
    if subject.is_local or path is None:
        return
    folder = posixpath.normpath(path)
    if folder == "/" or any(folder == own or folder.startswith(f"{own}/") for own in _OF_THE_NODE):
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
            yield from _texts(value, f"{field}.{key}")
    elif isinstance(values, list):
        for index, value in enumerate(values):
            yield from _texts(value, f"{field}.{index}")
    elif isinstance(values, str):
        yield field, values
