"""What a real service told, on one machine without a GPU (Ray 2.60, vLLM 0.29, NIXL 1.3.2), is proven as it was."""

import json
from pathlib import Path

from diptych.verify import speed, split, transport

TOLD = json.loads((Path(__file__).parent / "recorded" / "one-machine.json").read_text())


def test_prefill_and_decode_on_one_machine_hold() -> None:
    assert split.prove(TOLD).says == (
        "All 1384 tokens of 4 prompts came to decode from another process, through one pair."
    )
    assert transport.prove(TOLD).says == (
        "UCX was asked for, and carried the KV cache: UCX over shared memory, 70.8 MB in 4 KV transfers."
    )
    assert speed.prove(TOLD).says == (
        "2.58 GB/s, 18.3 ms per 1000 tokens: 207% of what the loopback copy allows."
    )
    assert {module.prove(TOLD).state for module in (split, transport, speed)} == {"holds"}


def test_the_same_with_efa_asked_for_is_a_contradiction() -> None:
    asked = TOLD["asked"] | {"backend": "LIBFABRIC", "provider": "efa"}
    proof = transport.prove(TOLD | {"asked": asked})
    assert proof.state == "fails"
    assert proof.says.startswith(
        "EFA was asked for, and UCX over shared memory is in use (backend set for prefill: UCX"
    )
