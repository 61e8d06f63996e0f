"""Engines, replicas and Ray's own processes die at the worst moment: each request ends well, and soon all is as it was.

For every rehearsal: a request is answered within `ANSWERED_WITHIN_S`; what answers 200 is the text that its prompt
gives undisturbed; what does not is 503 or 504 in OpenAI's words with a time to come back; KV cache that nobody waits
for any more is free again; and the next requests go the remote way. `pytest -s` prints what was seen.

Leave `src/diptych/serving` alone meanwhile: a replica that starts with other code is of another generation, and prefill
and decode of two generations never pair.
"""

import contextlib
import random
import signal
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from engines.chaos import (
    LEASE_S,
    PORT,
    ChaosService,
    Reply,
    asking,
    at_baseline,
    complaint,
    fetch,
    letter,
    prefill_computes,
    reached,
    steadily,
    well_again,
)
from engines.link import FAILING, SILENT, UNPOSTED, UNREPORTED
from engines.service import PHASES, check_status_names, kill, seconds_until, seconds_until_nothing_is_left
from engines.test_loopback import is_loopback

pytestmark = [pytest.mark.engines, pytest.mark.long, pytest.mark.chaos]

MOMENTS = {"before": None, "during": UNPOSTED, "after": UNREPORTED}
"""Before the KV transfer prefill computes; during it the read waits to be posted; after it nobody knows yet."""
CLIENTS = 50

Texts = dict[str, str]


def texts_of(service: ChaosService, prompts: Sequence[str]) -> Texts:
    return {prompt: service.undisturbed(prompt) for prompt in prompts}


def tell(what: str, replies: Sequence[Reply], *more: str) -> None:
    print(f"\n{what}: {'; '.join([*map(str, replies), *more])}")


def check(
    replies: Sequence[Reply], texts: Texts, statuses: set[int | None], *, may_break: bool = False
) -> None:
    assert replies
    found = (complaint(reply, texts[reply.prompt], may_break=may_break) for reply in replies)
    assert [told for told in found if told] == []
    assert {reply.status for reply in replies} <= statuses


def check_all_is_as_it_was(service: ChaosService, texts: Texts) -> str:
    """Both engines well and idle, and the same prompts answered right by the remote way."""
    well_s, idle_s = well_again(service), at_baseline(service)
    again = [fetch(service, prompt, streamed=False) for prompt in texts]
    check(again, texts, {200})
    assert {reply.path for reply in again} == {"remote"}
    return f"well again {well_s:.1f} s later, no KV cache held {idle_s:.1f} s after that"


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
@pytest.mark.parametrize("phase", PHASES)
def test_an_engine_lost_before_during_or_after_the_kv_transfer_costs_no_request_its_right_answer(
    chaos: ChaosService, phase: str, number: signal.Signals, moment: str
) -> None:
    name = f"{phase} {number.name} {moment}"
    prompts = [letter(name, 1300 if moment == "before" else 300), letter(f"{name} too", 40)]
    texts = texts_of(chaos, prompts)
    engine = chaos.engine(phase)
    with held(chaos, MOMENTS[moment]), asking(chaos, prompts) as asked:
        reached(lambda: chaos.link.held() >= 2 if MOMENTS[moment] else prefill_computes(chaos))
        kill(engine, number)
        chaos.link.open()
    again = check_all_is_as_it_was(chaos, texts)
    tell(name, asked.replies, again)
    # Decode does what prefill can't; without decode there is nobody.
    check(asked.replies, texts, {200} if phase == "prefill" else {200, 503})
    assert not engine.is_running()
    assert chaos.engine(phase).pid != engine.pid


@contextlib.contextmanager
def held(chaos: ChaosService, state: str | None) -> Iterator[None]:
    with chaos.link.being(state) if state else contextlib.nullcontext():
        yield


@pytest.mark.parametrize("phase", PHASES)
def test_a_replica_that_is_killed_with_its_engine_is_replaced(chaos: ChaosService, phase: str) -> None:
    prompts = [letter(f"replica {phase}", 300)]
    texts, replica = texts_of(chaos, prompts), psutil.Process(chaos.pids("pid")[phase])
    with chaos.link.being(UNPOSTED), asking(chaos, prompts) as asked:
        reached(lambda: chaos.link.held() >= 2)
        kill(replica)
        chaos.link.open()
    again = check_all_is_as_it_was(chaos, texts)
    tell(f"{phase} replica SIGKILL", asked.replies, again)
    if phase == "prefill":
        check(asked.replies, texts, {200})
    else:  # the stream had begun, with prefill's token
        check(asked.replies, texts, {200, 503, None}, may_break=True)


