"""What is shown before anything is asked: what will be made, where, and what it costs."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from diptych.eks import present
from diptych.eks.plan import Part, plan
from diptych.eks.present import Present
from diptych.eks.prices import Price, Row, price
from diptych.eks.up import bring_up
from diptych.render.inputs import Facts
from eks.world import document, world
from fakes.account_facts import ACCOUNT, CLUSTER

LISTED = price(document(), Facts())


def test_every_step_says_what_it_makes_in_the_order_of_up() -> None:
    found = plan(document(), Facts(zone="us-east-2b"), ACCOUNT, LISTED)
    steps = [part.step for part in found.parts]
    assert list(dict.fromkeys(steps)) == ["cluster", "nodes", "operator", "service"]
    assert steps == sorted(steps, key=["cluster", "nodes", "operator", "service"].index)
    text = "\n".join(part.what for part in found.parts)
    for told in (
        "cluster llm, Kubernetes 1.35",
        "open to 203.0.113.7/32",
        "us-east-2b",
        "EFA",
        "KubeRay 1.7.0",
    ):
        assert told in text
    assert "2 × g6.8xlarge" not in text
    assert "1 × g6.8xlarge (prefill)" in text


def test_the_account_is_named_with_who_asks() -> None:
    found = plan(document(), Facts(), ACCOUNT, LISTED)
    assert found.place == (
        "us-east-2 in account 111122223333 (arn:aws:iam::111122223333:user/ada, profile dev)"
    )


def test_the_price_is_a_sum_with_its_source() -> None:
    found = plan(document(), Facts(), ACCOUNT, LISTED)
    parts = sum(part.usd_per_hour or 0 for part in found.parts)
    assert parts == pytest.approx(LISTED.usd_per_hour)
    known = Price(tuple(row for row in found.price.rows if row.usd_per_hour is not None))
    assert known.total == "$4.40 per hour (about $3,214 per month): list price of 2026-07-20 in us-east-1"
    assert found.price.total == (
        f"at least {known.total}; not in it, since no price is known: "
        "extended support (whether 1.35 needs it was not said)"
    )


def test_a_price_that_is_not_known_is_no_price_of_nothing() -> None:
    rows = (*LISTED.rows, Row("nodes", "2 × new.type (decode)", None, ""))
    found = plan(document(), Facts(), ACCOUNT, Price(rows))
    assert found.price.total.startswith("at least $4.40") and "2 × new.type (decode)" in found.price.total
    assert [part.what for part in found.parts if part.unpriced and part.step == "nodes"] == [rows[-1].what]


OURS = replace(CLUSTER, tags={"diptych.dev/cluster": "llm"})
"""A cluster that Diptych made."""
ALL = {"system": 1, "llm-prefill": 1, "llm-decode": 1}


def shown(present: Present, *steps: str, price: Price = LISTED, **fields: Any) -> dict[str, Part]:
    """The parts of a plan by what they are."""
    chosen = steps or ("cluster", "nodes", "operator", "service")
    found = plan(
        document(**fields), Facts(), replace(ACCOUNT, cluster=present.cluster), price, present, chosen
    )
    return {part.what: part for part in found.parts}


def test_all_that_is_there_is_marked_and_nothing_else() -> None:
    assert not any(part.there for part in shown(Present()).values())
    made = shown(Present(OURS, {"system": 1}))
    assert {part.step for part in made.values() if part.there} == {"cluster"}
    assert all(part.there for part in made.values() if part.step == "cluster")
    whole = shown(Present(OURS, ALL, "us-east-2c", frozenset({"operator", "service"})))
    assert {part.there for part in whole.values()} == {"there already"}
    assert "node groups in us-east-2c, in private subnets, EFA among them" in whole  # where they are


def test_a_group_that_grows_says_how_much_of_it_is_there() -> None:
    grown = {"decode": {"nodes": {"count": 3}}}
    found = shown(Present(OURS, ALL), price=price(document(**grown), Facts()), **grown)
    assert found["3 × g6.8xlarge (decode)"].there == "1 of 3 there already"
    assert found["1 × g6.8xlarge (prefill)"].there == "there already"
    half = shown(Present(OURS, {"llm-prefill": 1}))
    assert (
        half["node groups in us-east-2a, in private subnets, EFA among them"].there == "1 of 2 there already"
    )


def test_somebody_elses_cluster_and_network_are_neither_made_nor_paid() -> None:
    theirs = price(document(), Facts(), of_others=True)
    found = shown(Present(CLUSTER), price=theirs)
    text = "\n".join(found)
    assert "EKS cluster diptych, Kubernetes 1.35, not made by Diptych" in text
    for ours in ("VPC", "NAT", "control plane", "public address", "open to"):
        assert ours not in text
    assert "1 × m7i.xlarge (system)" in text


def test_only_the_chosen_steps_are_shown_and_paid() -> None:
    found = plan(document(), Facts(), ACCOUNT, LISTED, Present(), ("nodes",))
    assert {part.step for part in found.parts} == {"nodes"}
    assert found.price.usd_per_hour == pytest.approx(2 * 2.0144 + 2 * 50 * 0.08 / 730)
    assert shown(Present(), "service").keys() == {
        part.what for part in plan(document(), Facts(), ACCOUNT, LISTED).parts if part.step == "service"
    }


def test_what_is_there_is_found_in_the_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with world(tmp_path, monkeypatch) as here:
        assert present.look(here.job(), None, ("cluster",)) == Present()
        bring_up(here.job(), ("cluster", "nodes"))
        asked = len(here.aws.calls)
        found = present.look(here.job(), OURS, ("cluster", "nodes", "operator", "service"))
        assert (found.groups, found.inside, found.is_of_others) == (ALL, frozenset(), False)
        assert found.zone == "us-east-2a"
        asked = len(here.aws.calls)
        present.look(here.job(), OURS, ("operator", "service"))  # whoever may do no more is asked for no more
        assert {call.action for call in here.aws.calls[asked:]} <= {
            "eks:DescribeCluster",
            "sts:GetCallerIdentity",
        }
