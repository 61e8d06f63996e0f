"""Every failing case that docs/proof.md shows, made by the proofs themselves from what an endpoint told."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from diptych.endpoint import Endpoint
from diptych.verify import answers, idle, nccl, speed, split, transport
from diptych.verify.asking import Asking
from diptych.verify.proof import Proof
from fakes import nccl as printed
from fakes import probed
from fakes.provable_endpoint import MODEL, Behaviour, ProvableEndpoint

_NO_PREFILL = "decode replica decode-1 sees no prefill replica that is ready"


def _split(kind: Callable[[], tuple[Any, Any]]) -> Proof:
    return split.prove(probed.answer(*kind()))


def _transport(kind: Callable[[], tuple[Any, Any]], **more: bool) -> Proof:
    return transport.prove(probed.answer(*kind()), **more)


def _half_in_another_zone() -> Proof:
    asked, pair = probed.proven_on_g6()
    pair["after"]["decode"]["zone"] = "us-east-2b"
    return split.prove(probed.answer(asked, pair))


def _speed(ms: float, kind: Callable[[], tuple[Any, Any]] = probed.proven_on_g6) -> Proof:
    asked, pair = kind()
    for one in pair["transfers"]:
        one["ms"] = ms
    return speed.prove(probed.answer(asked, pair))


def _nccl(told: Any, gbps: float = 25.0, *, gpudirect: bool = False) -> Proof:
    proof = speed.prove(probed.answer(*probed.proven_on_g6()))
    return nccl.joined(proof, nccl.judge(told, nccl.Link(gbps, gpudirect, efa=True)))


def _beside_others() -> Proof:
    asked, pair = probed.proven_on_g6()
    pair["after"]["decode"]["counters"]["requests_waiting"] = 3.0
    pair["after"]["decode"]["counters"]["external_kv_tokens"] -= 40
    return split.prove(probed.answer(asked, pair))


def _of_two_one_went_away() -> Proof:
    asked, pair = probed.proven_on_g6()
    _, gone = probed.proven_on_g6()
    for when in ("before", "after"):
        gone[when]["prefill"] |= {"replica": "prefill-2", "engine_pid": 12}
    gone["after"]["prefill"]["engine_pid"] = None
    return split.prove(probed.answer(asked, pair, gone | {"prefill_replica": "prefill-2"}))


def _asked(prove: Callable[[Asking], Proof], **behaviour: Any) -> Proof:
    with ProvableEndpoint() as fake, tempfile.TemporaryDirectory() as folder:
        for name, value in behaviour.items():
            assert name in Behaviour.__dataclass_fields__
            setattr(fake.behaviour, name, value)
        asking = Asking(Endpoint(fake.url, fake.key_file(Path(folder)), MODEL))
        try:
            return prove(asking)
        finally:
            asking.close()


def _answers(**behaviour: Any) -> Proof:
    return _asked(lambda asking: answers.prove(asking, 16, 8190, light=True), **behaviour)


def _idle(**behaviour: Any) -> Proof:
    return _asked(lambda asking: idle.prove(asking, asking.phases(), deadline_s=0.1), **behaviour)


CASES: dict[str, Callable[[], Proof]] = {
    "decode computed the prompts itself": lambda: _split(probed.recomputed),
    "no prefill replica": lambda: split.prove(probed.answer(probed.UCX_HERE, problems=[_NO_PREFILL])),
    "two zones": _half_in_another_zone,
    "other requests at the same time": _beside_others,
    "a replica that went away": _of_two_one_went_away,
    "LIBFABRIC over TCP": lambda: _transport(probed.tcp_for_efa),
    "plugin missing": lambda: _transport(probed.ucx_for_libfabric),
    "UCX on EFA": lambda: _transport(probed.ucx_on_efa),
    "EFA's counters still": lambda: _transport(probed.still_efa),
    "one rail of four": lambda: _transport(probed.one_rail),
    "nothing arrived": lambda: _transport(probed.recomputed),
    "a fallback that is allowed": lambda: _transport(probed.tcp_for_efa, allow_fallback=True),
    "a slow link": lambda: _speed(15.0),
    "TCP's speed": lambda: _speed(45.0, probed.proven_on_p5),
    "a TCP link that crawls": lambda: _speed(260.0, probed.ucx_over_tcp),
    "NCCL over sockets": lambda: _nccl(printed.answer("sockets")),
    "NCCL, slow": lambda: _nccl(printed.answer(output=printed.before() + printed.table(1.1))),
    "NCCL, wrong values": lambda: _nccl(printed.answer("wrong")),
    "NCCL that hangs": lambda: _nccl(printed.answer("hanging")),
    "another token": lambda: _answers(wrong_after=2, knows_other=False),
    "the prompt did not go to prefill": lambda: _answers(path=("recovered", "the KV transfer failed")),
    "KV cache that stays": lambda: _idle(usage={"prefill": (0.0, 0.12)}),
    "an expired lease": lambda: _idle(expired=(0, 1)),
    "an expired lease beside other requests": lambda: _idle(expired=(0, 1), running=2),
}
