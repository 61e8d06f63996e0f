"""Short documents to start from, one for each place: what most people set, with the defaults in comments."""

from collections.abc import Mapping

from diptych.catalog.instances import DEFAULT_INSTANCE_TYPE, GIB, InstanceType, instance_type
from diptych.spec.fields import EMBEDDED, Place
from diptych.spec.scalars import written

DEFAULT_MODELS: Mapping[Place, str] = {
    "local": EMBEDDED,
    "kubernetes": "Qwen/Qwen3-0.6B",
    "eks": "Qwen/Qwen3-0.6B",
}
"""A model that is small enough to try a place out with."""


def starter(
    on: Place = "local",
    *,
    model: str | None = None,
    instance: str | None = None,
    name: str = "diptych",
    file: str = "diptych.yaml",
) -> str:
    """The text of a document for a place.

    Args:
        on: the place.
        model: the model's source; a small one without it.
        instance: EC2 instance type of the nodes, for eks and kubernetes.
        name: the service's name.
        file: how the document will be called, for the comment at its top.
    """
    type_name = instance or DEFAULT_INSTANCE_TYPE
    known = instance_type(type_name)
    node = {
        "instance_type": _column(f"  instance_type: {type_name}"),
        "has": _has(known) if known else "a type that this version of Diptych does not know",
        "costs": _costs(known) if known else "",
        "priced": "; prices differ from those of us-east-1" if known and known.usd_per_hour else "",
    }
    called = " ".join(file.split())
    return _TEMPLATES[on].format(
        file=called,
        then=f"up {called}` starts it" if on == "local" else "render` writes it all down",
        name=written(name),
        model=_column(f"model: {written(model or DEFAULT_MODELS[on])}"),
        nodes=_NODES_BY_TYPE.format(**node) if instance else _NODES,
        resources=_resources(known if instance else None),
        **node,
    )


def _column(text: str) -> str:
    return text.ljust(29)


def _has(instance: InstanceType) -> str:
    """What a node has: "1 × L4 with 22 GiB, EFA"."""
    gpu = (instance.accelerator_type or instance.gpu or "GPU").upper()
    words = f"{instance.gpus} × {gpu} with {instance.usable_gpu_memory_bytes / GIB:.0f} GiB"
    return words + (", EFA" if instance.has_efa else ", no EFA: TCP")


def _costs(instance: InstanceType) -> str:
    price = instance.usd_per_hour
    return f"; ${price:.2f}/h on demand in us-east-1" if price else ""


def _resources(instance: InstanceType | None) -> str:
    if instance is None:
        return "# resources: {gpus: 1, efa: 0, cpus: 8, memory: 64GiB}   # of each worker pod; default: these for a GPU"
    return "# resources: {memory: 64GiB}   # of each worker pod; default: all that its node can give"


_NODES = """\
  # selector: {role: gpu-worker}   # labels of the nodes to use; default: any that have the resources
  # tolerations: [{key: dedicated, operator: Exists}]   # default: the taints that GPU nodes commonly have"""
_NODES_BY_TYPE = """\
{instance_type}  # {has}
  # selector: {{role: gpu-worker}}   # further labels of the nodes to use"""

_HEAD = """\
# What to serve, and where. `diptych check {file}` finds what would fail, `diptych {then}.
# Every field has a default; docs/document.md describes them all.
version: 1
name: {name}
"""

_LOCAL = (
    _HEAD
    + """\
on: local                      # this machine; or kubernetes, eks
{model}  # a Hugging Face id (owner/name), a folder (./my-model), or embedded
topology: split                # or aggregated: one engine does both phases
engine_kwargs:                 # any argument of vLLM under its own name, for both phases
  # max_model_len: 4096        # default: the model's, 8192 at most
prefill:                       # reads prompts
  num_replicas: 1              # default: 1
decode:                        # writes answers
  num_replicas: 1              # default: 1
  # engine_kwargs: {{max_num_seqs: 8}}   # for this phase only
"""
)

_KUBERNETES = (
    _HEAD
    + """\
on: kubernetes                 # a cluster that exists, with GPU nodes
{model}  # a Hugging Face id (owner/name), or s3://bucket/folder
engine_kwargs:                 # any argument of vLLM under its own name, for both phases
  # max_model_len: 4096        # default: the model's, 8192 at most
nodes:                         # of both phases
{nodes}
prefill:                       # reads prompts
  num_replicas: 1              # default: 1
  {resources}
decode:                        # writes answers
  num_replicas: 1              # default: 1
  {resources}
kubernetes:
  # context: my-cluster        # of the kubeconfig; default: its current one
  namespace: diptych           # default: diptych
"""
)

_EKS = (
    _HEAD
    + """\
on: eks                        # a cluster of its own, which `diptych render` writes down for eksctl
{model}  # a Hugging Face id (owner/name), or s3://bucket/folder
engine_kwargs:                 # any argument of vLLM under its own name, for both phases
  # max_model_len: 4096        # default: the model's, 8192 at most
nodes:                         # of both phases; prefill.nodes and decode.nodes differ from it
{instance_type}  # {has}{costs}
  # market: spot               # default: on-demand
prefill:                       # reads prompts
  num_replicas: 1              # default: 1
decode:                        # writes answers
  num_replicas: 1              # default: 1
kubernetes:
  namespace: diptych           # default: diptych
eks:
  region: us-east-2            # default: us-east-2{priced}
  zone: auto                   # default: auto, one zone that has the instance type
  system_nodes: {{instance_type: m7i.xlarge, count: 1}}   # for Ray's head; this is the default
"""
)

_TEMPLATES: Mapping[Place, str] = {"local": _LOCAL, "kubernetes": _KUBERNETES, "eks": _EKS}
