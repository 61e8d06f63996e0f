"""Numbers from a running endpoint, wherever it is: per phase, under a load that vLLM's own client sends.

| module | holds |
|---|---|
| `load`, `traces` | `Load` and the presets: what is sent and when; traces of real traffic |
| `workload` | `Trace`, `OwnPrompts`: what the client is given to send |
| `client`, `vllm_client` | the client's process: a workload in, its results out |
| `tokens` | a tokenizer where the model's own is not at hand |
| `results` | `Sample`, `Parts`, `Result`: each request, its parts by phase, and their sum |
| `records` | the service's own records of the requests |
| `doubts` | what speaks against trusting a run |
| `slo` | goodput: the share of requests within bounds |
| `measure` | one run: proof of the split, warm-up, load, the service's own records |
| `verdict` | two set-ups compared: ratios with their spread, and a verdict in words |
| `recorded` | runs read back from JSON, and compared |
| `report` | one HTML file with pictures |
"""
