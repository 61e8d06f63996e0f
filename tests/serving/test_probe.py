"""What the probe gathers: which prompts it sends through which pairs, and what it says of replicas that say nothing."""

import asyncio
import json
from typing import Any

import pytest

pytest.importorskip("ray.serve.llm")

from diptych.serving import copying
from diptych.serving.copying import loopback_bytes_per_s, memory_bytes_per_s
from diptych.serving.probe import (
    MOST_REPEATS,
    MOST_SIZES,
    OUT_OF_TIME,
    Probe,
    Wanted,
    problem_of,
    versions,
    wanted,
)
from fakes.phases import GENERATION, prefill_peers

TOLD = {"kv_transfer_descriptors": 60, "prefill_ms": 5.0, "prefill_queue_ms": 0.5, "why": None}


class Pairs:
    """Two sides that note the order in which they are asked."""

    def __init__(self, workers: list[dict[str, Any]] | None = None) -> None:
        self.calls: list[str] = []
        self.workers = [{"rank": 0}] if workers is None else workers
        self.answers = True

    async def attempt(self, name: str, size: int, priority: int) -> dict[str, Any]:
        self.calls.append(f"{size} from {name}")
        await asyncio.sleep(0)
        told = {"prompt_tokens": size, "ok": True, "path": "remote", "error": None}
        return told | TOLD | {"kv_transfer_bytes": size * 100, "kv_transfer_ms": 2.0}

    async def here(self) -> dict[str, Any]:
        self.calls.append("here")
        return {"phase": "decode", "replica": "decode-1", "workers": self.workers}

    async def there(self, name: str) -> dict[str, Any] | None:
        self.calls.append(f"there {name}")
        return {"phase": "prefill", "replica": name, "workers": self.workers} if self.answers else None


def probe(pairs: Pairs, *names: str, most_tokens: int = 8190) -> Probe:
    peers = prefill_peers(*names)
    return Probe(
        pairs.attempt, peers, pairs.here, pairs.there, decode_replica="decode-1", most_tokens=most_tokens
    )


def test_without_sizes_those_around_a_block_are_sent_and_a_long_one() -> None:
    assert wanted(b"", 128) == Wanted((127, 128, 129, 1000))
    assert wanted(b" {} ", 16) == Wanted((15, 16, 17, 1000))


def test_sizes_and_repeats_may_be_chosen() -> None:
    assert wanted(b'{"tokens": [1, 600], "repeat": 20}', 16) == Wanted((1, 600), 20)


@pytest.mark.parametrize(
    "body",
    [
        {"tokens": []},
        {"tokens": [0]},
        {"tokens": [1.5]},
        {"tokens": [True]},
        {"tokens": ["7"]},
        {"tokens": 7},
        {"tokens": [1] * (MOST_SIZES + 1)},
        {"tokens": [2**40]},
        {"repeat": 0},
        {"repeat": MOST_REPEATS + 1},
        {"repeat": None},
        {"token": [1]},
        [1],
        "x",
    ],
)
def test_what_can_not_be_probed_is_refused(body: Any) -> None:
    with pytest.raises(ValueError):
        wanted(json.dumps(body).encode(), 16)


def test_a_body_that_is_no_json_is_refused() -> None:
    with pytest.raises(ValueError, match="no JSON"):
        wanted(b"{", 16)


def test_each_pair_is_looked_at_before_and_after_its_prompts() -> None:
    pairs = Pairs()
    found = asyncio.run(probe(pairs, "prefill-1", "prefill-2").pairs(Wanted((15, 17), 2)))

    assert [pair["prefill_replica"] for pair in found["pairs"]] == ["prefill-1", "prefill-2"]
    sent = ["15 from", "15 from", "17 from", "17 from"]
    order = [["there", "here", *(f"{each}" for each in sent), "there", "here"] for _ in range(2)]
    said = [call.replace(" prefill-1", "").replace(" prefill-2", "") for call in pairs.calls]
    assert said == [*order[0], *order[1]]
    assert found["problems"] == []
    assert found["pairs"][0]["before"]["prefill"]["replica"] == "prefill-1"
    assert found["pairs"][0]["after"]["decode"]["phase"] == "decode"
    assert found["pairs"][0]["loopback_bytes_per_s"] > 0
    assert found["pairs"][0]["memory_bytes_per_s"] > 0


def test_a_kv_transfer_is_told_with_what_nixl_measured() -> None:
    (pair,) = asyncio.run(probe(Pairs(), "prefill-1").pairs(Wanted((17,))))["pairs"]
    assert pair["transfers"] == [
        {
            "tokens": 17,
            "ok": True,
            "path": "remote",
            "error": None,
            "why": None,
            "bytes": 1700,
            "ms": 2.0,
            "descriptors": 60,
            "prefill_ms": 5.0,
            "queue_ms": 0.5,
        }
    ]


def test_a_prompt_is_cut_to_what_the_engine_takes() -> None:
    (pair,) = asyncio.run(probe(Pairs(), "prefill-1", most_tokens=500).pairs(Wanted((17, 1000))))["pairs"]
    assert [transfer["tokens"] for transfer in pair["transfers"]] == [17, 500]


