"""What prefill and decode must share so that one can read the other's KV cache, by version of the engine.

Two tables hold it. `LIMITS` says what a version of vLLM's NixlConnector takes; each line was read in that version
(`kv_connector/v1/nixl/`: `base_worker.py` checks the handshake, `metadata.py` hashes what must be equal) and in its
`docs/features/nixl_connector_compatibility.md`. `EQUAL` names the arguments that must have one value on both sides.
Rules with more to them than that are in `phases` and `model_kinds`.

Model, revision and `kv_transfer` need no rule: a document has one of each for both phases.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from diptych.catalog.arguments import engine_arguments
from diptych.check.backends import backend
from diptych.check.findings import Complaint
from diptych.check.rules import rule
from diptych.check.subject import PhaseView, Subject
from diptych.spec.problems import shown


@dataclass(frozen=True)
class Limits:
    """What NixlConnector of one minor version of vLLM takes.

    Args:
        since: the first minor version for which this holds.
        prefill_may_have_more_ranks: a prefill engine with a larger tensor parallel size than decode's.
        hybrid_block_sizes: what differing block sizes do with a hybrid model: "refused", or "untested" where the
            code takes them and its documentation says that it doesn't.
        cross_layer_blocks: `enable_cross_layers_blocks` has an effect.
        context_parallel_prefill: prefill engines may have a `prefill_context_parallel_size`.
        hybrid_manager: the hybrid KV cache manager is on, on GPUs, where `disable_hybrid_kv_cache_manager` is not set.
        lease: KV cache is kept for `kv_lease_duration`; before, for VLLM_NIXL_ABORT_REQUEST_TIMEOUT.
    """

    since: tuple[int, int]
    prefill_may_have_more_ranks: bool = True
    hybrid_block_sizes: str = "refused"
    cross_layer_blocks: bool = True
    context_parallel_prefill: bool = False
    hybrid_manager: bool = False
    lease: bool = True


LIMITS = (
    Limits(since=(0, 0), prefill_may_have_more_ranks=False, lease=False),
    Limits(since=(0, 26)),
    Limits(
        since=(0, 29),
        hybrid_block_sizes="untested",
        cross_layer_blocks=False,
        context_parallel_prefill=True,
        hybrid_manager=True,
    ),
)
"""What each version takes, oldest first. Versions between two lines take what the older one does."""


def limits(vllm: str | None) -> Limits:
    """What this version takes; the newest that is known where it isn't known."""
    if vllm is None:
        return LIMITS[-1]
    numbers = tuple(int(part) for part in vllm.split(".")[:2])
    return [each for each in LIMITS if each.since <= numbers][-1]


@dataclass(frozen=True)
class Equal:
    """Arguments of vLLM that must have one value on both sides.

    Args:
        why: what happens otherwise, as the second half of a sentence.
    """

    code: str
    title: str
    arguments: tuple[str, ...]
    why: str


_HASHED = "their first KV transfer fails the handshake"
EQUAL = (
    Equal("P204", "KV caches of different dtypes", ("kv_cache_dtype", "kv_cache_dtype_skip_layers"), _HASHED),
    Equal(
        "P210",
        "Different tokenizers",
        ("tokenizer", "tokenizer_mode", "tokenizer_revision", "skip_tokenizer_init"),
        "prefill would fill the KV cache for other tokens than decode reads",
    ),
    Equal(
        "P211",
        "Different chat templates",
        (
            "chat_template",
            "chat_template_content_format",
            "default_chat_template_kwargs",
            "trust_request_chat_template",
        ),
        "each phase would make other tokens out of the same messages, and decode would not find its prompt",
    ),
    Equal(
        "P212",
        "Different quantisation",
        ("quantization", "quantization_config", "allow_deprecated_quantization"),
        "decode would go on from KV cache that other weights made",
    ),
    Equal(
        "P214",
        "Different attention backends",
        ("attention_backend", "attention_config"),
        _HASHED,
    ),
    Equal("P216", "The hybrid KV cache manager on one side", ("disable_hybrid_kv_cache_manager",), _HASHED),
    Equal(
        "P222",
        "LoRA on one side",
        ("enable_lora", "lora_modules", "max_lora_rank", "lora_dtype", "lora_target_modules"),
        "prefill must apply the adapter that decode does",
    ),
    Equal(
        "P223",
        "Phases with different models",
        (
            "hf_overrides",
            "hf_config_path",
            "code_revision",
            "config_format",
            "model_impl",
            "model_weights",
            "runner",
            "convert",
            "disable_sliding_window",
            "override_attention_dtype",
            "mm_processor_kwargs",
            "kv_sharing_fast_prefill",
        ),
        "the phases would run two different models",
    ),
    Equal(
        "P227",
        "Different recurrent states",
        ("mamba_block_size", "mamba_cache_dtype", "mamba_ssm_cache_dtype", "mamba_cache_mode"),
        "the state that prefill sends has another layout than decode reads",
    ),
)


def differs(
    subject: Subject, argument: str, value: Callable[[PhaseView], Any]
) -> tuple[str, Any, Any] | None:
    """The field to point at and both values of `argument`; None where they are equal or nobody set them."""
    if not subject.is_split:
        return None
    prefill, decode = subject.phases
    if argument not in prefill.kwargs and argument not in decode.kwargs:
        return None
    if value(prefill) == value(decode):
        return None
    own = decode if argument in decode.section.engine_kwargs else prefill
    return own.path(argument), value(prefill), value(decode)


def must_be_equal(
    subject: Subject, argument: str, why: str, value: Callable[[PhaseView], Any]
) -> Iterable[Complaint]:
    """The complaint that `argument` has two values."""
    found = differs(subject, argument, value)
    if found is not None:
        field, at_prefill, at_decode = found
        yield Complaint(
            field,
            f"{argument} is {_named(at_prefill)} for prefill and {_named(at_decode)} for decode: {why}",
            f"write it once, in the shared engine_kwargs, or give both phases the same {argument}",
        )


def _named(value: Any) -> str:
    return "not set" if value is None else shown(value)


def _effective(argument: str, view: PhaseView) -> Any:
    """The value that the engine has: the document's, else what Diptych sets, else vLLM's own."""
    if argument in _CHOSEN:
        return _CHOSEN[argument](view)
    known = (engine_arguments(view.subject.engine.vllm or "") or {}).get(argument)
    return view.resolved.get(argument, known.default if known else None)


def _hybrid_manager(view: PhaseView) -> Any:
    asked = view.resolved.get("disable_hybrid_kv_cache_manager")
    on = view.subject.on_gpu and limits(view.subject.engine.vllm).hybrid_manager
    return False if asked is None and on else asked


def _tokenizer(view: PhaseView) -> Any:
    return view.kwargs.get("tokenizer") or view.subject.document.model.source


_CHOSEN: dict[str, Callable[[PhaseView], Any]] = {
    "attention_backend": backend,
    "disable_hybrid_kv_cache_manager": _hybrid_manager,
    "tokenizer": _tokenizer,
}
"""Arguments for which vLLM chooses by more than a default."""


def _unequal(each: Equal, subject: Subject) -> Iterable[Complaint]:
    for argument in each.arguments:
        yield from must_be_equal(subject, argument, each.why, partial(_effective, argument))


for _each in EQUAL:
    rule(_each.code, "error", _each.title)(partial(_unequal, _each))
