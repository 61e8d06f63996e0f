"""All proofs of one endpoint, over real HTTP against one without a model."""

from pathlib import Path

import pytest

from diptych.endpoint import Endpoint
from diptych.errors import EndpointError
from diptych.verify import idle
from diptych.verify.proof import NAMES, Proof, Report
from diptych.verify.run import Verification, changes
from fakes import probed
from fakes.provable_endpoint import KEY, MODEL, ProvableEndpoint, probing


def verified(endpoint: Endpoint, *, light: bool = False, allow_fallback: bool = False) -> Report:
    with Verification(endpoint, allow_fallback=allow_fallback) as verification:
        for _ in verification.steps(light=light):
            pass
        return verification.report()


def states(report: Report) -> dict[str, str]:
    return {proof.name: proof.state for proof in report.proofs}


def the(report: Report, name: str) -> Proof:
    return next(proof for proof in report.proofs if proof.name == name)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle.prove, "__defaults__", (0.4,))


def test_all_proofs_hold_one_by_one_each_announced_before_it_is_made(
    endpoint: Endpoint, fake: ProvableEndpoint
) -> None:
    with Verification(endpoint) as verification:
        steps = list(verification.steps())
        report = verification.report()
    assert [step for step in steps if isinstance(step, str)] == list(NAMES)
    assert [step.name for step in steps[1::2] if isinstance(step, Proof)] == list(NAMES)
    assert set(states(report).values()) == {"holds"}
    assert report.holds
    assert all(proof.evidence and proof.otherwise for proof in report.proofs)


def test_prompts_lie_around_the_block_that_the_first_one_told_of(
    endpoint: Endpoint, fake: ProvableEndpoint
) -> None:
    fake.behaviour.probe = probing(probed.ucx_here, block_tokens=528)
    verified(endpoint)
    assert fake.behaviour.asked == [
        {"tokens": [17], "repeat": 1},
        {"tokens": [527, 528, 529, 2112, 2112, 2112], "repeat": 1},
    ]


def test_a_light_run_sends_one_prompt_through_each_pair_and_one_both_ways(
    endpoint: Endpoint, fake: ProvableEndpoint
) -> None:
    assert verified(endpoint, light=True).holds
    assert [one["tokens"] for one in fake.behaviour.asked] == [[257]]
    assert [way for way, _ in fake.salts()] == ["local", "remote"]


def test_no_way_may_find_the_others_kv_cache(endpoint: Endpoint, fake: ProvableEndpoint) -> None:
    verified(endpoint)
    of_way = {way: {salt for each, salt in fake.salts() if each == way} for way in ("local", "remote")}
    assert not of_way["local"] & of_way["remote"]
    assert len({salt for _, salt in fake.salts()}) == len(fake.salts()) - 2  # two turns share theirs, twice


@pytest.mark.parametrize("kind", probed.KINDS["contradicted"])
def test_a_contradicted_transport_fails_and_is_put_up_with_only_where_that_is_allowed(
    kind: object, endpoint: Endpoint, fake: ProvableEndpoint
) -> None:
    fake.behaviour.probe = probing(kind)  # type: ignore[arg-type]
    report = verified(endpoint)
    assert states(report)["transport"] == "fails"
    assert not report.holds
    allowed = verified(endpoint, allow_fallback=True)
    assert states(allowed)["transport"] == "warns"
    assert "A fallback is allowed here" in the(allowed, "transport").do


def test_the_document_may_allow_a_fallback_too(endpoint: Endpoint, fake: ProvableEndpoint) -> None:
    probe = probing(probed.tcp_for_efa)

    def allowing(tokens: list[int]) -> dict[str, object]:
        told = probe(tokens)
        return told | {"asked": told["asked"] | {"allow_fallback": True}}

    fake.behaviour.probe = allowing
    assert states(verified(endpoint))["transport"] == "warns"


def test_a_kv_cache_that_never_came_fails_the_split_and_leaves_the_transport_unproven(
    endpoint: Endpoint, fake: ProvableEndpoint
) -> None:
    fake.behaviour.probe = probing(probed.recomputed)
    fake.behaviour.path = ("recovered", "the KV transfer failed")
    report = verified(endpoint)
    assert states(report) == {
        "split": "fails",
        "transport": "fails",
        "speed": "skipped",
        "answers": "fails",
        "idle": "holds",
    }
    assert len(fake.behaviour.asked) == 1  # what fails slowly is not tried again
    assert the(report, "answers").says == (
        "The answers differ: 1 token, remote: path recovered: the KV transfer failed."
    )


def test_a_first_other_token_fails_unless_both_were_nearly_as_probable(
    endpoint: Endpoint, fake: ProvableEndpoint
) -> None:
    fake.behaviour.wrong_after = 2
    assert verified(endpoint).holds  # -0.5 and -0.6 on both ways
    fake.behaviour.knows_other = False
    report = verified(endpoint)
    assert states(report)["answers"] == "fails"
    assert "token 3 is" in the(report, "answers").says


def test_lost_prefill_is_told_as_that(endpoint: Endpoint, fake: ProvableEndpoint) -> None:
    problem = "decode replica decode-1 sees no prefill replica that is ready"
    fake.behaviour.probe = lambda tokens: probed.answer(probed.UCX_HERE, problems=[problem])
    fake.behaviour.path = ("local-no-prefill", "no prefill replica is ready")
    report = verified(endpoint)
    assert the(report, "split").says == f"Nothing was split: {problem}."
    assert states(report)["transport"] == "skipped"
    assert not report.holds


