"""`diptych verify` on two hosts: what it says while all is well, and while the way between them is not.

The tests follow one another on one service: each leaves it as it found it, but for the last.
"""

import contextlib
import math
import re
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from engines.chaos import ANSWERED_WITHIN_S, BASELINE_WITHIN_S, at_baseline, fetch, letter, reached
from engines.link import UNPOSTED
from engines.service import NAME, PHASES, seconds_until
from engines.two_hosts import TwoHosts, two_hosts
from engines.verdicts import BLOCK_BYTES, BYTES, CARRIED, SIZES, by_name, seen, states, told, verified

pytestmark = [pytest.mark.engines, pytest.mark.long, pytest.mark.hosts]

HOLDS = {"split": "holds", "transport": "holds", "speed": "skipped", "answers": "holds", "idle": "holds"}
UNREACHABLE_FROM_OUTSIDE, FREE_PORT = "127.0.0.1", 18441
MAX_TOKENS = 12
RAY_GIVES_UP_S = 45.0
ROUND_WITHIN_S = 90.0
NO_PREFILL = "path local-no-prefill: no prefill replica is ready"
AT_REST = "KV caches are as empty as before after … s; no lease expired, no KV transfer failed."
ASKED_BOTH_WAYS = (
    *("1 token", "127 tokens", "128 tokens", "129 tokens", "448 tokens"),
    *("turn 1 of a conversation", "turn 2 of a conversation"),
)
"""What the proof of answers sends."""


@pytest.fixture(scope="module")
def hosts() -> Iterator[TwoHosts]:
    with two_hosts() as service:
        yield service


def test_ucx_that_was_asked_for_is_proven_over_the_network_between_two_hosts(hosts: TwoHosts) -> None:
    report, phases = verified(hosts.endpoint), hosts.phases()
    print(f"\n{told(report)}")
    proofs, addresses = by_name(report), hosts.network.addresses
    assert states(report) == HOLDS
    assert proofs["split"].says == (
        f"All {sum(SIZES)} tokens of {len(SIZES)} prompts came to decode from another process, through one pair."
    )
    split = seen(proofs["split"])
    places = [f"{phase} {phases[phase][0]['engine_pid']} on {addresses[phase]}" for phase in PHASES]
    assert split["engine processes"] == ("agrees", " and ".join(places))
    places = [f"{phase} on {addresses[phase]}" for phase in PHASES]
    assert split["nodes"] == ("agrees", ", ".join(places))
    assert proofs["transport"].says == (
        f"UCX was asked for, and carried the KV cache: UCX over tcp, {CARRIED}."
    )
    check_network_moved(seen(proofs["transport"]))
    assert re.fullmatch(
        r"Nothing is known of the link's bandwidth; measured \d+\.\d\d GB/s, \d+\.\d ms per 1000 tokens\.",
        proofs["speed"].says,
    )


def check_network_moved(transport: Mapping[str, tuple[str, str]]) -> None:
    """The hosts' interfaces moved the KV cache's bytes, once, and little beside them."""
    for way in ("out of prefill", "into decode"):
        _, value = transport[f"counters of eth0, {way}"]
        moved = re.fullmatch(rf"([0-9.]+) MB of {BYTES / 1e6:.1f} MB", value)
        assert moved, value
        assert 1.0 <= float(moved[1]) * 1e6 / BYTES < 1.2


def test_the_command_says_the_same_from_outside_of_both(hosts: TwoHosts) -> None:
    done = hosts.run("verify", "--name", NAME, timeout_s=120.0)
    print(f"\n{done.stdout}")
    assert done.returncode == 0, done.stderr
    assert "UCX was asked for, and carried the KV cache: UCX over tcp" in done.stdout
    assert "What can be proven here holds (speed could not be proven here)." in done.stdout


def test_its_metrics_tell_of_every_proof_that_decode_repeats(hosts: TwoHosts) -> None:
    """The first round comes a period after the start. Nobody knows how fast this link should be."""
    holds = {"transport": 1.0, "kv_transfer": 1.0, "split": 1.0, "speed": None, "answers": 1.0, "idle": 1.0}
    seconds_until(lambda: proofs_of(hosts) == holds, ROUND_WITHIN_S, every_s=1.0)
    rate, seconds, ratio = (
        only(hosts, f"diptych_proof_{name}")
        for name in ("bytes_per_second", "seconds_per_1000_tokens", "speed_ratio")
    )
    print(f"\n{rate / 1e9:.2f} GB/s, {seconds * 1e3:.1f} ms per 1000 tokens by its metrics")
    assert rate * seconds * 257 / 1000 == pytest.approx(3 * BLOCK_BYTES)
    assert math.isnan(ratio)