def test_a_prefill_engine_that_comes_back_at_another_address_is_found(chaos: ChaosService) -> None:
    prompts = [letter("address", 300)]
    texts, port = texts_of(chaos, prompts), 18441
    with chaos.link.moving_new_engines("127.0.0.2", port):
        kill(chaos.engine("prefill"))
        again = check_all_is_as_it_was(chaos, texts)
    tell("prefill at another address", [], again)
    assert ("127.0.0.2", port) in listeners(chaos.engine("prefill").pid)


def test_half_of_fifty_clients_leave_when_they_like_and_the_others_get_their_answers(
    chaos: ChaosService,
) -> None:
    prompts = [letter(f"crowd {number}", 25 * number) for number in range(1, 11)]
    texts, dice = texts_of(chaos, prompts), random.Random(50)

    def come(number: int) -> Reply:
        leaves = dice.uniform(0.05, 8.0) if number % 2 else None
        streamed = number % 4 < 2
        return fetch(chaos, prompts[number // 2 % 10], streamed=streamed, leave_after_s=leaves)

    with ThreadPoolExecutor(CLIENTS) as pool:
        replies = list(pool.map(come, range(CLIENTS)))
    stayed, left = replies[::2], [reply for reply in replies[1::2] if reply.status is None]
    idle_s = at_baseline(chaos)
    tell("50 clients", [], f"{len(left)} left early", f"no KV cache held after {idle_s:.1f} s")
    print(f"slowest {max(reply.seconds for reply in stayed):.1f} s, {sorted({str(r.path) for r in stayed})}")
    check(stayed, texts, {200})
    assert len(left) >= CLIENTS // 5
    check_all_is_as_it_was(chaos, texts)


def test_while_kv_transfers_hang_decode_answers_and_when_they_go_on_all_is_as_it_was(
    chaos: ChaosService,
) -> None:
    prompts = [letter("blocked", 300), letter("blocked too", 40)]
    texts = texts_of(chaos, prompts)
    with chaos.link.being(UNPOSTED):
        with asking(chaos, prompts) as asked:
            pass
        tell("KV transfers hang", asked.replies)
        check(asked.replies, texts, {200})
        assert {reply.path for reply in asked.replies} <= {"recovered", "local-no-prefill"}
        assert chaos.readiness() == "degraded"
        meanwhile = fetch(chaos, prompts[1], streamed=False)
        tell("and another", [meanwhile])
        check([meanwhile], texts, {200})
    print(check_all_is_as_it_was(chaos, texts))


@pytest.mark.parametrize("state", [FAILING, UNREPORTED])
def test_a_kv_transfer_that_fails_or_is_never_reported_is_computed_on_decode(
    chaos: ChaosService, state: str
) -> None:
    prompts = [letter(state, 300), letter(f"{state} too", 40)]
    texts = texts_of(chaos, prompts)
    with chaos.link.being(state), asking(chaos, prompts) as asked:
        pass
    again = check_all_is_as_it_was(chaos, texts)
    tell(f"KV transfers {state}", asked.replies, again)
    check(asked.replies, texts, {200})
    assert "recovered" in {reply.path for reply in asked.replies}


def test_kv_cache_read_after_its_lease_and_written_over_is_no_answer(chaos: ChaosService) -> None:
    victim, others = letter("lease", 500), [letter("lease A", 1200), letter("lease B", 1000)]
    texts = texts_of(chaos, [victim, *others])
    with ThreadPoolExecutor(3) as pool, chaos.link.being(SILENT):
        replies = [pool.submit(fetch, chaos, victim, streamed=False)]
        reached(lambda: chaos.link.held() >= 1)
        began = time.monotonic()
        replies += [pool.submit(fetch, chaos, other, streamed=False) for other in others]
        time.sleep(max(0.0, began + LEASE_S + 3 - time.monotonic()))
        chaos.link.open()
        answered = [reply.result() for reply in replies]
    again = check_all_is_as_it_was(chaos, texts)
    tell("lease over while the read is held", answered, again)
    check(answered, texts, {200})


def test_without_serves_proxy_that_haproxy_falls_back_to_requests_go_on(chaos: ChaosService) -> None:
    prompt = letter("proxy", 40)
    texts, engines = texts_of(chaos, [prompt]), chaos.pids()
    proxy = chaos.process("ray::ProxyActor")
    with steadily(chaos, prompt) as replies:
        reached(lambda: len(replies) > 2)
        kill(proxy)
        back_s = seconds_until(lambda: any_process(chaos, "ray::ProxyActor") not in (None, proxy.pid), 60.0)
        time.sleep(2.0)
    tell("Serve's proxy SIGKILL", [], f"another after {back_s:.1f} s", f"{len(replies)} requests meanwhile")
    check(replies, texts, {200})
    assert chaos.pids() == engines
    listens = {ip for ip, _ in listeners(chaos.process("ray::ProxyActor").pid)}
    assert listens
    assert all(map(is_loopback, listens))
    check_all_is_as_it_was(chaos, texts)


def test_without_haproxy_connections_break_and_soon_there_is_another(chaos: ChaosService) -> None:
    prompt = letter("haproxy", 40)
    texts, engines = texts_of(chaos, [prompt]), chaos.pids()
    with steadily(chaos, prompt) as replies:
        reached(lambda: len(replies) > 2)
        kill(haproxy := entrance(chaos))
        killed_at = time.monotonic()
        seconds_until(lambda: replies[-1].status is None, 20.0)
        seconds_until(lambda: replies[-1].status == 200, 90.0)
        again_s = time.monotonic() - killed_at
    broken = [reply for reply in replies if reply.status is None]
    tell("HAProxy SIGKILL", [], f"answers again after {again_s:.1f} s", f"{len(broken)} connections broke")
    # Its successor knows of no replica for a moment.
    check([reply for reply in replies if reply.status], texts, {200, 503})
    assert chaos.pids() == engines
    successor = entrance(chaos)
    assert successor.pid != haproxy.pid
    assert all(is_loopback(ip) for ip, _ in listeners(successor.pid))
    check_all_is_as_it_was(chaos, texts)


def entrance(service: ChaosService) -> psutil.Process:
    """The process that takes clients' connections: HAProxy."""
    (found,) = (each for each in service.processes() if ("127.0.0.1", PORT) in listeners(each.pid))
    assert "haproxy" in found.name()
    return found


def test_without_serves_controller_requests_go_on_and_its_successor_replaces_engines(
    chaos: ChaosService,
) -> None:
    prompt = letter("controller", 40)
    texts, engines = texts_of(chaos, [prompt]), chaos.pids()
    controller = chaos.process("ray::ServeController")
    with steadily(chaos, prompt) as replies:
        kill(controller)
        back_s = seconds_until(
            lambda: any_process(chaos, "ray::ServeController") not in (None, controller.pid), 60.0
        )
        time.sleep(5.0)
    tell(
        "Serve's controller SIGKILL",
        [],
        f"another after {back_s:.1f} s",
        f"{len(replies)} requests meanwhile",
    )
    check(replies, texts, {200})
    assert chaos.pids() == engines
    kill(chaos.engine("prefill"))
    print(check_all_is_as_it_was(chaos, texts))


def listeners(pid: int) -> set[tuple[str, int]]:
    """Where a process takes TCP connections."""
    found = (each for each in psutil.net_connections("tcp") if each.status == psutil.CONN_LISTEN)
    return {(each.laddr.ip, each.laddr.port) for each in found if each.pid == pid}


def any_process(service: ChaosService, name: str) -> int | None:
    with contextlib.suppress(StopIteration, psutil.Error):
        return int(service.process(name).pid)
    return None


def test_without_rays_gcs_the_service_ends_wholly_and_says_why(chaos: ChaosService) -> None:
    kill(chaos.process("gcs_server"))
    gone_s = seconds_until_nothing_is_left(chaos)
    print(f"\nRay's GCS SIGKILL: nothing left after {gone_s:.1f} s")
    check_status_names(chaos, "gcs_server")