def test_two_probes_at_once_take_turns() -> None:
    """Devices count everybody's bytes."""
    pairs = Pairs()

    async def both() -> None:
        own = probe(pairs, "prefill-1")
        await asyncio.gather(own.pair("prefill-1", Wanted((1,))), own.pair("prefill-1", Wanted((2,))))

    asyncio.run(both())
    assert pairs.calls == [
        *("there prefill-1", "here", "1 from prefill-1", "there prefill-1", "here"),
        *("there prefill-1", "here", "2 from prefill-1", "there prefill-1", "here"),
    ]


def test_no_copy_is_measured_while_a_prompt_is_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would move the loopback's counters by more than the KV cache does."""
    pairs = Pairs()

    def copy() -> float:
        pairs.calls.append("copy")
        return 1e9

    monkeypatch.setattr("diptych.serving.probe.loopback_bytes_per_s", copy)

    async def both() -> None:
        own = probe(pairs, "prefill-1")
        await asyncio.gather(own.pair("prefill-1", Wanted((1,))), own.pairs(Wanted((2,))))

    asyncio.run(both())
    looks = ["there prefill-1", "here"]
    assert pairs.calls == [
        *(*looks, "1 from prefill-1", *looks, "copy"),
        *(*looks, "2 from prefill-1", *looks),
    ]


def test_a_replica_that_does_not_answer_is_a_problem_and_a_pair_all_the_same() -> None:
    pairs = Pairs()
    pairs.answers = False
    found = asyncio.run(probe(pairs, "prefill-1").pairs(Wanted((17,))))
    assert found["problems"] == ["the engine of prefill replica prefill-1 did not tell its signals"]
    (pair,) = found["pairs"]
    assert pair["before"]["prefill"]["workers"] == []
    assert len(pair["transfers"]) == 1


def test_a_replica_that_goes_away_while_it_is_probed_is_left_to_its_pair() -> None:
    pairs = Pairs()
    attempt = pairs.attempt

    async def going(name: str, size: int, priority: int) -> dict[str, Any]:
        pairs.answers = False
        return await attempt(name, size, priority)

    pairs.attempt = going  # type: ignore[method-assign]
    found = asyncio.run(probe(pairs, "prefill-1").pairs(Wanted((17,))))
    assert found["problems"] == []
    assert found["pairs"][0]["after"]["prefill"]["engine_pid"] is None


def test_prefill_of_another_generation_is_told_as_that_and_what_is_about_to_go_is_not_told() -> None:
    own = probe(Pairs(), "prefill-1", "prefill-2", "prefill-3")
    _, other, third = own._peers
    other.generation = "0ld"
    assert (
        problem_of(other, GENERATION) == f"prefill replica prefill-2 is of generation 0ld, not {GENERATION}"
    )
    third.ready = False
    found = asyncio.run(own.pairs(Wanted((17,))))
    assert found["problems"] == [
        f"prefill replica prefill-2 is of generation 0ld, not {GENERATION}",
        "prefill replica prefill-3 is not ready",
    ]
    assert [pair["prefill_replica"] for pair in found["pairs"]] == ["prefill-1"]
    third.draining = True
    assert problem_of(third, GENERATION) is None


def test_a_deadline_follows_from_the_sizes() -> None:
    assert Wanted((17,)).deadline_s < Wanted((1000,)).deadline_s < Wanted((1000,), 5).deadline_s
    assert Wanted((1000,) * 3).deadline_s == 81.0


def test_what_was_seen_until_the_deadline_is_told_and_what_was_not_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Wanted, "deadline_s", 0.2)
    pairs, left = Pairs(), []
    attempt = pairs.attempt

    async def stuck(name: str, size: int, priority: int) -> dict[str, Any]:
        if size == 17:
            try:
                await asyncio.sleep(60)
            finally:
                left.append(size)
        return await attempt(name, size, priority)

    pairs.attempt = stuck  # type: ignore[method-assign]
    (pair,) = asyncio.run(probe(pairs, "prefill-1").pairs(Wanted((15, 17, 1000))))["pairs"]
    assert [(one["tokens"], one["ok"]) for one in pair["transfers"]] == [
        (15, True),
        (17, False),
        (1000, False),
    ]
    assert pair["transfers"][2]["error"] == f"{OUT_OF_TIME}: 0 s for 3 prompts"
    assert left == [17]  # nobody waits for it any longer
    assert pair["after"]["prefill"]["workers"]


def test_without_a_prefill_replica_it_says_so() -> None:
    found = asyncio.run(probe(Pairs()).pairs(Wanted((17,))))
    assert found == {
        "pairs": [],
        "problems": ["decode replica decode-1 sees no prefill replica that is ready"],
    }


def test_the_versions_of_both_engines_are_told() -> None:
    assert {"python", "ray", "vllm", "nixl"} <= versions().keys()


def test_copies_are_measured() -> None:
    assert memory_bytes_per_s() > 1e8
    assert (loopback_bytes_per_s() or 0) > 1e7


def test_without_a_loopback_there_is_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError("Network is unreachable")

    monkeypatch.setattr(copying.socket, "create_connection", refuse)
    assert loopback_bytes_per_s() is None
