"""Everything that a document stands for, as files: one table says what there is, in the order in which it is needed."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from diptych.errors import DocumentError
from diptych.render import eksctl, helm, monitoring, names, policies
from diptych.render.dockerfile import dockerfile
from diptych.render.engine import MOST_TOKENS, engine_settings
from diptych.render.exposure import exposure_objects
from diptych.render.inputs import Facts
from diptych.render.layout import group_name
from diptych.render.rayservice import rayservice_objects
from diptych.render.serve import PhasePlace, Place, cluster_serve_config, serve_config
from diptych.render.staging import is_fixed, is_staged, revision
from diptych.render.write import header, manifest, to_yaml
from diptych.spec import Document

Render = Callable[[Document, Facts], str | None]
"""A file's text; None where this document needs no such file."""

EVERYWHERE = frozenset({"local", "kubernetes", "eks"})
CLUSTERS = frozenset({"kubernetes", "eks"})
EKS = frozenset({"eks"})


@dataclass(frozen=True)
class Kind:
    """One kind of file.

    Args:
        name: as `diptych render --what` takes it.
        file: its name.
        places: the places (`on`) that may need it.
    """

    name: str
    file: str
    places: frozenset[str]
    render: Render


def render(document: Document, facts: Facts) -> dict[str, str]:
    """Every file that this document needs: name and text, in the order in which they are needed.

    Raises:
        DocumentError: the document cannot be served where it says.
        ValueError: `facts.serving_archive` is empty, and the place is a cluster.
    """
    texts = ((kind.file, _text(kind, document, facts)) for kind in KINDS)
    return {file: text for file, text in texts if text is not None}


def render_one(document: Document, facts: Facts, what: str) -> str:
    """The file of one kind, by its name.

    Raises:
        DocumentError: there is no such kind, or this document needs no such file; and as `render`.
        ValueError: as `render`.
    """
    kind = next((each for each in KINDS if each.name == what), None)
    if kind is None:
        known = ", ".join(each.name for each in KINDS)
        raise DocumentError(f"Nothing that is rendered is called {what!r}.", f"Choose one of {known}.")
    text = _text(kind, document, facts)
    if text is None:
        raise DocumentError(
            f"This document needs no {kind.file}.", "Render everything to see what it stands for."
        )
    return text


def _text(kind: Kind, document: Document, facts: Facts) -> str | None:
    return kind.render(document, facts) if document.on in kind.places else None


def _objects(purpose: str, build: Callable[[Document, Facts], Iterable[Mapping[str, Any]]]) -> Render:
    """A file with Kubernetes objects, if there are any."""

    def text(document: Document, facts: Facts) -> str | None:
        objects = list(build(document, facts))
        return manifest(facts.source, purpose, objects) if objects else None

    return text


def _values(purpose: str, build: Callable[[Document, Facts], Mapping[str, Any] | None]) -> Render:
    """A file with one mapping, if there is one."""

    def text(document: Document, facts: Facts) -> str | None:
        content = build(document, facts)
        return None if content is None else header(facts.source, purpose) + to_yaml(dict(content))

    return text


def _cluster(document: Document, facts: Facts) -> str:
    purpose = "The EKS cluster and its nodes: eksctl create cluster -f cluster.yaml"
    about = "\n".join([purpose, *eksctl.notes(document, facts)])
    return header(facts.source, about) + to_yaml(eksctl.cluster_config(document, facts))


def _namespace(document: Document, _: Facts) -> list[dict[str, Any]]:
    # It may hold several services, so it has no labels of this one.
    about = {
        "name": document.kubernetes.namespace,
        "labels": {"app.kubernetes.io/managed-by": "diptych"},
    }
    return [{"apiVersion": "v1", "kind": "Namespace", "metadata": about}]


def _rayservice(document: Document, facts: Facts) -> str:
    name, key = names.api_keys_secret(document)
    needs = [f"the secret {name} with the endpoint's API keys, one per line, under {key}"]
    if names.has_token(document):
        name, key = names.token_secret(document)
        needs.append(f"the secret {name} with the Hugging Face token under {key}")
    purpose = (
        "The service, for KubeRay 1.7: kubectl apply --server-side -f rayservice.yaml\n"
        f"It refers to {' and '.join(needs)}: make it first, kubectl create secret generic NAME --from-file=KEY=FILE"
        f"{_unknown_model(document, facts)}"
    )
    if is_staged(document) and not is_fixed(document, facts):
        named = revision(document, facts) or "the hub's main branch"
        purpose += (
            f"\nA node fetches what {named} is when it joins, which may move: for the same weights on all nodes set\n"
            "model.revision to a commit's 40 digits, and render again."
        )
    return manifest(facts.source, purpose, rayservice_objects(document, facts))


