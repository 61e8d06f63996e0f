"""PromQL over what a service's pods export, for alerts and board alike.

In the queries `@` stands for the service. Two labels are the PodMonitor's: `phase` ("prefill", "decode", "aggregated",
"head") and `diptych_service`. The other names and labels are those of Ray 2.60 and vLLM 0.29; a test looks each of them
up in the installed source. Ray exports vLLM's `vllm:NAME` as `ray_vllm_NAME` (`vllm.v1.metrics.ray_wrappers`), where
engines run with `log_engine_metrics`. Deployments are called "Prefill:…", "Decode:…" and "Aggregated:…" by
`diptych.serving.builder`.

Four things about Ray's export, seen on Ray 2.60, that shape the queries:

- A gauge that is not set again within 20 s is gone. An idle engine sets none, so no gauge means idle or dead; whether
  a replica lives only Serve's controller tells.
- A counter appears at its first increment, already at 1 or more, which `increase` alone does not see.
- Counters end in `_total`, whatever vLLM calls them.
- A histogram's `_sum` is made from the middles of its buckets: an estimate. Its `_count` is exact.
"""


def for_service(query: str, namespace: str, service: str) -> str:
    """`query` about one service.

    >>> for_service("up{@}", "inference", "qwen")
    'up{namespace="inference",diptych_service="qwen"}'
    """
    return query.replace("@", f'namespace="{namespace}",diptych_service="{service}"')
