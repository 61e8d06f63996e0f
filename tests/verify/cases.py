"""Every failing case that docs/proof.md shows, made by the proofs themselves from what an endpoint told."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from diptych.endpoint import Endpoint
from diptych.verify import answers, idle, speed, split, transport
from diptych.verify.asking import Asking
from diptych.verify.proof import Proof
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


def _speed(ms: float) -> Proof:
    asked, pair = probed.proven_on_g6()
    for one in pair["transfers"]:
        one["ms"] = ms
    return speed.prove(probed.answer(asked, pair))


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
    return _asked(lambda asking: idle.prove(asking, asking.phases(), 0.1), **behaviour)


CASES: dict[str, Callable[[], Proof]] = {
    "decode computed the prompts itself": lambda: _split(probed.recomputed),
    "no prefill replica": lambda: split.prove(probed.answer(probed.UCX_HERE, problems=[_NO_PREFILL])),
    "two zones": _half_in_another_zone,
    "LIBFABRIC over TCP": lambda: _transport(probed.tcp_for_efa),
    "plugin missing": lambda: _transport(probed.ucx_for_libfabric),
    "UCX on EFA": lambda: _transport(probed.ucx_on_efa),
    "EFA's counters still": lambda: _transport(probed.still_efa),
    "one rail of four": lambda: _transport(probed.one_rail),
    "nothing arrived": lambda: _transport(probed.recomputed),
    "a fallback that is allowed": lambda: _transport(probed.tcp_for_efa, allow_fallback=True),
    "a slow link": lambda: _speed(15.0),
    "TCP's speed": lambda: _speed(45.0),
    "another token": lambda: _answers(wrong_after=2, knows_other=False),
    "the prompt did not go to prefill": lambda: _answers(path=("recovered", "the KV transfer failed")),
    "KV cache that stays": lambda: _idle(usage={"prefill": (0.0, 0.12)}),
    "an expired lease": lambda: _idle(expired=(0, 1)),
}
