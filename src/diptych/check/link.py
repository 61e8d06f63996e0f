"""What the KV transfer's link is told: each setting with its value, where that is from, and why."""

from dataclasses import dataclass
from typing import Any

from diptych.check.subject import Subject
from diptych.render.engine import link_of
from diptych.render.image import vllm_version
from diptych.render.link import BACKEND, LinkSettings

DOCUMENT, DIPTYCH, VLLM = "document", "diptych", "vllm"


@dataclass(frozen=True)
class LinkSetting:
    """One setting of the link.

    Args:
        name: an argument of vLLM, a variable, an entry of `kv_connector_extra_config`, a field, or words.
        origin: `document` where it says so itself; `diptych` where the table of `diptych.render.link` chose; `vllm`
            where it is left as vLLM has it.
    """

    name: str
    value: Any
    origin: str
    reason: str

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, "value": self.value, "from": self.origin, "reason": self.reason}


def link_of_subject(subject: Subject) -> tuple[LinkSetting, ...]:
    """The link's settings; none without a split."""
    document = subject.document
    vllm = subject.engine.vllm if subject.is_local else vllm_version(document)
    settings = link_of(document, subject.shape, vllm, on_gpu=subject.on_gpu)
    return tuple(
        _setting(subject, settings, name) for name in (*settings.values, *settings.left, *settings.ways)
    )


def _setting(subject: Subject, settings: LinkSettings, name: str) -> LinkSetting:
    given = _given(subject, name)
    if given is not None:
        return LinkSetting(name, given, DOCUMENT, "the document says so")
    if name in settings.values:
        return LinkSetting(name, settings.values[name], DIPTYCH, settings.reasons[name])
    origin, way = (VLLM, settings.left[name]) if name in settings.left else (DIPTYCH, settings.ways[name])
    return LinkSetting(name, way.value, origin, way.reason)


def _given(subject: Subject, name: str) -> Any:
    """What the document itself says; None where it says nothing. Phases that differ are told apart."""
    section = subject.document.kv_transfer
    if name == BACKEND:
        return None if section.backend == "auto" else section.backend
    if name in section.kv_connector_extra_config:
        return section.kv_connector_extra_config[name]
    by_phase = {view.name: view.kwargs[name] for view in subject.phases if name in view.kwargs}
    same = len(by_phase) == len(subject.phases) and len(set(map(str, by_phase.values()))) == 1
    return (
        next(iter(by_phase.values()))
        if same
        else ", ".join(f"{each}: {by_phase[each]}" for each in by_phase) or None
    )
