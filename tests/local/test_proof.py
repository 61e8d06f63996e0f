"""The first prompts of a service: what makes `up` say ready, and what makes it fail with which words."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from diptych.errors import StartError
from diptych.local.events import EventLog
from diptych.local.proof import prove
from fakes import probed
from fakes.provable_endpoint import MODEL, ProvableEndpoint, probing


@pytest.fixture
def fake() -> Iterator[ProvableEndpoint]:
    with ProvableEndpoint() as server:
        yield server


def proven(fake: ProvableEndpoint, folder: Path, topology: str = "split") -> list[tuple[str, str, str]]:
    events = EventLog(folder / "events.jsonl")
    plan: Any = SimpleNamespace(
        url=fake.url, admin_key_file=str(fake.key_file(folder)), model=MODEL, topology=topology
    )
    prove(plan, events)
    return [(event.kind, event.stage, event.text) for event in events.so_far()]


def test_the_stages_are_told_with_what_crossed(fake: ProvableEndpoint, tmp_path: Path) -> None:
    assert proven(fake, tmp_path) == [
        ("start", "handshake", ""),
        ("done", "handshake", "prefill and decode met"),
        ("start", "first KV transfer", ""),
        ("done", "first KV transfer", "160 tokens, 12.0 MiB in 4.0 ms"),
    ]
    assert [one["tokens"] for one in fake.behaviour.asked] == [[5], [160]]


def test_a_contradicted_transport_is_no_start(fake: ProvableEndpoint, tmp_path: Path) -> None:
    fake.behaviour.probe = probing(probed.still_efa)
    with pytest.raises(StartError) as raised:
        proven(fake, tmp_path)
    assert raised.value.message.startswith(
        "The transport is not proven. EFA was asked for, and LIBFABRIC over tcp is in use"
    )


def test_a_prompt_that_decode_computed_is_no_start(fake: ProvableEndpoint, tmp_path: Path) -> None:
    fake.behaviour.probe = probing(probed.recomputed)
    with pytest.raises(StartError, match=r"The split is not proven\. A prompt of 5 tokens: path recovered"):
        proven(fake, tmp_path)


def test_a_fallback_that_the_document_allows_is_a_start_that_says_so(
    fake: ProvableEndpoint, tmp_path: Path
) -> None:
    def allowing(tokens: list[int]) -> Any:
        told = probing(probed.still_efa)(tokens)
        return told | {"asked": told["asked"] | {"allow_fallback": True}}

    fake.behaviour.probe = allowing
    assert "; EFA was asked for, and LIBFABRIC over tcp is in use" in proven(fake, tmp_path)[-1][2]


def test_an_endpoint_that_refuses_is_no_start(fake: ProvableEndpoint, tmp_path: Path) -> None:
    fake.behaviour.down = True
    with pytest.raises(StartError, match=r"The first prompt of the service was not answered\..*503"):
        proven(fake, tmp_path)


def test_one_engine_for_both_phases_answers_one_prompt(fake: ProvableEndpoint, tmp_path: Path) -> None:
    fake.behaviour.aggregated = True
    stages = proven(fake, tmp_path, "aggregated")
    assert [kind for kind, stage, _ in stages if stage == "first answer"] == ["start", "done"]
    assert [path for path, _, _ in fake.requests] == ["/v1/completions"]
