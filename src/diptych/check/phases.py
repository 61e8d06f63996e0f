"""P2xx: prefill and decode against each other, as far as it takes more than two equal values."""

from collections.abc import Iterable
from typing import Any

from diptych.check.backends import common_backends, default_backend
from diptych.check.compatibility import differs, limits, must_be_equal
from diptych.check.findings import Complaint
from diptych.check.rules import rule
from diptych.check.speculation import WITHOUT_DRAFT_CACHE, speculation
from diptych.check.subject import PhaseView, Subject, positive
from diptych.render.staging import is_commit, is_staged

_DYNAMIC_SCALES = ("_per_token_head",)
"""Ends of `kv_cache_dtype` whose scales are computed while serving and lie beside the KV cache."""


@rule("P201", "error", "Phases with different longest sequences")
def same_max_model_len(subject: Subject) -> Iterable[Complaint]:
    why = "a request that one phase takes would be refused by the other"
    return must_be_equal(subject, "max_model_len", why, lambda view: view.max_model_len)


@rule("P202", "error", "Phases with different dtypes")
def same_dtype(subject: Subject) -> Iterable[Complaint]:
    if not subject.is_split:
        return
    prefill, decode = subject.phases
    if prefill.dtype is None or decode.dtype is None or prefill.dtype == decode.dtype:
        return
    field = decode.path("dtype") if "dtype" in decode.section.engine_kwargs else prefill.path("dtype")
    yield Complaint(
        field,
        f"prefill computes in {prefill.dtype} and decode in {decode.dtype}: the first KV transfer fails the handshake",
        "set dtype once, in the shared engine_kwargs, to one that the GPUs of both phases have",
    )


@rule("P203", "error", "Block sizes that don't fit")
def block_sizes_fit(subject: Subject) -> Iterable[Complaint]:
    found = differs(subject, "block_size", lambda view: view.block_size)
    if found is None:
        return
    field, prefill, decode = found
    equal = "write block_size once, in the shared engine_kwargs"
    if prefill is None or decode is None:
        what = f"block_size is {prefill or decode} for one phase and left to the engine for the other"
        yield Complaint(field, f"{what}, which may choose another for this model", equal)
    elif prefill > decode or decode % prefill:
        what = f"block_size is {prefill} for prefill and {decode} for decode"
        do = f"{equal}, or give prefill a smaller one that divides decode's"
        yield Complaint(field, f"{what}: decode can only read blocks that fit into its own", do)
    elif subject.is_hybrid and limits(subject.engine.vllm).hybrid_block_sizes == "refused":
        what = f"block_size is {prefill} for prefill and {decode} for decode, and this model is a hybrid"
        yield Complaint(field, f"{what}, whose block sizes must be equal", equal)
    elif subject.phases[0].tensor_parallel > subject.phases[1].tensor_parallel and not subject.is_mla:
        what = f"block_size is {prefill} for prefill and {decode} for decode, and prefill has more ranks"
        yield Complaint(field, f"{what} than decode, which needs equal ones", equal)
    elif subject.on_gpu and subject.document.kv_transfer.kv_buffer_device == "cpu":
        what = f"block_size is {prefill} for prefill and {decode} for decode, and KV cache goes through host memory"
        yield Complaint(field, f"{what}, which needs equal ones", equal)


@rule("P205", "error", "Tensor parallel sizes that don't fit")
def tensor_parallel_sizes_fit(subject: Subject) -> Iterable[Complaint]:
    found = differs(subject, "tensor_parallel_size", lambda view: view.tensor_parallel)
    if found is None:
        return
    field, prefill, decode = found
    sizes = f"tensor_parallel_size is {prefill} for prefill and {decode} for decode"
    heads = subject.shape.num_kv_heads if subject.shape and not subject.shape.is_mla else None
    if max(prefill, decode) % min(prefill, decode):
        yield Complaint(field, f"{sizes}, and neither divides the other", "make one a multiple of the other")
    elif prefill < decode:
        return
    elif not limits(subject.engine.vllm).prefill_may_have_more_ranks:
        what = f"{sizes}: vLLM {subject.engine.vllm} can't read one KV cache from several ranks of prefill"
        yield Complaint(field, what, f"give prefill {decode} at most, and more replicas")
    elif heads is not None and prefill > heads and not subject.is_hybrid:
        what = f"{sizes}, and the model has {heads} KV heads: decode can't read the copies on prefill's ranks"
        yield Complaint(field, what, f"give prefill {max(heads, decode)} at most, and more replicas")


