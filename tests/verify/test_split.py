"""The split is proven by what the engines counted: every token from outside, from another process, and nothing else."""

from copy import deepcopy
from typing import Any

import pytest

from diptych.verify import split, transport
from fakes import probed
from fakes.probed import answer

LENGTHS = (15, 16, 17, 1000)


def told(**fields: Any) -> Any:
    fresh = probed.pair(probed.ucx(), probed.ucx(), {}, tokens=LENGTHS, hosts=("127.0.0.1", "127.0.0.1"))
    return answer(probed.UCX_HERE, fresh, **fields)


def evidence(proof: Any) -> dict[str, tuple[str, str]]:
    return {one.what: (one.value, one.verdict) for one in proof.evidence}


def test_it_holds_when_decode_received_all_tokens_and_prefill_produced_one_each() -> None:
    proof = split.prove(told())
    assert (proof.state, proof.says) == (
        "holds",
        "All 1048 tokens of 4 prompts came to decode from another process, through one pair.",
    )
    seen = evidence(proof)
    assert seen["decode received, of 1048 tokens"] == ("1048", "agrees")
    assert seen["tokens that prefill produced, for 4 prompts"] == ("4", "agrees")
    assert seen["prompts of 15, 16, 17, 1000 tokens"] == ("4 of 4 on path remote", "agrees")


def test_of_a_recurrent_model_decode_receives_one_token_less_of_each() -> None:
    probe = told(recurrent=True)
    assert split.prove(probe).state == "fails"
    probe["pairs"][0]["after"]["decode"]["counters"]["external_kv_tokens"] -= 4
    assert split.prove(probe).state == "holds"


@pytest.mark.parametrize(
    ("side", "counter", "change"),
    [
        ("decode", "external_kv_tokens", -1),
        ("decode", "external_kv_tokens", +1),
        ("prefill", "generation_tokens", +1),
        ("prefill", "generation_tokens", -1),
        ("prefill", "prompt_tokens", -16),
    ],
)
def test_a_single_token_too_many_or_too_few_fails(side: str, counter: str, change: int) -> None:
    probe = told()
    probe["pairs"][0]["after"][side]["counters"][counter] += change
    assert split.prove(probe).state == "fails"


def test_other_traffic_makes_counts_lower_bounds_and_is_said() -> None:
    probe = told()
    after = probe["pairs"][0]["after"]
    after["decode"]["counters"]["requests_finished"] += 2
    after["decode"]["counters"]["external_kv_tokens"] += 300
    proof = split.prove(probe)
    assert proof.state == "holds"
    assert evidence(proof)["other traffic meanwhile"] == (
        "2 more requests finished on decode; counts are lower bounds",
        "silent",
    )
    after["decode"]["counters"]["external_kv_tokens"] -= 301
    proof = split.prove(probe)
    assert (proof.state, proof.says) == (
        "warns",
        "Decode received, of 1048 tokens: 1047; other requests were running: 2 more requests finished on decode.",
    )


@pytest.mark.parametrize("counter", ["requests_running", "requests_waiting"])
def test_counters_fail_nothing_while_other_requests_are_inside_an_engine(counter: str) -> None:
    probe = told()
    counters = probe["pairs"][0]["after"]["decode"]["counters"]
    counters["external_kv_tokens"] += 300
    assert split.prove(probe).state == "fails"
    counters[counter] = 1.0
    assert split.prove(probe).state == "holds"
    counters["external_kv_tokens"] -= 301
    assert split.prove(probe).state == "warns"


def test_beside_other_requests_a_prompt_that_did_not_cross_fails_all_the_same() -> None:
    asked, pair = probed.recomputed()
    pair["after"]["decode"]["counters"]["requests_running"] = 2.0
    assert split.prove(answer(asked, pair)).state == "fails"


@pytest.mark.parametrize("last", [None, 99])
def test_an_engine_that_went_away_meanwhile_proves_nothing_and_fails_no_other_pair(last: int | None) -> None:
    probe = told()
    gone = deepcopy(probe["pairs"][0]) | {"prefill_replica": "prefill-2"}
    for when in ("before", "after"):
        gone[when]["prefill"] |= {"replica": "prefill-2", "counters": {}}
    gone["after"]["prefill"]["engine_pid"] = last
    gone["transfers"][0] |= {"ok": False, "path": "recovered", "bytes": None}
    alone = split.prove(probe | {"pairs": [gone]})
    assert (alone.state, alone.says) == (
        "fails",
        "Nothing was split: prefill replica prefill-2 went away meanwhile.",
    )
    beside = split.prove(probe | {"pairs": [*probe["pairs"], gone]})
    assert (beside.state, beside.says) == (
        "warns",
        "Prefill replica prefill-2: it went away meanwhile: not compared.",
    )
    asked = probed.proven_on_g6()
    assert transport.prove(answer(asked[0], asked[1], gone)).state == "holds"


def test_a_prompt_that_decode_computed_itself_fails_with_its_path_and_reason() -> None:
    asked, pair = probed.recomputed()
    proof = split.prove(answer(asked, pair))
    assert proof.state == "fails"
    assert proof.says == "A prompt of 17 tokens: path recovered: the KV transfer failed."
    assert evidence(proof)["decode received, of 1017 tokens"] == ("0", "contradicts")


def test_phases_in_one_process_fail() -> None:
    probe = told()
    for when in ("before", "after"):
        sides = probe["pairs"][0][when]
        for name in ("pid", "engine_pid", "workers"):
            sides["prefill"][name] = sides["decode"][name]
    assert evidence(split.prove(probe))["engine processes"][1] == "contradicts"


def test_the_same_process_ids_on_two_hosts_are_two_processes() -> None:
    asked, pair = probed.proven_on_g6()
    pair["after"]["prefill"] |= {"pid": 20, "engine_pid": 21}
    for when in ("before", "after"):
        pair[when]["prefill"] |= {"pid": 20, "engine_pid": 21}
    assert split.prove(answer(asked, pair)).state == "holds"


def test_nodes_in_two_zones_fail_and_one_node_for_both_of_several_warns() -> None:
    asked, pair = probed.proven_on_g6()
    apart = deepcopy(pair)
    apart["after"]["decode"]["zone"] = "us-east-2b"
    assert split.prove(answer(asked, apart)).state == "fails"
    beside = deepcopy(pair)
    beside["after"]["decode"] |= {"node_name": "n1"}
    beside["after"]["prefill"] |= {"node_name": "n1"}
    assert split.prove(answer(asked, beside)).state == "holds"
    elsewhere = deepcopy(pair)
    elsewhere["after"]["decode"] |= {"node_name": "n2"}
    proof = split.prove(answer(asked, beside, elsewhere))
    assert proof.state == "warns"
    assert "both on n1, though replicas are on" in proof.says


def test_without_a_pair_the_reason_is_the_services_own() -> None:
    problem = "decode replica d1 sees no prefill replica that is ready"
    proof = split.prove(answer(probed.UCX_HERE, problems=[problem]))
    assert (proof.state, proof.says) == ("fails", f"Nothing was split: {problem}.")


def test_a_replica_that_did_not_answer_fails_beside_pairs_that_hold() -> None:
    probe = told(problems=["decode replica d2 did not answer"])
    proof = split.prove(probe)
    assert proof.state == "fails"
    assert "d2 did not answer" in proof.says
