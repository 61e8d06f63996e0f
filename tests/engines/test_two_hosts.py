"""`diptych verify` on two hosts: what it says while all is well, and while the way between them is not.

The tests follow one another on one service: each leaves it as it found it, but for the last.
"""

import contextlib
import re
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from engines.chaos import ANSWERED_WITHIN_S, BASELINE_WITHIN_S, at_baseline, fetch, letter, reached
from engines.link import UNPOSTED
from engines.service import NAME, PHASES, seconds_until
from engines.two_hosts import TwoHosts, two_hosts
from engines.verdicts import BYTES, CARRIED, SIZES, by_name, seen, states, told, verified

pytestmark = [pytest.mark.engines, pytest.mark.long, pytest.mark.hosts]

HOLDS = {"split": "holds", "transport": "holds", "speed": "skipped", "answers": "holds", "idle": "holds"}
UNREACHABLE_FROM_OUTSIDE, FREE_PORT = "127.0.0.1", 18441
MAX_TOKENS = 12
RAY_GIVES_UP_S = 45.0


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


def test_a_side_channel_that_decode_cannot_reach_fails_the_split(hosts: TwoHosts) -> None:
    """Its own loopback address, vLLM's default: prefill listens there, and decode finds nobody at its own."""
    with hosts.link.moving_new_engines(UNREACHABLE_FROM_OUTSIDE, FREE_PORT):
        restarted(hosts)
        report = verified(hosts.endpoint)
        print(f"\n{told(report)}")
        assert states(report) == {
            "split": "fails",
            "transport": "fails",
            "speed": "skipped",
            "answers": "fails",
            "idle": "fails",
        }
        proofs = by_name(report)
        assert proofs["split"].says == "A prompt of 17 tokens: path recovered: the KV transfer failed."
        assert proofs["transport"].says == (
            "UCX was asked for, and UCX is not proven to carry the KV cache (KV transfers: 0 of 1 arrived: the KV "
            "transfer failed)."
        )
        assert "handshake_failed" in seen(proofs["transport"])["log of decode, handshake-failed"][1]
        assert proofs["answers"].says == (
            "The answers differ: 1 token, remote: path recovered: the KV transfer failed."
        )
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
    nobody = f"decode replica {decode} sees no prefill replica that is ready"
    assert proofs["split"].says == f"Nothing was split: {nobody}."
    assert proofs["transport"].says == "No pair of replicas carried a KV transfer."
    assert not report.holds
