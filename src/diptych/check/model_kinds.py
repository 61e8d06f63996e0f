"""P2xx: kinds of models that can't be split, or not with every setting."""

from collections.abc import Iterable

from diptych.check.compatibility import differs, limits
from diptych.check.findings import Complaint
from diptych.check.memory import text_only
from diptych.check.rules import rule
from diptych.check.subject import Subject

_CROSS_LAYER = "kv_transfer.kv_connector_extra_config.enable_cross_layers_blocks"


@rule("P207", "error", "A hybrid model with different tensor parallel sizes")
def hybrids_have_equal_ranks(subject: Subject) -> Iterable[Complaint]:
    found = differs(subject, "tensor_parallel_size", lambda view: view.tensor_parallel)
    if subject.is_hybrid and found is not None:
        field, prefill, decode = found
        yield Complaint(
            field,
            f"tensor_parallel_size is {prefill} for prefill and {decode} for decode, and this model is a hybrid: its "
            "recurrent state can't be divided anew on the way",
            "write it once, in the shared engine_kwargs, and vary the number of replicas instead",
        )


@rule("P217", "warning", "Blocks across layers that have no effect")
def cross_layer_blocks(subject: Subject) -> Iterable[Complaint]:
    asked = subject.document.kv_transfer.kv_connector_extra_config.get("enable_cross_layers_blocks")
    if str(asked).lower() != "true" or not subject.is_split:
        return
    if not limits(subject.engine.vllm).cross_layer_blocks:
        what = f"vLLM {subject.engine.vllm} has no such setting any more"
        yield Complaint(_CROSS_LAYER, f"is true, and {what}", "remove it")
    elif subject.is_hybrid:
        yield Complaint(
            _CROSS_LAYER, "is true, and a hybrid model's layers can't lie in one block", "remove it"
        )
    elif subject.facts.environ.get("VLLM_USE_V2_MODEL_RUNNER") != "0":
        yield Complaint(
            _CROSS_LAYER,
            f"is true, and works only with the first model runner of vLLM {subject.engine.vllm}, which the engines "
            "don't get unless VLLM_USE_V2_MODEL_RUNNER is 0",
            "remove it, and set engine_kwargs.block_size to 64 or 128 for fewer and larger pieces instead",
        )


@rule("P218", "warning", "Prefix caching of a hybrid model")
def hybrid_prefix_caching(subject: Subject) -> Iterable[Complaint]:
    return _true_for_hybrids(subject, "enable_prefix_caching")


@rule("P219", "warning", "Asynchronous scheduling of a hybrid model")
def hybrid_async_scheduling(subject: Subject) -> Iterable[Complaint]:
    return _true_for_hybrids(subject, "async_scheduling")


@rule("P220", "warning", "Prefix caching of a multimodal model")
def multimodal_prefix_caching(subject: Subject) -> Iterable[Complaint]:
    if not subject.is_split or not subject.is_multimodal or subject.is_hybrid:
        return
    decode = subject.phases[-1]
    if not text_only(decode) and decode.resolved.get("enable_prefix_caching") is not False:
        yield Complaint(
            decode.path("enable_prefix_caching")
            if "enable_prefix_caching" in decode.kwargs
            else "model.source",
            "prefix caching is on for decode, and the model reads images: decode can take another image's KV cache for "
            "this one's where both have the same size and text",
            "set decode.engine_kwargs.enable_prefix_caching: false, or language_model_only: true if no images come",
        )


@rule("P221", "error", "A model with an encoder")
def no_encoder(subject: Subject) -> Iterable[Complaint]:
    if subject.is_split and subject.config.get("is_encoder_decoder") is True:
        yield Complaint(
            "model.source",
            "the model is an encoder and a decoder, and vLLM can't move the encoder's KV cache between engines",
            "use topology: aggregated",
        )


@rule("P225", "warning", "The handshake's check is off")
def handshake_is_checked(subject: Subject) -> Iterable[Complaint]:
    extra = subject.document.kv_transfer.kv_connector_extra_config
    if subject.is_split and str(extra.get("enforce_handshake_compat", True)).lower() == "false":
        yield Complaint(
            "kv_transfer.kv_connector_extra_config.enforce_handshake_compat",
            "is false: engines that don't fit each other will exchange KV cache all the same, and answer with nonsense",
            "remove it",
        )


@rule("P228", "warning", "A hybrid model with different block sizes")
def hybrid_block_sizes(subject: Subject) -> Iterable[Complaint]:
    found = differs(subject, "block_size", lambda view: view.block_size)
    if not subject.is_hybrid or limits(subject.engine.vllm).hybrid_block_sizes != "untested" or found is None:
        return
    field, prefill, decode = found
    if prefill and decode and decode % prefill == 0:
        yield Complaint(
            field,
            f"block_size is {prefill} for prefill and {decode} for decode, and this model is a hybrid: vLLM's code "
            "takes that, its documentation says that it can't",
            "write block_size once, in the shared engine_kwargs",
        )


@rule("P229", "error", "A hybrid model without the hybrid KV cache manager")
def hybrids_need_their_manager(subject: Subject) -> Iterable[Complaint]:
    for view in subject.phases if subject.is_split and subject.is_hybrid else ():
        if view.kwargs.get("disable_hybrid_kv_cache_manager") is True:
            yield Complaint(
                view.path("disable_hybrid_kv_cache_manager"),
                "is true, and this model is a hybrid: without that manager its state can't be moved",
                "remove it",
            )


def _true_for_hybrids(subject: Subject, argument: str) -> Iterable[Complaint]:
    for view in subject.phases if subject.is_split and subject.is_hybrid else ():
        if view.kwargs.get(argument) is True:
            yield Complaint(
                view.path(argument),
                "is true, and vLLM lists it as not supported for hybrid models whose phases are apart",
                "remove it",
            )
