"""Speculative decoding as vLLM reads its settings (`config/speculative.py`): method, and the model that drafts."""

from typing import Any

from diptych.check.subject import PhaseView

WITHOUT_DRAFT_CACHE = ("ngram", "ngram_gpu", "suffix", "medusa", "mlp_speculator")
"""Methods that keep no KV cache for what they propose."""

_NGRAM = ("ngram", "[ngram]")
_BY_NAME = {"eagle-": "eagle", "eagle3": "eagle3", "dflash": "dflash", "dspark": "dspark"}
"""Methods that vLLM tells by a word in the draft model's name, in its order."""


def speculation(view: PhaseView) -> dict[str, Any]:
    """A phase's speculative decoding with the `method` that vLLM makes of it; empty without any."""
    given = view.kwargs.get("speculative_config")
    config = dict(given) if isinstance(given, dict) else {}
    for argument, key in (("spec_method", "method"), ("spec_model", "model")):
        if argument in view.kwargs:
            config[key] = view.kwargs[argument]
    return config | {"method": _method(config)} if config else {}


def draft_model(view: PhaseView) -> str | None:
    """The model of its own that drafts, if there is one: its weights lie beside the model's."""
    config = speculation(view)
    if not config or config["method"] in ("ngram", "ngram_gpu", "suffix"):
        return None
    model = config.get("model")
    return str(model) if model and model != view.subject.document.model.source else None


def _method(config: dict[str, Any]) -> str:
    method, model = str(config.get("method") or ""), str(config.get("model") or "").lower()
    if method in _NGRAM or (not method and model in _NGRAM):
        return "ngram"
    if method.endswith("mtp"):
        return "mtp"
    if method in ("", "draft_model"):
        return next((kind for word, kind in _BY_NAME.items() if word in model), "draft_model")
    return method
