"""Where prefill runs, what may wait, and what happens when prefill is lost: on real engines, with small bounds."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from engines.placed import (
    REMOTE,
    PlacedService,
    Told,
    ask,
    asking,
    busy,
    held,
    idle,
    placed,
    waiting_for_decode,
)
from engines.service import kill, rise, seconds_until
from engines.test_kv_transfer import BLOCK_TOKENS, unseen_prompt

pytestmark = [pytest.mark.engines, pytest.mark.long, pytest.mark.load]

SLOTS = 2
RECOVERY_S = 2.0
SHARE = 0.25
QUEUE, QUEUE_TOKENS, DECODE_QUEUE = 6, 6000, 8
SMALL = {
    "engine_kwargs.max_model_len": 4096,
    "decode.engine_kwargs.max_num_seqs": SLOTS,
    "orchestrator.local_prefill_share": SHARE,
    "orchestrator.recovery_backlog_s": RECOVERY_S,
    "orchestrator.queues.prefill.requests": QUEUE,
    "orchestrator.queues.prefill.tokens": QUEUE_TOKENS,
    "orchestrator.queues.decode.requests": DECODE_QUEUE,
}
AT_ONCE_S = 1.0
"""A refusal takes no longer, though both cores are busy."""


@pytest.fixture(scope="module")
def small() -> Iterator[PlacedService]:
    with placed(SMALL) as service:
        yield service


def check_refusal(told: Told, status: int, words: str) -> None:
    assert told.status == status, told.body
    assert words in told.error["message"]
    assert int(told.headers["retry-after"]) >= 1
    assert told.seconds < AT_ONCE_S


def until_a_short_prompt_stays(small: PlacedService) -> None:
    """What prefill costs here is measured: on a machine with other work the first measurements may be far too high."""
    asked = (ask(small, unseen_prompt(4)).path for _ in range(20))
    assert "local-short" in asked


def test_a_short_prompt_is_computed_on_decode_and_a_long_one_on_prefill(small: PlacedService) -> None:
    until_a_short_prompt_stays(small)
    before = small.settled_counters()
    short = ask(small, unseen_prompt(4))
    between = small.settled_counters()
    long = ask(small, unseen_prompt(700))
    after = small.settled_counters()

    assert (short.path, short.record["uncached_tokens"]) == ("local-short", 4), short.record
    assert rise(before["prefill"], between["prefill"]) == {}
    assert rise(before["decode"], between["decode"])["local_compute_tokens"] == 4
    assert (long.path, long.record["uncached_tokens"]) == ("remote", 700), long.record
    assert rise(between["prefill"], after["prefill"])["local_compute_tokens"] == 700
    assert rise(between["decode"], after["decode"])["external_kv_tokens"] == 700


def test_a_long_prompt_that_decode_has_in_its_prefix_cache_is_computed_there(small: PlacedService) -> None:
    beginning = unseen_prompt(5 * BLOCK_TOKENS)
    assert ask(small, [*beginning, *unseen_prompt(7)]).path == "remote"
    before = small.settled_counters()
    again = ask(small, [*beginning, *unseen_prompt(3)])
    after = small.settled_counters()

    assert (again.path, again.record["uncached_tokens"]) == ("local-short", 3), again.record
    assert again.body["usage"]["prompt_tokens"] == len(beginning) + 3
    assert rise(before["prefill"], after["prefill"]) == {}
    decode = rise(before["decode"], after["decode"])
    assert (decode["local_compute_tokens"], decode["local_cache_tokens"]) == (3, len(beginning))


def test_while_prefill_has_a_queue_decode_computes_a_share_of_what_comes(small: PlacedService) -> None:
    with held(small, [1] * 5, 1100, begun=False, headers=REMOTE):
        busy(small, 5 * 1100)
        began, probes = time.monotonic(), list[Told]()
        while time.monotonic() - began < 9 and not (probes and probes[-1].path == "remote"):
            probes.append(ask(small, unseen_prompt(100)))
    paths = [probe.path for probe in probes]
    local = [probe for probe in probes if probe.path == "local-busy"]
    print(f"\n{[str(probe) for probe in probes]}")
    assert paths[0] == "local-busy"
    assert paths[-1] == "remote", "decode took all of it"
    assert probes[-1].seconds > max(probe.seconds for probe in local), "prefill had no queue any more"
    assert set(paths) == {"local-busy", "remote"}
    assert sum(probe.seconds for probe in local) / 10 < 2 * SHARE
    assert {probe.record["uncached_tokens"] for probe in local} == {100}


@pytest.mark.parametrize(
    ("waiting", "tokens"), [(QUEUE, 600), (QUEUE - 2, 1400)], ids=["by prompts", "by tokens"]
)
def test_beyond_the_bound_of_prefills_queue_a_prompt_is_refused_at_once(
    small: PlacedService, waiting: int, tokens: int
) -> None:
    with held(small, [1] * waiting, tokens, begun=False, headers=REMOTE):
        busy(small, waiting * tokens)
        check_refusal(ask(small, unseen_prompt(1400)), 429, "queue of prefill is full")
    idle(small)
    assert ask(small, unseen_prompt(700), headers=REMOTE).path == "remote"


def test_beyond_the_bound_of_decodes_queue_a_prompt_is_refused_at_once_and_prefill_not_asked(
    small: PlacedService,
) -> None:
    with held(small, [400] * SLOTS), held(small, [400] * DECODE_QUEUE, begun=False):
        waiting_for_decode(small, DECODE_QUEUE)
        before = small.settled_counters()
        check_refusal(ask(small, unseen_prompt(4)), 429, "queue of decode is full")
        check_refusal(ask(small, unseen_prompt(700)), 429, "queue of decode is full")
        assert rise(before["prefill"], small.settled_counters()["prefill"]) == {}
    seconds_until(lambda: small.counters()["decode"]["requests_running"] == 0, 10)
    assert ask(small, unseen_prompt(4)).status == 200


def test_a_request_whose_time_is_up_is_told_so_in_time_and_leaves_the_queue(small: PlacedService) -> None:
    with held(small, [400] * SLOTS):
        told = ask(small, unseen_prompt(4), headers={"x-request-timeout": "1.5"})
        assert (told.status, told.error["type"]) == (504, "timeout_error")
        assert 1.5 <= told.seconds < 1.5 + AT_ONCE_S
        waiting_for_decode(small, 0)


def test_a_prompt_beyond_the_context_is_refused_for_good(small: PlacedService) -> None:
    told = ask(small, unseen_prompt(5000))
    assert told.status == 400
    assert "4096" in told.error["message"]
    assert "retry-after" not in told.headers


def test_waiting_requests_are_served_by_their_keys_priority_which_a_header_only_lowers(
    small: PlacedService,
) -> None:
    own = small.key
    asked = [
        ("dk-low priority=10", {"x-diptych-priority": "-100"}),
        ("dk-low priority=10", {}),
        ("dk-high priority=-5", {"x-diptych-priority": "20"}),
        ("dk-high priority=-5", {}),
    ]
    small.key_file.write_text("\n".join([own, *{line for line, _ in asked}]))
    try:
        with held(small, [500, 300], key=own), ThreadPoolExecutor(len(asked)) as pool:
            waiting = []
            for line, headers in asked:
                prompt = unseen_prompt(4)
                waiting.append(pool.submit(ask, small, prompt, 4, key=line.split()[0], headers=headers))
                waiting_for_decode(small, len(waiting))
            told = [each.result() for each in waiting]
    finally:
        small.key_file.write_text(own + "\n")
    assert {each.status for each in told} == {200}
    assert sorted(range(len(asked)), key=lambda at: told[at].ended_at) == [3, 0, 1, 2]


def test_with_prefill_lost_decode_takes_on_so_much_and_refuses_the_rest(small: PlacedService) -> None:
    engine = small.engine("prefill")
    with asking(small, [unseen_prompt(500) for _ in range(QUEUE)], REMOTE) as lost:
        busy(small, QUEUE * 500)
        kill(engine)
    seconds_until(lambda: not small.ready(), 10)
    with asking(small, [unseen_prompt(500) for _ in range(QUEUE)]) as later:
        pass
    for what, futures, path in (("in flight", lost, "recovered"), ("later", later, "local-no-prefill")):
        told = [each.result() for each in futures]
        print(f"\n{what}: {[str(each) for each in told]}")
        answered = [each for each in told if each.status == 200 and each.path == path]
        refused = [each for each in told if each.status != 200]
        assert answered
        assert refused
        assert {each.path for each in told if each.status == 200} <= {path, "remote"}
        for each in refused:
            assert (each.status, each.error["type"]) == (503, "service_unavailable")
            assert int(each.headers["retry-after"]) >= 1
        assert max(each.seconds for each in told) < 30