@rule("P206", "error", "Heads that tensor parallelism can't divide")
def heads_can_be_divided(subject: Subject) -> Iterable[Complaint]:
    attention_heads = subject.config.get("num_attention_heads")
    if not isinstance(attention_heads, int) or subject.shape is None:
        return
    for view in subject.phases:
        size, kv_heads = view.tensor_parallel, subject.shape.num_kv_heads
        fits = kv_heads % size == 0 or size % kv_heads == 0
        if attention_heads % size or not (fits or subject.shape.is_mla):
            yield Complaint(
                view.path("tensor_parallel_size"),
                f"is {size}, and the model has {attention_heads} attention heads and {kv_heads} KV heads",
                "choose a size that divides both, or a multiple of the KV heads that divides the attention heads",
            )


@rule("P208", "error", "Pipeline parallelism with the phases apart")
def no_pipeline(subject: Subject) -> Iterable[Complaint]:
    for view in subject.phases if subject.is_split else ():
        if view.pipeline_parallel > 1:
            yield Complaint(
                view.path("pipeline_parallel_size"),
                f"is {view.pipeline_parallel}, and NixlConnector reads KV cache of one pipeline stage only: each stage "
                "holds other layers",
                "use tensor_parallel_size, or topology: aggregated, where pipeline stages work",
            )


@rule("P209", "error", "Speculative decoding on one side")
def same_speculation(subject: Subject) -> Iterable[Complaint]:
    if not subject.is_split:
        return
    prefill, decode = (_draft(view) for view in subject.phases)
    if prefill == decode:
        return
    view = subject.phases[1 if decode else 0]
    argument = "speculative_config" if view.kwargs.get("speculative_config") else "spec_method"
    yield Complaint(
        view.path(argument),
        f"prefill speculates with {_named(prefill)} and decode with {_named(decode)}: a draft model's KV cache "
        "must be there on both sides, or long prompts read memory that isn't theirs",
        "write it once, in the shared engine_kwargs; only num_speculative_tokens may differ",
    )


@rule("P213", "error", "Scales of the KV cache that are computed while serving")
def no_dynamic_scales(subject: Subject) -> Iterable[Complaint]:
    for view in subject.phases if subject.is_split else ():
        kind = str(view.kwargs.get("kv_cache_dtype", "auto"))
        why = "its scales are computed while serving and don't travel with the KV cache"
        if kind.endswith(_DYNAMIC_SCALES):
            do = "use fp8 with scales from the checkpoint, or auto"
            yield Complaint(view.path("kv_cache_dtype"), f"is {kind}: {why}", do)
        if view.kwargs.get("calculate_kv_scales") is True:
            do = "remove it: scales then come from the checkpoint"
            yield Complaint(view.path("calculate_kv_scales"), f"is true: {why}", do)


@rule("P215", "error", "Attention backends that the engines choose by themselves")
def chosen_backends(subject: Subject) -> Iterable[Complaint]:
    if not subject.is_split or any("attention_backend" in view.kwargs for view in subject.phases):
        return
    chosen = [default_backend(view) for view in subject.phases]
    if None in chosen or chosen[0] == chosen[1]:
        return
    instances = [view.group.instance_type for view in subject.phases if view.group]
    yield Complaint(
        "decode.nodes.instance_type",
        f"vLLM chooses {chosen[0]} on {instances[0]} (prefill) and {chosen[1]} on {instances[1]} (decode), and a KV "
        "transfer needs the same attention backend on both sides",
        f"name one that both GPUs have: engine_kwargs.attention_backend, for example {common_backends(subject)}",
    )