def _serve(document: Document, facts: Facts) -> str:
    if document.on != "local":
        purpose = "\n".join(
            [
                f"Ray Serve's configuration, as it stands in rayservice.yaml{_unknown_model(document, facts)}",
                *_chosen(document, facts),
            ]
        )
        return header(facts.source, purpose) + to_yaml(cluster_serve_config(document, facts))
    purpose = (
        "Ray Serve's configuration.\n"
        "`diptych up` adds what only the machine can tell: the model's folder, each replica's cores and KV cache,\n"
        "free ports, and a file with an API key where the document names none."
    )
    return header(facts.source, purpose) + to_yaml(serve_config(document, _this_machine(document, facts)))


def _unknown_model(document: Document, facts: Facts) -> str:
    """A line for the header where nothing could be chosen for the model's kind."""
    if facts.shape is not None:
        return ""
    return (
        f"\nThe config of {document.model.source} was not at hand: what hybrid models and large checkpoints need is "
        "missing here."
    )


def _chosen(document: Document, facts: Facts) -> list[str]:
    """What Diptych sets for the engines where the document doesn't, with the reason."""
    reasons = {
        name: why
        for phase in document.phases
        for name, why in engine_settings(document, phase, facts).reasons.items()
    }
    return ["Set where the document says nothing:", *(f"  {name}: {why}" for name, why in reasons.items())]


def _this_machine(document: Document, facts: Facts) -> Place:
    """A machine of which nothing is known but what the document says."""
    ports = document.kv_transfer.ports
    phases = {
        group_name(document, phase): PhasePlace(
            kv_cache_bytes=section.kv_cache_memory, side_channel_port=getattr(ports, phase)
        )
        for phase, section in document.phases.items()
    }
    defaults = {"max_model_len": min(facts.shape.context_length, MOST_TOKENS)} if facts.shape else {}
    keys = document.access.api_key_file
    return Place(
        model_path=document.model.source,
        model_name=document.model.name,
        host="127.0.0.1",
        phases=phases,
        api_key_file=str(keys) if keys else None,
        engine_defaults=defaults,
    )


def _policies(document: Document, _: Facts) -> list[dict[str, Any]]:
    return [*policies.network_policies(document), *policies.disruption_budgets(document)]


def _monitoring(document: Document, _: Facts) -> list[dict[str, Any]]:
    if not document.monitoring:
        return []
    return [
        *monitoring.pod_monitors(document),
        monitoring.alert_rules(document),
        monitoring.dashboard(document),
    ]


KINDS = (
    Kind("eksctl", "cluster.yaml", EKS, _cluster),
    Kind(
        "efa-security-group",
        "efa-security-group.yaml",
        EKS,
        _values(
            "CloudFormation: a security group that lets the GPU nodes' EFA reach each other",
            lambda document, _: eksctl.efa_security_group(document),
        ),
    ),
    Kind(
        "efa-plugin-values",
        "efa-plugin-values.yaml",
        EKS,
        _values(
            "Helm values for eks/aws-efa-k8s-device-plugin, on instance types that eksctl's own leaves out",
            lambda document, _: helm.efa_plugin_values(document),
        ),
    ),
    Kind(
        "namespace",
        "namespace.yaml",
        CLUSTERS,
        _objects("The namespace; KubeRay's chart needs it to be there", _namespace),
    ),
    Kind(
        "kuberay-values",
        "kuberay-values.yaml",
        CLUSTERS,
        _values(
            "Helm values for kuberay/kuberay-operator", lambda document, _: helm.kuberay_values(document)
        ),
    ),
    Kind(
        "policies",
        "policies.yaml",
        CLUSTERS,
        _objects("Who may talk to the pods, and how many may be evicted at a time", _policies),
    ),
    Kind(
        "dockerfile",
        "Dockerfile",
        CLUSTERS,
        lambda document, facts: dockerfile(document, facts.source),
    ),
    Kind("rayservice", "rayservice.yaml", CLUSTERS, _rayservice),
    Kind("serve", "serve-config.yaml", EVERYWHERE, _serve),
    Kind(
        "exposure",
        "exposure.yaml",
        CLUSTERS,
        _objects(
            "The way to the endpoint from outside the cluster",
            lambda document, _: exposure_objects(document),
        ),
    ),
    Kind(
        "monitoring",
        "monitoring.yaml",
        CLUSTERS,
        _objects("For the Prometheus operator, and a board for Grafana's sidecar", _monitoring),
    ),
)
"""All that is rendered, in the order in which it is needed."""