def proofs_of(hosts: TwoHosts) -> dict[str, float | None]:
    """By proof, whether it holds of the one pair; None: that can't be told."""
    found = {labels["proof"]: value for labels, value in exported(hosts, "diptych_proof_ok")}
    return {proof: None if math.isnan(value) else value for proof, value in found.items()}


def only(hosts: TwoHosts, name: str) -> float:
    ((_, value),) = exported(hosts, name)
    return value


def exported(hosts: TwoHosts, name: str) -> list[tuple[Mapping[str, str], float]]:
    """A metric's labels and values, as decode shows them."""
    with hosts.client(key=hosts.admin_key) as client:
        families = text_string_to_metric_families(client.get("/metrics").text)
    samples = [sample for family in families for sample in family.samples]
    return [(sample.labels, sample.value) for sample in samples if sample.name == name]


def test_a_request_whose_kv_transfer_is_cut_in_its_middle_is_answered_right_and_the_next_one_crosses(
    hosts: TwoHosts,
) -> None:
    prompt = letter("cut", 300)
    text = hosts.undisturbed(prompt, MAX_TOKENS)
    with ThreadPoolExecutor(1) as pool, hosts.link.being(UNPOSTED):
        asked = pool.submit(fetch, hosts, prompt, streamed=False, max_tokens=MAX_TOKENS)
        reached(lambda: hosts.link.held() >= 1)
        with cut(hosts):
            hosts.link.open()  # now the read is posted
            reply = asked.result()
    print(f"\ncut in the middle: {reply}")
    assert (reply.status, reply.path, reply.text) == (200, "recovered", text)
    seconds_until(lambda: fetch(hosts, letter("mended", 40), streamed=False).path == "remote", 60.0)
    at_baseline(hosts)
    report = verified(hosts.endpoint)
    assert states(report) == HOLDS, told(report)
    again = fetch(hosts, prompt, streamed=False, max_tokens=MAX_TOKENS)
    assert (again.status, again.path, again.text) == (200, "remote", text)


@contextlib.contextmanager
def cut(hosts: TwoHosts) -> Iterator[None]:
    """Prefill's cable is pulled for as long as this lasts."""
    hosts.network.cut("prefill")
    try:
        yield
    finally:
        hosts.network.mend("prefill")


ANSWERED_HERE = (
    "The answers differ: 1 token, remote: path recovered: the KV transfer failed.",
    "The answers differ: 1 token, remote: path local-no-prefill: no prefill replica is ready.",
)
"""Which of them is said depends on how long ago the pair was put aside."""


def test_a_side_channel_that_decode_cannot_reach_fails_the_split(hosts: TwoHosts) -> None:
    """Its own loopback address, vLLM's default: prefill listens there, and decode finds nobody at its own."""
    with hosts.link.moving_new_engines(UNREACHABLE_FROM_OUTSIDE, FREE_PORT):
        restarted(hosts)
        report = verified(hosts.endpoint)
        print(f"\n{told(report)}")
        found = states(report)
        assert found.pop("idle") in (
            "fails",
            "warns",
        )  # warns where decode's own try of the pair fell into the run
        assert found == {"split": "fails", "transport": "fails", "speed": "skipped", "answers": "fails"}
        proofs = by_name(report)
        assert proofs["split"].says == "A prompt of 17 tokens: path recovered: the KV transfer failed."
        assert proofs["transport"].says == (
            "UCX was asked for, and UCX is not proven to carry the KV cache (KV transfers: 0 of 1 arrived: the KV "
            "transfer failed)."
        )
        assert "handshake_failed" in seen(proofs["transport"])["log of decode, handshake-failed"][1]
        assert proofs["answers"].says in ANSWERED_HERE
        prompt = letter("no side channel", 40)
        reply = fetch(hosts, prompt, streamed=False)
        assert reply.status == 200
        assert reply.path in ("recovered", "local-no-prefill")
    restarted(hosts)
    seconds_until(lambda: fetch(hosts, letter("found", 40), streamed=False).path == "remote", 60.0)
    report = verified(hosts.endpoint, light=True)
    assert states(report) == HOLDS, told(report)


