"""What the engines on a cluster are told beside the document, and why.

Two tables, one for arguments of vLLM and one for variables; each entry has the situation it is for and its reason. The
document's own `engine_kwargs` win over them. All names are those of vLLM 0.26 and 0.29.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from diptych.models.config import ModelShape
from diptych.render.image import vllm_version
from diptych.render.inputs import Facts
from diptych.render.layout import WorkerGroup, wants_efa, worker_groups
from diptych.render.link import BACKEND, Link, LinkSettings, link_settings
from diptych.render.staging import is_staged, revision, staged_folder
from diptych.spec import Document, Phase

CONNECTOR_MODULE = "diptych.serving.connector"
MOST_TOKENS = 8192
"""The context length unless the document gives one; the model's own where that is shorter."""

SCHEDULING_POLICY = "priority"
"""vLLM's `scheduling_policy` everywhere: with its default, fcfs, a request's priority has no effect."""

NAMES_A_MODEL = ("tokenizer", "hf_config_path")
"""Arguments of vLLM that name a model by itself; `speculative_config` has another in its `model`."""

_KV_ROLES = {"prefill": "kv_producer", "decode": "kv_consumer"}


@dataclass(frozen=True)
class EngineSettings:
    """What the engines of one phase get.

    Args:
        kwargs: arguments of vLLM, as Ray Serve LLM's `engine_kwargs` takes them; the document's own included.
        environment: variables of the engines' processes.
        pod_environment: variables of the worker pods: those that a program run beside the engine must see too.
        reasons: why, for each name in the three that does not come from the document, and for `kv_transfer.backend`
            where it says `auto`.
    """

    kwargs: Mapping[str, Any]
    environment: Mapping[str, str]
    pod_environment: Mapping[str, str]
    reasons: Mapping[str, str]


@dataclass(frozen=True)
class _Situation:
    """What the tables decide by."""

    shape: ModelShape | None
    split: bool
    backend: str | None
    efa: bool
    hugepages: bool

    @property
    def hybrid(self) -> bool:
        """Prefill and decode apart for a model that keeps a state per sequence beside KV cache."""
        return self.split and self.shape is not None and self.shape.has_recurrent_state

    @property
    def max_model_len(self) -> int | None:
        return min(self.shape.context_length, MOST_TOKENS) if self.shape else None


@dataclass(frozen=True)
class _Setting:
    """One entry: a value, or what makes it of the situation (None: no setting), when it holds, and why."""

    name: str
    value: Any
    when: Callable[[_Situation], bool]
    reason: str

    def value_in(self, situation: _Situation) -> Any:
        return self.value(situation) if callable(self.value) else self.value


def _always(_: _Situation) -> bool:
    return True


def _split(situation: _Situation) -> bool:
    return situation.split


def _hybrid(situation: _Situation) -> bool:
    return situation.hybrid


_HYBRID = "a model with a recurrent state is served apart in this way only (vLLM #41869, #41886)"

_KWARGS = (
    _Setting(
        "max_model_len",
        lambda situation: situation.max_model_len,
        _always,
        f"the model's own, {MOST_TOKENS} at most: more leaves room for few sequences, and both phases need the same",
    ),
    _Setting(
        "gpu_memory_utilization",
        0.9,
        _always,
        "the rest is for what vLLM does not count: the CUDA context, NCCL, memory that NIXL registers",
    ),
    _Setting(
        "scheduling_policy",
        SCHEDULING_POLICY,
        _always,
        "a key's priority has no effect otherwise; requests of equal priority are served in the order they came",
    ),
    _Setting("enforce_eager", True, _hybrid, _HYBRID),
    _Setting("async_scheduling", False, _hybrid, _HYBRID),
    _Setting("disable_hybrid_kv_cache_manager", False, _hybrid, _HYBRID),
    _Setting("enable_prefix_caching", False, _hybrid, _HYBRID),
)

_ENVIRONMENT = (
    _Setting("VLLM_SSM_CONV_STATE_LAYOUT", "DS", _hybrid, "NIXL moves a recurrent state in this layout only"),
    _Setting(
        "VLLM_USE_FLASHINFER_SAMPLER",
        "0",
        _always,
        "it is compiled at first use, which takes minutes and a compiler in the image",
    ),
)

_POD_ENVIRONMENT = (
    _Setting("NIXL_LOG_LEVEL", "INFO", _split, "only then NIXL says which provider its rails use"),
    _Setting(
        "UCX_RCACHE_MAX_UNRELEASED",
        "1024",
        lambda situation: situation.backend == "UCX",
        "UCX keeps memory for ever otherwise, and it counts only if set before NIXL is loaded",
    ),
    _Setting(
        "FI_PROVIDER",
        "efa",
        lambda situation: situation.efa,
        "without it libfabric takes TCP in silence when it finds no EFA",
    ),
    _Setting(
        "FI_EFA_FORK_SAFE",
        "1",
        lambda situation: situation.efa and not situation.hugepages,
        "the engine's processes fork",
    ),
    _Setting(
        "FI_EFA_USE_HUGE_PAGE",
        "1",
        lambda situation: situation.efa and situation.hugepages,
        "the pods have huge pages; FI_EFA_FORK_SAFE would switch them off",
    ),
)


