"""A decode replica's proofs: of all replicas' pairs, and what the cluster remembers of a generation."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray.serve.llm")

from diptych.serving import prover as provers
from diptych.serving.access import _WHOLE_NUMBER
from diptych.serving.asked import transport_of
from diptych.serving.canary import Canary as RealCanary
from diptych.serving.orchestrate import Orchestrator
from diptych.serving.probe import Wanted, wanted
from diptych.serving.prover import Prover
from diptych.serving.record import LOWEST_PRIORITY
from diptych.serving.settings import Settings
from fakes.phases import GENERATION, Client, PrefillHandle, prefill_peers

WORKER = {"rank": 0, "backends": ["UCX"], "libraries": ["libplugin_UCX.so"], "device_counters": {}}


class Cluster:
    """What the replicas and the cluster's memory say; in place of Ray."""

    def __init__(self) -> None:
        self.remembered: set[str] = set()
        self.asked: list[tuple[Any, ...]] = []
        self.waited: list[tuple[str, float]] = []
        self.siblings = {"decode-2"}

    async def ask_replicas(
        self, handle: Any, method: str, *arguments: Any, within_s: float, only: str
    ) -> list[dict[str, Any]]:
        await asyncio.sleep(0)
        self.asked.append((handle, method, only, *arguments))
        self.waited.append((method, within_s))
        if method == "signals":
            return [{"phase": "prefill", "replica": only, "workers": [WORKER]}]
        pairs = [{"decode_replica": only, "transfers": []}]
        return [{"pairs": pairs, "problems": ["a problem there"]}] if only in self.siblings else []


class Replica:
    replica_name = "decode-1"
    generation = GENERATION

    async def signals(self) -> dict[str, Any]:
        return {"phase": "decode", "replica": self.replica_name, "workers": [WORKER]}


class Canary:
    """Prompts that cross at once."""

    def __init__(self, peers: Any) -> None:
        self._peers = peers

    async def attempt(self, name: str, size: int, priority: int) -> dict[str, Any]:
        self._peers.transferred(self._peers.get(name))
        fields = (
            "error",
            "why",
            "kv_transfer_ms",
            "kv_transfer_descriptors",
            "prefill_ms",
            "prefill_queue_ms",
        )
        told = {"prompt_tokens": size, "ok": True, "path": "remote", "kv_transfer_bytes": 700}
        return dict.fromkeys(fields) | told

    def carried_nothing(self, peer: Any) -> bool:
        return False


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    own = Cluster()
    monkeypatch.setattr(provers, "ask_replicas", own.ask_replicas)
    monkeypatch.setattr(provers, "remember", own.remembered.add)
    monkeypatch.setattr(provers, "remembers", own.remembered.__contains__)
    return own


def prover(prefill: str = "auto", kv_cache_tokens: int | None = None, **transport: Any) -> Prover:
    transfer = SimpleNamespace(kv_buffer_device="cpu", get_from_extra_config=lambda _, default: default)
    config = SimpleNamespace(
        kv_transfer_config=transfer,
        cache_config=SimpleNamespace(kv_cache_size_tokens=kv_cache_tokens),
        model_config=SimpleNamespace(max_model_len=512, is_hybrid=False, has_inner_state=False),
    )
    peers = prefill_peers("prefill-1")
    runner: Any = SimpleNamespace(peers=peers, block_tokens=16, settings=Settings(prefill=prefill))
    return Prover(
        Replica(),
        SimpleNamespace(vllm_config=config),
        runner,
        Canary(peers),  # type: ignore[arg-type]
        prefill_handle="prefill",
        transport=transport_of(transport),
        application="diptych",
        model="m",
    )


async def ask_nobody() -> None:
    await asyncio.sleep(0)


def test_the_pairs_of_all_decode_replicas_are_told_together(cluster: Cluster) -> None:
    told = asyncio.run(prover().answer(b'{"tokens": [17], "repeat": 2}', "decode", ["decode-2", "decode-3"]))
    assert [pair["decode_replica"] for pair in told["pairs"]] == ["decode-1", "decode-2"]
    assert told["problems"] == ["a problem there", "decode replica decode-3 did not answer"]
    assert cluster.asked[-1] == ("decode", "probe_here", "decode-3", [17], 2)
    assert (told["asked"]["backend"], told["block_tokens"], told["model"]) == ("UCX", 16, "m")


@pytest.mark.parametrize(("held", "most"), [(None, 510), (256, 254), (10_000, 510)])
def test_a_prompt_is_no_longer_than_the_model_and_its_kv_cache_take(
    cluster: Cluster, held: int | None, most: int
) -> None:
    told = asyncio.run(prover(kv_cache_tokens=held).answer(b'{"tokens": [1000]}', "decode", []))
    assert [transfer["tokens"] for transfer in told["pairs"][0]["transfers"]] == [most]


def test_the_other_decode_replicas_have_as_long_as_their_pairs_may_take(cluster: Cluster) -> None:
    own = prover()
    asyncio.run(own.answer(b'{"tokens": [17]}', "decode", ["decode-2"]))
    asyncio.run(own.answer(b'{"tokens": [17], "repeat": 20}', "decode", ["decode-2"]))
    short, long = (within_s for method, within_s in cluster.waited if method == "probe_here")
    one_pair = Wanted((17,)).deadline_s
    assert one_pair < short < long


def test_a_proven_generation_is_remembered_with_what_was_asked_for(cluster: Cluster) -> None:
    asyncio.run(prover().pass_gate(ask_nobody))
    (key,) = cluster.remembered
    assert key == f"proven/diptych/{GENERATION}/UCX/None/False"


def test_another_transport_is_another_thing_to_prove(cluster: Cluster) -> None:
    asyncio.run(prover().pass_gate(ask_nobody))
    with pytest.raises(RuntimeError, match="was asked for"):
        asyncio.run(prover(backend="LIBFABRIC").pass_gate(ask_nobody))
    assert len(cluster.remembered) == 1


def test_who_never_asks_prefill_starts_without_a_proof(cluster: Cluster) -> None:
    asyncio.run(prover(prefill="never").pass_gate(ask_nobody))
    assert (cluster.asked, cluster.remembered) == ([], set())


def test_prompts_of_a_probe_come_after_those_of_every_client_and_those_of_a_start_beside_them() -> None:
    def priorities(priority: int) -> tuple[int, int]:
        client, handle = Client(), PrefillHandle()
        runner = Orchestrator(client, handle, prefill_peers("prefill-1"))
        asyncio.run(RealCanary(runner, 60.0).attempt("prefill-1", 17, priority))
        return handle.asked[0]["priority"], client.asked[0].more["priority"]

    assert priorities(wanted(b"", 16).priority) == (LOWEST_PRIORITY, LOWEST_PRIORITY)
    light = prover().proof._light
    assert (priorities(light.priority), light.tokens) == ((0, 0), (257,))
    assert _WHOLE_NUMBER.fullmatch(str(LOWEST_PRIORITY)) is None  # no client can ask for it


def test_a_prefill_replica_too_busy_for_a_prompt_of_a_probe_is_not_put_aside() -> None:
    def is_aside(priority: int) -> bool:
        peers = prefill_peers("prefill-1")
        runner = Orchestrator(Client(), PrefillHandle(TimeoutError()), peers)
        assert not asyncio.run(RealCanary(runner, 60.0).attempt("prefill-1", 17, priority))["ok"]
        return any(peer.is_aside() for peer in peers)

    assert not is_aside(LOWEST_PRIORITY)
    assert is_aside(0)
