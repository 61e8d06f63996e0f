"""E6xx: what engines would fetch from the hub beside the model, where the model lies in the pods and they don't ask."""

from collections.abc import Iterable
from typing import Any

from diptych.check.findings import Complaint
from diptych.check.rules import rule
from diptych.check.speculation import draft_model
from diptych.check.subject import PhaseView, Subject
from diptych.render.engine import NAMES_A_MODEL
from diptych.render.staging import is_local
from diptych.spec import is_path


@rule("E631", "error", "A model beside the model that is not staged")
def only_the_model_is_staged(subject: Subject) -> Iterable[Complaint]:
    document = subject.document
    if subject.is_local or not is_local(document):
        return
    for view in subject.phases:
        for argument, name in _named(view):
            if name != document.model.source and not is_path(name):
                yield Complaint(
                    view.path(argument),
                    f"names {name}, and only {document.model.source} lies in the pods, whose engines don't ask the hub "
                    "(HF_HUB_OFFLINE): they do not start",
                    "put it into the image and give its path, or set staging.enabled: false",
                )


def _named(view: PhaseView) -> Iterable[tuple[str, str]]:
    """The arguments that name a model, and which."""
    plain: dict[str, Any] = {name: view.kwargs.get(name) for name in NAMES_A_MODEL}
    drafts = "speculative_config" if "speculative_config" in view.kwargs else "spec_model"
    found = {**plain, drafts: draft_model(view)}
    return ((name, value) for name, value in found.items() if isinstance(value, str) and value)