def engine_settings(document: Document, phase: Phase, facts: Facts) -> EngineSettings:
    """What the engines of `phase` get on a cluster ("decode" for the aggregated topology)."""
    group = next(each for each in worker_groups(document) if each.phase == phase)
    situation = _situation(document, group, facts)
    own = _with_staged_files(document.engine_kwargs_for(phase), document, facts)
    link = link_of(document, facts.shape, vllm_version(document))
    defaults, reasons = _pick(_KWARGS, situation)
    environment, environment_reasons = _pick(_ENVIRONMENT, situation)
    pod_environment, pod_reasons = _pick(_POD_ENVIRONMENT, situation)
    kwargs = defaults | dict(link.kwargs) | _of_the_document(document, phase, facts) | own
    if situation.split:
        kwargs["kv_transfer_config"] = kv_transfer_config(
            document, phase, on_gpu=True, backend=situation.backend, link=link
        )
    environment |= link.environment
    given = {*own, *document.kv_transfer.kv_connector_extra_config}
    if document.kv_transfer.backend != "auto":
        given.add(BACKEND)
    reasons = {name: why for name, why in (reasons | dict(link.reasons)).items() if name not in given}
    return EngineSettings(kwargs, environment, pod_environment, reasons | environment_reasons | pod_reasons)


def kv_backend(document: Document) -> str | None:
    """NIXL's backend, never `auto`; None where vLLM's default is left alone, on this machine, and without a split."""
    if document.topology == "aggregated":
        return None
    if document.kv_transfer.backend != "auto":
        return document.kv_transfer.backend
    if document.on == "local":
        return None
    return "LIBFABRIC" if wants_efa(document) else "UCX"


def link_of(
    document: Document, shape: ModelShape | None, vllm: str | None, *, on_gpu: bool = True
) -> LinkSettings:
    """What makes the KV transfer of a document's engines fast; nothing without a split."""
    if document.topology != "split":
        return LinkSettings()
    asked = document.kv_transfer.kv_connector_extra_config
    kwargs = [document.engine_kwargs_for(phase) for phase in document.phases]
    return link_settings(
        Link(
            shape,
            vllm,
            backend=kv_backend(document),
            on_cluster=document.on != "local",
            in_host_memory=not on_gpu or document.kv_transfer.kv_buffer_device == "cpu",
            across_layers=str(asked.get("enable_cross_layers_blocks", "true")).lower() == "true",
            drafts=any(each.keys() & {"speculative_config", "spec_method", "spec_model"} for each in kwargs),
        )
    )


def kv_transfer_config(
    document: Document,
    phase: str,
    *,
    on_gpu: bool,
    backend: str | None,
    link: LinkSettings = LinkSettings(),
) -> dict[str, Any]:
    """vLLM's `kv_transfer_config` of one phase; `backend` None leaves the choice to vLLM."""
    section = document.kv_transfer
    extra: dict[str, Any] = {"kv_lease_duration": section.lease_s, **link.connector}
    if backend is not None:
        extra["backends"] = [backend]
    extra |= section.kv_connector_extra_config
    device = section.kv_buffer_device
    return {
        "kv_connector": "NixlConnector",
        "kv_connector_module_path": CONNECTOR_MODULE,
        "kv_role": _KV_ROLES[phase],
        "kv_buffer_device": ("cuda" if on_gpu else "cpu") if device == "auto" else device,
        "engine_id": phase,
        "kv_load_failure_policy": section.kv_load_failure_policy,
        "kv_connector_extra_config": extra,
    }


def _with_staged_files(kwargs: Mapping[str, Any], document: Document, facts: Facts) -> dict[str, Any]:
    """`kwargs`, where the model's id means its files in the pods: engines with a staged model don't ask the hub."""
    if not is_staged(document):
        return dict(kwargs)

    def meant(value: Any) -> Any:
        return staged_folder(document, facts) if value == document.model.source else value

    found = {name: meant(value) if name in NAMES_A_MODEL else value for name, value in kwargs.items()}
    drafts = found.get("speculative_config")
    if isinstance(drafts, dict) and "model" in drafts:
        found["speculative_config"] = {**drafts, "model": meant(drafts["model"])}
    return found


def _situation(document: Document, group: WorkerGroup, facts: Facts) -> _Situation:
    return _Situation(
        shape=facts.shape,
        split=document.topology == "split",
        backend=kv_backend(document),
        efa=group.size.efa > 0,
        hugepages=group.size.hugepages_2mi > 0,
    )


def _pick(table: tuple[_Setting, ...], situation: _Situation) -> tuple[dict[str, Any], dict[str, str]]:
    """Values and reasons of the entries that hold."""
    held = [(each, each.value_in(situation)) for each in table if each.when(situation)]
    values = {each.name: value for each, value in held if value is not None}
    return values, {each.name: each.reason for each, _ in held if each.name in values}


def _of_the_document(document: Document, phase: Phase, facts: Facts) -> dict[str, Any]:
    """Arguments that have fields of their own in the document."""
    section = document.phases[phase]
    kwargs: dict[str, Any] = {}
    if section.kv_cache_memory is not None:
        kwargs["kv_cache_memory_bytes"] = section.kv_cache_memory
    if document.model.is_on_hub and not is_staged(document) and revision(document, facts) is not None:
        kwargs["revision"] = revision(document, facts)
    return kwargs
