"""The document that an application and its cluster stand for."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from diptych.spec.convert.application import Engines, engines_of
from diptych.spec.convert.cluster import Cluster, cluster_of
from diptych.spec.convert.environment import leave_variables
from diptych.spec.convert.instances import eks_nodes, labelled_type
from diptych.spec.convert.manifests import Application, choose
from diptych.spec.convert.parts import ConversionError, Part, Reason, Remark
from diptych.spec.convert.secrets import without_secrets
from diptych.spec.convert.serving import serving
from diptych.spec.convert.values import drop, hoisted, pruned
from diptych.spec.document import VERSION, Document
from diptych.spec.explain import explain, path_of
from diptych.spec.fields import Phase, Place
from diptych.spec.problems import dotted

_DEFAULT_NAME = "diptych"
_RENDERED = "Diptych renders it itself"
_BY_DIPTYCH: Reason = ("Diptych sets it itself", "")
_ORCHESTRATOR, _TRANSPORT = "orchestrator", "transport"


def document_from(
    objects: Sequence[Any],
    *,
    app: str | None = None,
    on: Place = "kubernetes",
    model: str | None = None,
    instance_type: str | None = None,
    name: str | None = None,
    file: str = "the manifest",
) -> tuple[dict[str, Any], list[Remark]]:
    """The document that stands for what `objects` serve, and a remark for each thing that is not in it.

    Args:
        objects: plain values, as `manifests.read` gives them.
        app: which application or model, if there are several.
        on: the place of the document.
        model, instance_type, name: take the place of what the manifest says.
        file: what the manifest is called in errors.

    Raises:
        ConversionError: there is nothing to convert, or nothing to choose by, or no model that can be served.
    """
    application, remarks = choose(objects, app, file)
    engines = _engines(application, app, remarks)
    cluster = _cluster(application, engines, remarks)
    if application.is_own:
        remarks = [replace(each, why=_RENDERED, do="") for each in remarks]
    values: dict[str, Any] = {
        "version": VERSION,
        "name": name or _name(application),
        "on": on,
        **serving(engines, remarks),
    }
    values["model"] |= _staged(cluster) | ({"source": model} if model else {})
    values["orchestrator"] = _own_argument(application, _ORCHESTRATOR)
    transport = _own_argument(application, _TRANSPORT)
    if isinstance(transport, dict) and transport.get("allow_fallback") is True:
        values["kv_transfer"] = {**(values.get("kv_transfer") or {}), "allow_fallback": True}
    if on == "local":
        if cluster is not None:
            remarks.append(Remark("rayClusterConfig", "there are no pods on this machine"))
    else:
        values |= _image(values, application, cluster, remarks)
        place = _eks if on == "eks" else _kubernetes
        place(values, engines, cluster, instance_type, remarks)
    return _valid(without_secrets(values, remarks), remarks), remarks


def _engines(application: Application, app: str | None, remarks: list[Remark]) -> Engines:
    Part(application.serve, "serve config: ", remarks).close(_BY_DIPTYCH)
    part = Part(application.values, "", remarks)
    for name in ("name", "import_path"):
        part.take(name)
    if part.take("route_prefix") not in (None, "/"):
        part.remark("route_prefix", ("Diptych serves at /", "change what clients call"))
    part.leave(
        "deployments", ("settings of single deployments are not read", "set them in prefill and decode")
    )
    leave_variables(part.part("runtime_env"))
    arguments = part.part("args", "")
    if application.is_own:
        arguments.take(_ORCHESTRATOR)
        arguments.take(_TRANSPORT)
    engines = engines_of(arguments, app)
    part.close()
    return engines


def _own_argument(application: Application, name: str) -> Any:
    """An argument that only our own applications have; `orchestrator` is as the document has it."""
    arguments = application.values.get("args")
    return arguments.get(name) if application.is_own and isinstance(arguments, dict) else None


def _cluster(application: Application, engines: Engines, remarks: list[Remark]) -> Cluster | None:
    if not application.service:
        return None
    service = Part(application.service, "", remarks)
    for name in ("apiVersion", "kind", "status", "metadata"):
        service.take(name)
    metadata = Part(application.metadata, "metadata", remarks)
    metadata.leave_all(dict.fromkeys(("labels", "annotations"), ("Diptych has its own", "")))
    spec = service.part("spec")
    spec.take("serveConfigV2")
    service.close()
    return cluster_of(spec, engines)


def _staged(cluster: Cluster | None) -> dict[str, Any]:
    """The model that Diptych's own pods fetch; its `model_source` is a folder in them."""
    pods = cluster.workers.values() if cluster else ()
    staged = next((pod.staged for pod in pods if pod.staged), None)
    return {"source": staged[0], "revision": staged[1]} if staged else {}


