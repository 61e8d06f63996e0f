"""Two prefill replicas on real engines: both work, each for what it has cached, and one goes without a refusal."""

import contextlib
import random
import time
from collections.abc import Iterator

import psutil
import pytest

from engines.placed import (
    REMOTE,
    PlacedService,
    ask,
    asking,
    busy,
    held,
    is_alive,
    placed,
    waiting_for_decode,
)
from engines.service import kill, rise, seconds_until
from engines.test_kv_transfer import BLOCK_TOKENS, unseen_prompt

pytestmark = [pytest.mark.engines, pytest.mark.long, pytest.mark.load]

TWO = {
    "engine_kwargs.max_model_len": 2048,
    "prefill.num_replicas": 2,
    "decode.engine_kwargs.max_num_seqs": 1,
}
REPLACED_WITHIN_S = 90.0


@pytest.fixture(scope="module")
def two() -> Iterator[PlacedService]:
    with placed(TWO) as service:
        yield service


def test_both_prefill_replicas_get_work(two: PlacedService) -> None:
    with asking(two, [unseen_prompt(300) for _ in range(6)], REMOTE) as asked:
        pass
    told = [each.result() for each in asked]
    assert {each.path for each in told} == {"remote"}
    assert {each.record["prefill_replica"] for each in told} == set(two.prefill())


def test_a_conversation_goes_on_where_its_beginning_is_cached(two: PlacedService) -> None:
    for names_other in (False, True):
        said = unseen_prompt(3 * BLOCK_TOKENS)
        with contextlib.ExitStack() as stack:
            if names_other:  # the one that is asked first is busy when this conversation begins
                others = stack.enter_context(asking(two, [unseen_prompt(1000)], REMOTE))
                busy(two, 1000)
            first = ask(two, said, headers=REMOTE).record
        if names_other:
            assert first["prefill_replica"] != others[0].result().record["prefill_replica"]
        for _ in range(3):
            said = [*said, *unseen_prompt(BLOCK_TOKENS)]
            told = ask(two, said, headers=REMOTE).record
            assert told["prefill_replica"] == first["prefill_replica"]
            assert told["uncached_tokens"] == BLOCK_TOKENS


def test_when_one_prefill_replica_is_killed_the_other_serves_without_a_refusal(two: PlacedService) -> None:
    victim = random.choice(two.ready())
    engine = psutil.Process(two.prefill()[victim]["engine_pid"])
    with asking(two, [unseen_prompt(500) for _ in range(6)], REMOTE) as lost:
        busy(two, 6 * 500)
        kill(engine)
    after = [ask(two, unseen_prompt(200), headers=REMOTE) for _ in range(3)]
    told = [each.result() for each in lost]
    print(f"\n{[str(each) for each in told]}")
    assert {each.status for each in told + after} == {200}
    assert {each.path for each in told + after} <= {"remote", "recovered"}
    assert victim not in {each.record["prefill_replica"] for each in after}
    took = seconds_until(lambda: len(two.ready()) == 2, REPLACED_WITHIN_S, every_s=1)
    print(f"two again after {took:.1f} s")


def test_a_prefill_replica_that_is_taken_away_finishes_its_prompts_and_waits_until_their_kv_cache_is_fetched(
    two: PlacedService,
) -> None:
    before = two.prefill()
    assert len(two.ready()) == 2
    with contextlib.ExitStack() as stack:
        serve = stack.enter_context(two.serve())
        the_one_place = stack.enter_context(contextlib.ExitStack())
        the_one_place.enter_context(held(two, [900]))
        computed = stack.enter_context(asking(two, [unseen_prompt(300) for _ in range(4)], REMOTE))
        waiting_for_decode(two, 4)
        assert {name for name, each in two.prefill().items() if each["counters"]["kv_cache_usage"]} == set(
            before
        )
        computing = stack.enter_context(asking(two, [unseen_prompt(1800) for _ in range(2)], REMOTE))
        busy(two, 2 * 1800)
        serve("scale_prefill_to_one")
        (leaving,) = leaving_of(two, set(before))
        engine = before[leaving]["engine_pid"]
        time.sleep(6)  # Serve takes one that holds nothing away in less
        assert is_alive(engine)
        the_one_place.close()
        fetched_from = time.monotonic()
        told = [each.result() for each in (*computed, *computing)]
    seconds_until(lambda: not is_alive(engine), 15)
    print(
        f"\n{[str(each) for each in told]}, gone {time.monotonic() - fetched_from:.1f} s after decode went on"
    )
    assert {(each.status, each.path) for each in told} == {(200, "remote")}
    for futures in (computed, computing):
        assert {each.result().record["prefill_replica"] for each in futures} == set(before)
    assert ask(two, unseen_prompt(300), headers=REMOTE).record["prefill_replica"] != leaving


def leaving_of(service: PlacedService, names: set[str]) -> set[str]:
    """The replicas that are being taken away, once there are some."""

    def leaving() -> set[str]:
        told = service.prefill()
        return {name for name in names if name not in told or told[name]["draining"]}

    seconds_until(lambda: bool(leaving()), 20)
    return leaving()


def test_decode_uses_no_prefill_replica_of_other_settings(two: PlacedService) -> None:
    decode = two.phases()["decode"][0]["generation"]
    with two.serve() as serve:
        answer = serve("ask_prefill")
        assert answer["kv_transfer_params"] is None
        assert answer["problem"] == f"it is of generation {decode}"
        serve("replace_prefill_by_other_settings")

    def other() -> bool:
        return {(each["ready"], each["generation"] != decode) for each in two.phases()["prefill"]} == {
            (True, True)
        }

    seconds_until(other, REPLACED_WITHIN_S, every_s=1)
    before = two.settled_counters()
    told = [ask(two, unseen_prompt(300), headers=REMOTE) for _ in range(3)]
    assert {(each.status, each.path) for each in told} == {(200, "local-no-prefill")}
    assert rise(before["prefill"], two.settled_counters()["prefill"]) == {}
    assert two.phases()["decode"][0]["generation"] == decode
    readiness = two.readiness()
    assert (readiness["state"], readiness["why"]) == ("degraded", "no prefill replica is ready")
    assert [pair["same_generation"] for pair in readiness["pairs"] if pair["ready"]] == [False]
