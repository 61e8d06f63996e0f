"""Proof of a running endpoint, seen from outside: a URL, an admin key, a model; not how it was started.

| module | holds |
|---|---|
| `run` | `Verification`: the proofs in their order, one by one, once or for as long as it is watched |
| `proof` | `Proof`, `Report`: what a proof saw, its evidence, and what it would have been otherwise |
| `split` | the phases are apart: each prompt's KV cache came from another process |
| `transport` | the KV cache crossed the link that was asked for (`diptych.serving.transport` judges each pair) |
| `speed` | it crossed as fast as that link should |
| `nccl` | what NCCL between the nodes says of their network, beside the proof of speed |
| `answers`, `canary` | both ways through the service answer the same; the prompts, and how answers are compared |
| `idle` | nothing is left behind: KV cache, leases, failed transfers |
| `asking` | the endpoint's routes as the proofs ask them |
"""
