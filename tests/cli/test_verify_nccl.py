"""`diptych verify --nccl`: where there is such a thing, whom it asks first, and what it prints."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cli.commands import Shell
from diptych.cli import places
from diptych.cli.places import Up
from diptych.endpoint import Endpoint
from diptych.kube.remembered import Remembered
from diptych.spec import load
from fakes import nccl, probed
from fakes.provable_endpoint import MODEL, ProvableEndpoint, probing

DOCUMENT = "version: 1\nname: llm\non: {place}\nmodel: Qwen/Qwen3-8B\nnodes: {{instance_type: {types}}}\n"


@contextmanager
def up(folder: Path, place: str = "eks", types: str = "g6.8xlarge") -> Iterator[ProvableEndpoint]:
    """A service that is up at a place, as far as the commands can tell."""
    file = folder / "diptych.yaml"
    file.write_text(DOCUMENT.format(place=place, types=types))
    known = Up(
        "llm", place, None if place == "local" else Remembered(file=None, document=load(file), started_at=0.0)
    )

    with ProvableEndpoint(probing(probed.proven_on_g6)) as fake, pytest.MonkeyPatch.context() as patch:

        @contextmanager
        def reached(chosen: Up, **_: Any) -> Iterator[Endpoint]:
            assert chosen is known
            yield Endpoint(fake.url, fake.key_file(folder), MODEL)

        patch.setattr(places, "the_service", lambda *_: known)
        patch.setattr(places, "reached", reached)
        fake.behaviour.nccl = nccl.answer()
        yield fake


def asked(fake: ProvableEndpoint) -> int:
    return len([path for path, _, _ in fake.requests if path == "/diptych/v1/nccl"])


def test_it_says_what_it_costs_asks_and_stands_in_the_proof_of_speed(tmp_path: Path, shell: Shell) -> None:
    with up(tmp_path) as fake:
        refused = shell("verify", "--nccl", answer="n")
        assert (refused.code, asked(fake)) == (1, 0)
        assert "answers stall for seconds" in refused.err and "Nothing was measured." in refused.err
        nobody = shell("verify", "--nccl")
        assert (nobody.code, asked(fake)) == (2, 0)
        assert "Run it with --yes" in nobody.failure
        done = shell("verify", "--nccl", answer="y")
        assert (done.code, asked(fake)) == (0, 1), done.err
        assert "NCCL, not NIXL: all-reduce of 128 MiB over 2 nodes: 2.74 GB/s bus bandwidth, 88%" in done.out
        assert shell("verify").code == 0
        assert asked(fake) == 1


def test_what_it_finds_decides_with_the_others_and_is_told_to_programs(tmp_path: Path, shell: Shell) -> None:
    with up(tmp_path) as fake:
        fake.behaviour.nccl = nccl.answer("sockets")
        done = shell("verify", "--nccl", "--yes", "--json")
        report = json.loads(done.out)
        proofs = {each["name"]: each for each in report["proofs"]}
        assert (done.code, report["holds"], len(proofs)) == (1, False, 5)
        assert [proofs[name]["state"] for name in ("transport", "speed")] == ["holds", "fails"]
        assert any(one["what"] == "NCCL, not NIXL: network" for one in proofs["speed"]["evidence"])


def test_it_is_held_against_what_the_documents_nodes_have(tmp_path: Path, shell: Shell) -> None:
    slow = nccl.answer(output=nccl.before() + nccl.table(50.0))
    with up(tmp_path, types="p5.48xlarge") as fake:
        fake.behaviour.nccl = slow
        done = shell("verify", "--nccl", "--yes")
        assert (done.code, "12% of the 400.0 GB/s" in done.out) == (1, True), done.out


@pytest.mark.parametrize("place", ["local", "kubernetes"])
def test_elsewhere_than_on_eks_it_is_refused_by_name(place: str, tmp_path: Path, shell: Shell) -> None:
    with up(tmp_path, place) as fake:
        done = shell("verify", "--nccl", "--yes")
        assert (done.code, asked(fake)) == (2, 0)
        assert "--nccl is for services on eks" in done.failure and f"llm on {place} is none" in done.failure


def test_it_is_refused_together_with_a_watch(tmp_path: Path, shell: Shell) -> None:
    with up(tmp_path) as fake:
        done = shell("verify", "--nccl", "--watch", "--yes")
        assert (done.code, fake.requests) == (2, [])
        assert "--nccl and --watch do not go together" in done.failure