@rule("P224", "error", "Context parallel sizes that don't fit")
def context_parallel_sizes_fit(subject: Subject) -> Iterable[Complaint]:
    if not subject.is_split:
        return
    for view in subject.phases:
        size = view.kwargs.get("prefill_context_parallel_size", 1)
        allowed = limits(subject.engine.vllm).context_parallel_prefill and view.name == "prefill"
        if size not in (1, None) and not allowed:
            what = f"is {size}, and NixlConnector of vLLM {subject.engine.vllm} does not take that for {view.name}"
            yield Complaint(view.path("prefill_context_parallel_size"), what, "remove it")
    found = differs(subject, "decode_context_parallel_size", _decode_context_parallel)
    if found is not None:
        field, prefill, decode = found
        if max(prefill, decode) % min(prefill, decode):
            what = f"decode_context_parallel_size is {prefill} for prefill and {decode} for decode"
            yield Complaint(
                field, f"{what}, and neither divides the other", "make one a multiple of the other"
            )


@rule("P231", "error", "A second connector in place of NIXL's")
def no_offloading(subject: Subject) -> Iterable[Complaint]:
    for view in subject.phases if subject.is_split else ():
        size = view.kwargs.get("kv_offloading_size")
        if size is not None:
            yield Complaint(
                view.path("kv_offloading_size"),
                f"is {size}: vLLM then replaces NixlConnector, and nothing moves KV cache from prefill to decode",
                "remove it, or use topology: aggregated",
            )


@rule("P232", "error", "Random weights on one side")
def weights_on_both_sides(subject: Subject) -> Iterable[Complaint]:
    found = differs(subject, "load_format", lambda view: view.kwargs.get("load_format") == "dummy")
    if found is not None:
        field, prefill, _ = found
        dummy, other = ("prefill", "decode") if prefill else ("decode", "prefill")
        yield Complaint(
            field,
            f"load_format is dummy for {dummy} only: its weights are random, those of {other} are the model's, and no "
            "handshake tells",
            "remove it, or write it in the shared engine_kwargs for a test without a model",
        )


@rule("P230", "warning", "Nodes that may stage different revisions")
def staged_revision(subject: Subject) -> Iterable[Complaint]:
    model, commit = subject.document.model, subject.facts.model.commit
    if subject.is_local or not is_staged(subject.document) or not model.is_on_hub:
        return
    if not is_commit(model.revision):
        named = f"is {model.revision}, which can move" if model.revision else "is not set"
        known = f"{commit}, which that is today" if is_commit(commit) else "from the model's page on the hub"
        yield Complaint(
            "model.revision" if model.revision else "model.source",
            f"model.revision {named}: a node that joins later may stage newer weights than those that are there",
            f"write the commit's 40 digits, {known}",
        )


@rule("P226", "warning", "Engines that may fetch different revisions")
def fixed_revision(subject: Subject) -> Iterable[Complaint]:
    model = subject.document.model
    if subject.is_local or not model.is_on_hub or subject.document.staging.enabled:
        return
    if not is_commit(model.revision):
        named = f"is {model.revision}, which can move" if model.revision else "is not set"
        yield Complaint(
            "model.revision" if model.revision else "model.source",
            f"model.revision {named}, and without staging each engine fetches the model when it starts: one may get "
            "other weights than the one whose KV cache it reads",
            "write the commit's 40 digits, from the model's page on the hub",
        )


def _decode_context_parallel(view: PhaseView) -> int:
    return positive(view.kwargs.get("decode_context_parallel_size")) or 1


def _draft(view: PhaseView) -> tuple[tuple[str, Any], ...]:
    """What must be equal of a phase's speculative decoding; empty where no draft model has a KV cache."""
    config = speculation(view)
    if not config or config["method"] in WITHOUT_DRAFT_CACHE:
        return ()
    keys = ("method", "model", "revision", "code_revision", "parallel_drafting", "kv_cache_dtype")
    return tuple((key, config[key]) for key in keys if config.get(key) is not None)


def _named(draft: tuple[tuple[str, Any], ...]) -> str:
    return ", ".join(f"{key} {value}" for key, value in draft) or "no draft model"
