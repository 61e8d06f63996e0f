"""NCCL between the nodes: the output of nccl-tests as it is read, what is judged of it, and how it joins the proof."""

from typing import Any

import pytest

from diptych.endpoint import Endpoint
from diptych.errors import EndpointError
from diptych.verify.nccl import Link, joined, judge, read
from diptych.verify.proof import FAILS, HOLDS, SKIPPED, WARNS, Proof
from diptych.verify.run import Verification
from fakes import nccl as printed
from fakes import probed
from fakes.provable_endpoint import ProvableEndpoint, probing

G6, P5 = Link(25.0, False, efa=True), Link(3200.0, True, efa=True)


# Reading


def test_every_row_and_what_sums_them_up_is_read() -> None:
    table = read(printed.before() + printed.table())
    assert [row.size for row in table.rows] == list(printed.SIZES)
    assert (table.rows[-1].busbw, table.out_of_bounds, table.wrong) == (printed.G6_BUSBW, 0, 0)
    assert table.hosts == dict(enumerate(printed.HOSTS))
    assert table.average is not None and 2.4 < table.average < 2.6
    assert table.is_whole


def test_the_better_of_both_ways_counts_and_the_wrong_values_of_both() -> None:
    row = "  134217728  33554432  float  sum  -1  49333  2.72  2.72  3  49034  2.74  2.75  4\n"
    assert (read(row).rows[0].busbw, read(row).rows[0].wrong) == (2.75, 7)


@pytest.mark.parametrize("count", ["N/A", "?"])
def test_values_that_were_not_compared_are_not_right(count: str) -> None:
    output = printed.before() + printed.table()
    uncompared = "\n".join(
        f"{line.rstrip().removesuffix('0')}{count}" if line.lstrip().startswith("134217728") else line
        for line in output.splitlines()
    )
    assert uncompared != output.rstrip()
    judged = judge(printed.answer(output=uncompared), G6)
    assert judged.state == FAILS and "wrong values: not compared" in judged.says


def test_lines_of_others_in_between_are_passed_over() -> None:
    output = (printed.before() + printed.table()).replace("\n", "\nhost:1:2 [0] NCCL INFO Channel 00 : 0 1\n")
    assert read(output) == read(printed.before() + printed.table())


@pytest.mark.parametrize("cut", [0.0, 0.2, 0.5, 0.8, 0.97])
def test_a_table_that_is_cut_anywhere_is_not_whole_and_fails_in_words(cut: float) -> None:
    output = printed.before() + printed.table()
    judged = judge(printed.answer(output=output[: int(len(output) * cut)], exit_code=1), G6)
    assert judged.state == FAILS
    assert "its output can't be read to the end; mpirun ended with 1" in judged.says


def test_a_row_that_is_broken_by_another_line_is_missed() -> None:
    output = (printed.before() + printed.table()).replace(
        "   134217728  ", "   134217728 host:1:2 NCCL INFO "
    )
    judged = judge(printed.answer(output=output), G6)
    assert (judged.state, "can't be read to the end" in judged.says) == (FAILS, True)


# Judging


def verdicts(told: dict[str, Any], link: Link = G6) -> dict[str, str]:
    return {one.what.removeprefix("NCCL, not NIXL: "): one.verdict for one in judge(told, link).evidence}


def test_efa_at_its_speed_holds_and_says_that_it_is_nccl() -> None:
    judged = judge(printed.answer(), G6)
    assert judged.state == HOLDS
    assert judged.says == (
        "NCCL, not NIXL: all-reduce of 128 MiB over 2 nodes: 2.74 GB/s bus bandwidth, 88% of the 3.1 GB/s that a "
        "node's network has."
    )
    assert all(one.what.startswith("NCCL, not NIXL: ") for one in judged.evidence)
    assert set(verdicts(printed.answer()).values()) == {"agrees"}


def test_sockets_where_efa_was_asked_for_fail_and_elsewhere_are_told() -> None:
    assert judge(printed.answer("sockets"), G6).state == FAILS
    assert "sockets, and EFA was asked for" in judge(printed.answer("sockets"), G6).says
    elsewhere = Link(25.0, False, efa=False)
    assert verdicts(printed.answer("sockets"), elsewhere)["network"] == "silent"
    assert judge(printed.answer("sockets"), elsewhere).state == WARNS


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("", "not told: nothing shows that EFA carried it"),
        ("NCCL INFO Using network Libfabric", "Libfabric: nothing shows that EFA carried it"),
        ("NCCL INFO NET/OFI Selected provider is tcp, fabric is x\nUsing network Libfabric", "provider tcp"),
    ],
)
def test_what_does_not_show_efa_is_no_proof_of_it(log: str, words: str) -> None:
    judged = judge(printed.answer(log=log), G6)
    assert judged.state == FAILS and words in judged.says