def restarted(hosts: TwoHosts) -> float:
    """Have prefill's engine die; the seconds until another is up."""
    before = hosts.phases()["prefill"][0]["engine_pid"]
    hosts.kill_engine("prefill")

    def is_another() -> bool:
        with contextlib.suppress(httpx.HTTPError, KeyError, IndexError):
            now = hosts.phases()["prefill"][0]
            return bool(now["ready"]) and now["engine_pid"] != before
        return False

    return seconds_until(is_another, 90.0, every_s=1.0)


def test_without_the_link_decode_serves_alone_and_nothing_is_proven(hosts: TwoHosts) -> None:
    prompt = letter("alone", 100)
    text = hosts.undisturbed(prompt, MAX_TOKENS)
    hosts.network.cut("prefill")
    began = time.monotonic()
    degraded_s = seconds_until(lambda: hosts.readiness()["state"] == "degraded", 30.0)
    for _ in range(2):  # at once, and when Ray has had the time to give the host up
        reply = fetch(hosts, prompt, streamed=False, max_tokens=MAX_TOKENS)
        print(f"\nlink down for good, {time.monotonic() - began:.0f} s: {reply}, degraded {degraded_s:.1f} s")
        assert (reply.status, reply.text) == (200, text)
        assert reply.path in ("local-no-prefill", "recovered")
        check_nothing_is_proven(hosts)
        time.sleep(max(0.0, began + RAY_GIVES_UP_S - time.monotonic()))
    done = hosts.run("verify", "--name", NAME, timeout_s=120.0)
    print(f"\n{done.stdout}")
    assert done.returncode == 1, done.stderr
    assert verdict_lines(done.stdout) == [
        f"✗ split Nothing was split: {nobody_of(hosts)}.",
        "– transport No pair of replicas carried a KV transfer.",
        "– speed No KV transfer of a megabyte or more was timed.",
        f"✗ answers The answers differ: 1 token, remote: {NO_PREFILL}.",
        f"✓ idle {AT_REST}",
        "Not proven (split, answers failed; transport, speed could not be proven here).",
    ]


def verdict_lines(printed: str) -> list[str]:
    """What the command says of each proof, without the time that it took, and of all together."""
    proofs = re.findall(r"^([✓✗!–]) (\w+) +[0-9.]+ s  (.*)$", undated(printed), re.MULTILINE)
    return [" ".join(each) for each in proofs] + printed.splitlines()[-1:]


def undated(text: str) -> str:
    """Without the time that engines were waited for."""
    return re.sub(r"after [0-9.]+ s;", "after … s;", text)


def nobody_of(hosts: TwoHosts) -> str:
    decode = hosts.phases()["decode"][0]["replica"]
    return f"decode replica {decode} sees no prefill replica that is ready"


def check_nothing_is_proven(hosts: TwoHosts) -> None:
    decode, began = hosts.phases()["decode"][0]["replica"], time.monotonic()
    report = verified(hosts.endpoint)
    print(f"\n{told(report)}")
    proofs = by_name(report)
    assert time.monotonic() - began < ANSWERED_WITHIN_S + BASELINE_WITHIN_S
    assert states(report) == {
        "split": "fails",
        "transport": "skipped",
        "speed": "skipped",
        "answers": "fails",
        "idle": "holds",
    }
    nobody = nobody_of(hosts)
    assert {name: undated(proof.says) for name, proof in proofs.items()} == {
        "split": f"Nothing was split: {nobody}.",
        "transport": "No pair of replicas carried a KV transfer.",
        "speed": "No KV transfer of a megabyte or more was timed.",
        "answers": f"The answers differ: 1 token, remote: {NO_PREFILL}.",
        "idle": AT_REST,
    }
    assert seen(proofs["split"]) == {"probe": ("contradicts", nobody)}
    assert seen(proofs["transport"]) == seen(proofs["speed"]) == {}
    answers = seen(proofs["answers"])
    assert answers.pop("turn 2 of a conversation, cached")[0] == "agrees"
    assert answers == {f"{asked}, remote": ("contradicts", NO_PREFILL) for asked in ASKED_BOTH_WAYS}
    assert seen(proofs["idle"]) == {
        f"KV cache in use on decode {decode}": ("agrees", "0.00%, 0.00% before"),
        f"failed KV transfers on decode {decode}": ("agrees", "0"),
        f"leases that expired on decode {decode}": ("agrees", "0"),
    }
    assert not report.holds