def _name(application: Application) -> str:
    return str(application.metadata.get("name") or application.values.get("name") or _DEFAULT_NAME)


def _image(
    values: Mapping[str, Any], application: Application, cluster: Cluster | None, remarks: list[Remark]
) -> dict[str, Any]:
    """What holds in any cluster: image, token, namespace, the head pod."""
    namespace = application.metadata.get("namespace")
    if application.service and namespace is None:
        remarks.append(
            Remark("metadata.namespace", "it is missing", "set kubernetes.namespace; default: diptych")
        )
    if cluster is None:
        return {"kubernetes": {}}
    return {
        "model": {**values["model"], "token_secret": cluster.token_secret},
        "image": cluster.image,
        "kubernetes": {"namespace": namespace, **cluster.kubernetes},
    }


def _kubernetes(
    values: dict[str, Any],
    engines: Engines,
    cluster: Cluster | None,
    instance_type: str | None,
    remarks: list[Remark],
) -> None:
    pods = {} if cluster is None else cluster.workers
    nodes: dict[Phase, dict[str, Any]] = {phase: {"instance_type": instance_type} for phase in engines}
    for phase, pod in pods.items():
        label, known = labelled_type(pod)
        if known and not instance_type:  # the same label is asked of the nodes, and more is known about them
            nodes[phase]["instance_type"] = known
        selector = {name: value for name, value in pod.selector.items() if not known or name != label}
        nodes[phase] |= {"selector": selector, "tolerations": pod.tolerations}
        values[phase]["resources"] = pod.resources
    _set_nodes(values, nodes)
    for phase, engine in engines.items():
        if engine.accelerator:
            labelled = phase in pods and pods[phase].selector
            why = f"it is {engine.accelerator}, and the labels of the nodes say which GPU they have"
            do = "" if labelled else "set nodes.selector to the labels of such nodes"
            remarks.append(Remark(f"{phase}: accelerator_type", why, do))


def _eks(
    values: dict[str, Any],
    engines: Engines,
    cluster: Cluster | None,
    instance_type: str | None,
    remarks: list[Remark],
) -> None:
    pods = {} if cluster is None else cluster.workers
    nodes, resources, values["eks"] = eks_nodes(engines, pods, instance_type, remarks)
    _set_nodes(values, nodes)
    for phase in engines:
        values[phase]["resources"] = resources[phase]
    if values["kubernetes"].pop("head_selector", None):
        remarks.append(Remark("head: nodeSelector", "Diptych's head runs on the system nodes that it makes"))


def _set_nodes(values: dict[str, Any], nodes: Mapping[Phase, dict[str, Any]]) -> None:
    values["nodes"], own = hoisted(nodes)
    for phase, rest in own.items():
        values[phase]["nodes"] = rest


def _valid(values: dict[str, Any], remarks: list[Remark]) -> dict[str, Any]:
    """`values` without what no document can hold, each with a remark.

    Raises:
        ConversionError: the model is what can't be served.
    """
    while True:
        values = pruned(values)
        try:
            Document.model_validate(values)
        except ValidationError as error:
            for detail in error.errors(include_url=False):
                path, (what, do) = path_of(detail), explain(detail)
                dropped = path != ("model", "source") and drop(values, path)
                if not dropped:
                    message = f"The manifest's {dotted(path)} {what}."
                    raise ConversionError(message, "Give a model that can be served: --model.") from None
                remarks.append(Remark(dotted(path), f"it {what}", do))
        else:
            return values
