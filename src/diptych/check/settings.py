"""E6xx: settings of vLLM that need another one, or name something that is not there."""

from collections.abc import Iterable

from diptych.check.findings import Complaint
from diptych.check.rules import rule
from diptych.check.speculation import speculation
from diptych.check.subject import PhaseView, Subject
from diptych.spec.problems import nearest, shown

_METHODS = (
    *("ngram", "ngram_gpu", "suffix", "draft_model", "eagle", "eagle3", "medusa", "mlp_speculator", "mtp"),
    *("dflash", "dspark", "extract_hidden_states", "custom_class"),
)
"""Methods of speculative decoding that vLLM 0.26 or 0.29 has (`config/speculative.py`); and any that ends in _mtp."""

_WITH_TOKENS_OF_ITS_OWN = ("suffix", "mtp", "eagle", "eagle3", "medusa", "mlp_speculator", "dflash", "dspark")
"""Methods that have a default for `num_speculative_tokens`, or whose draft model may say it (`n_predict`)."""

_WITHOUT_MODEL = ("ngram", "ngram_gpu", "suffix", "mtp", "dspark", "extract_hidden_states")

_MODALITIES = ("image", "video", "audio", "vision_chunk")


@rule("E611", "error", "Tool calls without a parser")
def tool_calls_have_a_parser(subject: Subject) -> Iterable[Complaint]:
    for view in subject.phases:
        if view.kwargs.get("enable_auto_tool_choice") is True and not view.kwargs.get("tool_call_parser"):
            yield Complaint(
                view.path("enable_auto_tool_choice"),
                "is true, and tool_call_parser is not set: vLLM refuses requests that leave the choice of a tool to "
                "the model",
                "set tool_call_parser to the one that the model's page names, for example hermes",
            )


@rule("E612", "warning", "A limit for a kind of input that is not known")
def limits_name_modalities(subject: Subject) -> Iterable[Complaint]:
    for view in subject.phases:
        limits = view.kwargs.get("limit_mm_per_prompt")
        for name in limits if isinstance(limits, dict) else ():
            if name not in _MODALITIES:
                like = nearest(str(name), _MODALITIES)
                yield Complaint(
                    f"{view.path('limit_mm_per_prompt')}.{name}",
                    "is no kind of input that vLLM knows: it limits nothing",
                    f"did you mean {like}?" if like else "write image, video or audio",
                )


@rule("E613", "error", "A method of speculative decoding that vLLM does not have")
def method_exists(subject: Subject) -> Iterable[Complaint]:
    for view in subject.phases:
        given = view.kwargs.get("speculative_config")
        by_config = isinstance(given, dict) and "spec_method" not in view.kwargs
        method = given.get("method") if by_config and given else view.kwargs.get("spec_method")
        if not method or method == "[ngram]" or method in _METHODS or str(method).endswith("_mtp"):
            continue
        like = nearest(str(method), _METHODS)
        yield Complaint(
            f"{view.path('speculative_config')}.method" if by_config else view.path("spec_method"),
            f"is {shown(method)}, which vLLM does not have",
            f"did you mean {like}?" if like else f"choose one of {', '.join(_METHODS)}",
        )


@rule("E614", "error", "Speculative decoding that is not complete")
def speculation_is_complete(subject: Subject) -> Iterable[Complaint]:
    for view in subject.phases:
        config = speculation(view)
        method = config.get("method")
        if not config or method not in _METHODS:
            continue  # E613 says so
        by_argument = "spec_tokens" in view.kwargs
        tokens = view.kwargs.get("spec_tokens") if by_argument else config.get("num_speculative_tokens")
        field = view.path("speculative_config" if "speculative_config" in view.kwargs else "spec_method")
        named = method == "ngram" or _names_method(view)  # else the draft model's config may say how many
        if tokens is None and named and method not in _WITH_TOKENS_OF_ITS_OWN:
            what = f"is by {method}, and num_speculative_tokens is not set: the engine does not start"
            yield Complaint(field, what, "set num_speculative_tokens, for example 3")
        elif not config.get("model") and method not in _WITHOUT_MODEL:
            what = f"is by {method}, and names no model that drafts: the engine does not start"
            yield Complaint(field, what, "set model to one that was made for this one")


@rule("E615", "error", "More pipeline stages than layers")
def stages_have_layers(subject: Subject) -> Iterable[Complaint]:
    for view in subject.phases:
        layers = subject.shape.num_layers if subject.shape else None
        if layers is not None and view.pipeline_parallel > layers:
            yield Complaint(
                view.path("pipeline_parallel_size"),
                f"is {view.pipeline_parallel}, and the model has {layers} layers: some stages would have none",
                f"write {layers} or less",
            )


def _names_method(view: PhaseView) -> bool:
    given = view.kwargs.get("speculative_config")
    return bool(view.kwargs.get("spec_method") or (isinstance(given, dict) and given.get("method")))