def test_kv_cache_that_stays_in_use_fails_and_one_that_empties_in_time_holds(
    endpoint: Endpoint, fake: ProvableEndpoint
) -> None:
    fake.behaviour.usage = {"prefill": (0.1, 0.3, 0.1)}
    assert verified(endpoint).holds
    fake.behaviour.looks, fake.behaviour.usage = 0, {"prefill": (0.1, 0.3)}
    report = verified(endpoint)
    assert states(report)["idle"] == "fails"
    assert "30.00%, 10.00% before" in the(report, "idle").says
    fake.behaviour.looks, fake.behaviour.running = 0, 2
    assert states(verified(endpoint))["idle"] == "warns"  # somebody else's requests


@pytest.mark.parametrize("what", ["expired", "failed"])
def test_what_went_wrong_beside_other_requests_may_be_theirs(
    what: str, endpoint: Endpoint, fake: ProvableEndpoint
) -> None:
    setattr(fake.behaviour, what, (3, 4))
    fake.behaviour.finished = (0, 21)  # as many as the run itself sends
    assert states(verified(endpoint))["idle"] == "fails"
    fake.behaviour.looks, fake.behaviour.finished = 0, (0, 26)
    idleness = the(verified(endpoint), "idle")
    assert idleness.state == "warns"
    assert idleness.says.endswith("1; other requests were running: 5.")


def test_a_replica_that_went_away_or_is_about_to_is_not_compared(
    endpoint: Endpoint, fake: ProvableEndpoint
) -> None:
    fake.behaviour.expired, fake.behaviour.replicas = (0, 0), ("1", "2")
    idleness = the(verified(endpoint), "idle")
    assert idleness.state == "warns"
    assert {one.value for one in idleness.evidence} >= {
        "went away: not compared",
        "its engine was not there before the run",
    }
    fake.behaviour.replicas, fake.behaviour.draining = ("1",), True
    fake.behaviour.looks, fake.behaviour.usage = 0, {"prefill": (0.0, 0.4)}
    assert states(verified(endpoint))["idle"] == "warns"


def test_fewer_rails_than_there_should_be_are_a_warning(endpoint: Endpoint, fake: ProvableEndpoint) -> None:
    fake.behaviour.probe = probing(probed.one_rail)
    proof = the(verified(endpoint), "transport")
    assert proof.state == "warns"
    assert proof.says.endswith("Slower than it should be: rails in use by prefill: 1 of 4 interfaces.")


@pytest.mark.parametrize("what", ["expired", "failed"])
def test_an_expired_lease_and_a_failed_kv_transfer_fail(
    what: str, endpoint: Endpoint, fake: ProvableEndpoint
) -> None:
    setattr(fake.behaviour, what, (3, 4))
    assert states(verified(endpoint))["idle"] == "fails"


def test_a_leak_too_slow_for_one_round_shows_while_it_is_watched(
    endpoint: Endpoint, fake: ProvableEndpoint
) -> None:
    with Verification(endpoint) as verification:
        fake.behaviour.usage = {"prefill": (0.0,)}
        assert all(
            step.state == "holds" for step in verification.steps(light=True) if isinstance(step, Proof)
        )
        fake.behaviour.usage = {"prefill": (0.05,)}  # now, before and after the next round
        last = [step for step in verification.steps(light=True) if isinstance(step, Proof)][-1]
    assert (last.name, last.state) == ("idle", "fails")


def test_one_engine_for_both_phases_proves_what_it_can_and_says_the_rest(
    endpoint: Endpoint, fake: ProvableEndpoint
) -> None:
    fake.behaviour.aggregated = True
    report = verified(endpoint)
    skipped = {name for name, state in states(report).items() if state == "skipped"}
    assert skipped == {"split", "transport", "speed"}
    assert report.topology == "aggregated"
    assert report.holds
    assert fake.behaviour.asked == []
    assert len({salt for _, salt in fake.salts()}) * 2 == len(fake.salts())


def test_an_older_version_a_wrong_key_and_an_ordinary_one_are_told_apart(
    endpoint: Endpoint, fake: ProvableEndpoint, tmp_path: Path
) -> None:
    fake.behaviour.probe = None
    with pytest.raises(EndpointError, match="runs a version of Diptych without /diptych/v1/probe"):
        verified(endpoint)
    with pytest.raises(EndpointError, match="a proof needs an admin key"):
        verified(Endpoint(fake.url, fake.key_file(tmp_path, KEY), MODEL))
    with pytest.raises(EndpointError, match="does not accept the key"):
        verified(Endpoint(fake.url, fake.key_file(tmp_path, "wrong"), MODEL))
    with pytest.raises(EndpointError, match="Nothing answers"):
        verified(Endpoint("http://127.0.0.1:1", fake.key_file(tmp_path), MODEL))


def test_changes_are_those_of_state_and_in_the_first_round_what_does_not_hold() -> None:
    def report(**of: str) -> Report:
        proofs = tuple(Proof(name, state, "…") for name, state in of.items())  # type: ignore[arg-type]
        return Report("http://x", "tiny", "split", {}, proofs)

    good, bad = report(split="holds", idle="holds"), report(split="holds", idle="fails")
    assert changes(None, good) == []
    assert [proof.name for proof in changes(None, bad)] == ["idle"]
    assert [proof.state for proof in changes(bad, good)] == ["holds"]
    assert changes(bad, bad) == []