def test_wrong_values_fail_whatever_the_speed_and_the_memory() -> None:
    judged = judge(printed.answer("wrong"), G6)
    assert (judged.state, judged.says) == (FAILS, "NCCL, not NIXL: wrong values: 512.")
    then_full = printed.answer("wrong", log=printed.log() + "out of memory")
    then_full["output"] = then_full["output"].partition("# Avg")[0]
    assert judge(then_full, G6).state == FAILS


def test_too_little_memory_beside_the_engines_is_no_failure_of_the_network() -> None:
    judged = judge(printed.answer("out of memory"), G6)
    assert (judged.state, "it ran out of memory" in judged.says) == (SKIPPED, True)
    over_sockets = printed.answer("out of memory", log=printed.log("sockets") + "'out of memory'")
    assert judge(over_sockets, G6).state == FAILS


def test_a_run_that_does_not_end_fails() -> None:
    judged = judge(printed.answer("hanging"), G6)
    assert (judged.state, "it did not end within 120 s" in judged.says) == (FAILS, True)


def test_what_could_not_be_run_is_skipped_with_its_reason() -> None:
    judged = judge({"skipped": "the image has no mpirun"}, G6)
    assert (judged.state, judged.says) == (
        SKIPPED,
        "NCCL, not NIXL: not measured, the image has no mpirun.",
    )


@pytest.mark.parametrize(
    ("busbw", "link", "state"),
    [
        (2.0, G6, HOLDS),
        (1.5, G6, WARNS),
        (0.1, G6, WARNS),  # copied through the host there
        (250.0, P5, HOLDS),
        (150.0, P5, WARNS),
        (50.0, P5, FAILS),
        (0.1, Link(None, None, efa=True), HOLDS),
    ],
)
def test_the_bandwidth_is_held_against_the_smallest_nodes_network(
    busbw: float, link: Link, state: str
) -> None:
    assert judge(printed.answer(output=printed.before() + printed.table(busbw)), link).state == state


def test_ranks_that_are_all_on_one_node_prove_no_network() -> None:
    one = printed.HOSTS[:1] * 2
    judged = judge(printed.answer(output=printed.before(one) + printed.table()), G6)
    assert (judged.state, "2 GPUs on 1 nodes, of 2 on 2" in judged.says) == (FAILS, True)


def test_a_whole_table_of_a_run_that_failed_is_no_success() -> None:
    judged = judge(printed.answer(exit_code=134), G6)
    assert (judged.state, "mpirun ended with 134" in judged.says) == (FAILS, True)


# Beside the proof of speed


@pytest.mark.parametrize(
    ("before", "kind", "after"),
    [
        (HOLDS, "ok", HOLDS),
        (SKIPPED, "ok", SKIPPED),
        (FAILS, "ok", FAILS),
        (HOLDS, "out of memory", HOLDS),
        (WARNS, "out of memory", WARNS),
        (HOLDS, "sockets", FAILS),
        (SKIPPED, "wrong", FAILS),
    ],
)
def test_it_makes_the_proof_of_speed_worse_and_never_better(before: Any, kind: str, after: str) -> None:
    proof = joined(Proof("speed", before, "Said."), judge(printed.answer(kind), G6))
    assert (proof.name, proof.state) == ("speed", after)
    assert proof.says.startswith("Said. NCCL, not NIXL: ")
    assert ("docs/proof.md#nccl" in proof.do) == (kind in ("sockets", "wrong"))


def test_it_is_measured_only_when_asked_and_never_lifts_the_transport(
    fake: ProvableEndpoint, endpoint: Endpoint
) -> None:
    def made(network: Link | None, *, light: bool = False) -> dict[str, Proof]:
        with Verification(endpoint, network=network) as verification:
            for _ in verification.steps(light=light):
                pass
            return {proof.name: proof for proof in verification.report().proofs}

    fake.behaviour.probe, fake.behaviour.nccl = probing(probed.still_efa), printed.answer()
    assert "NCCL" not in made(None)["speed"].says
    assert "NCCL" not in made(G6, light=True)["speed"].says
    proofs = made(G6)
    assert "NCCL, not NIXL: all-reduce" in proofs["speed"].says
    assert len(proofs) == 5
    assert proofs["transport"].state == FAILS
    fake.behaviour.aggregated = True
    assert (made(G6)["speed"].state, "88% of the" in made(G6)["speed"].says) == (SKIPPED, True)


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [
        ({"nccl": None}, "can't measure NCCL: it runs a version of Diptych without /diptych/v1/nccl"),
        ({"is_measuring": True}, "NCCL is being measured in this cluster already"),
        ({"nccl": {"output": 7}}, "/diptych/v1/nccl without output"),
    ],
)
def test_an_endpoint_that_measures_nothing_is_told_in_words(
    behaviour: dict[str, Any], words: str, fake: ProvableEndpoint, endpoint: Endpoint
) -> None:
    for name, value in behaviour.items():
        setattr(fake.behaviour, name, value)
    with pytest.raises(EndpointError, match=words), Verification(endpoint, network=G6) as verification:
        for _ in verification.steps():
            pass
