"""Jobs for tests: a document of the golden files on its way to a cluster, and a view that keeps what it is told."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from diptych.kube.job import Job
from diptych.progress import Event, View
from diptych.spec import Document
from render.golden_documents import example


class Told(View):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.said: list[str] = []

    def stage(self, event: Event) -> None:
        self.events.append(event)

    def say(self, text: str) -> None:
        self.said.append(text)

    def texts(self, kind: str = "detail") -> list[str]:
        """What the events of a kind say."""
        return [event.text for event in self.events if event.kind == kind]


def document_with(document: Document, **sections: Any) -> Document:
    """A document with other sections, or other fields in them, checked like any other."""
    content = document.model_dump(mode="json", exclude_unset=True)
    for name, value in sections.items():
        merged = isinstance(value, dict) and isinstance(content.get(name), dict)
        content[name] = {**content[name], **value} if merged else value
    return Document.model_validate(content)


def job_for(
    folder: Path,
    *,
    example_name: str = "walkthrough",
    dry_run: bool = False,
    replace_pods: bool = False,
    **sections: Any,
) -> Job:
    """A job for a cluster that exists, without AWS: `on: kubernetes`.

    Args:
        sections: of the document, over those of the example.
    """
    document, facts = example(example_name)
    content = document.model_dump(mode="json", exclude_unset=True)
    content.pop("eks", None)
    content["on"] = "kubernetes"
    document = document_with(Document.model_validate(content), **sections)
    facts = replace(facts, serving_archive=b"the serving code")
    folder.mkdir(parents=True, exist_ok=True)
    return Job(document, facts, Told(), folder, dry_run=dry_run, replace=replace_pods)


def told(job: Job) -> Told:
    """What the job's view was told."""
    assert isinstance(job.view, Told)
    return job.view
