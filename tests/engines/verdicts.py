"""What `diptych verify` says of an endpoint, for tests."""

from diptych.endpoint import Endpoint
from diptych.verify.proof import Proof, Report
from diptych.verify.run import Verification

BLOCK_TOKENS = 128
BLOCK_BYTES = (
    BLOCK_TOKENS * 30 * 2 * 3 * 64 * 4
)  # tokens, layers, keys and values, KV heads, head size, float32
SIZES = (127, 128, 129, 1000, 1000, 1000)
"""Of the prompts that `diptych verify` sends through a pair of replicas on CPUs, in tokens."""
BYTES = sum(-(-size // BLOCK_TOKENS) for size in SIZES) * BLOCK_BYTES
CARRIED = f"{BYTES / 1e6:.1f} MB in {len(SIZES)} KV transfers"


def verified(endpoint: Endpoint, *, light: bool = False) -> Report:
    """What `diptych verify` finds, or one round of it with `--watch`."""
    with Verification(endpoint) as verification:
        for _ in verification.steps(light=light):
            pass
        return verification.report()


def by_name(report: Report) -> dict[str, Proof]:
    return {proof.name: proof for proof in report.proofs}


def states(report: Report) -> dict[str, str]:
    return {proof.name: proof.state for proof in report.proofs}


def seen(proof: Proof) -> dict[str, tuple[str, str]]:
    """A proof's evidence: verdict and value by what was looked at."""
    return {one.what: (one.verdict, one.value) for one in proof.evidence}


def told(report: Report) -> str:
    """Every proof with its evidence."""
    lines = []
    for proof in report.proofs:
        lines.append(f"{proof.state} {proof.name}, {proof.took_s:.1f} s: {proof.says}")
        lines += [f"    {one.verdict} {one.what}: {one.value}" for one in proof.evidence]
    return "\n".join(lines)
