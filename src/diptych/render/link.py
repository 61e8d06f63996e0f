"""What makes the KV transfer as fast as its link: how engines lay out KV cache, by model, backend and vLLM's version.

NIXL reads memory in pieces that lie in one stretch, each a descriptor. vLLM posts them on the decode engine's own
thread, so that while it does no running answer gets a token; and small pieces leave the link idle. By default a piece
is one block of one layer: 16 tokens of K, or of V. Measured on two H200s with NVLink (Qwen3-8B's shape, vLLM 0.26,
NIXL 1.3.1 with UCX; docs/benchmarks.md), a prompt of 2000 tokens:

    blocks of 16, layer by layer    3,600 descriptors    8.5 ms to post    about 15 GB/s
    blocks of 128                     449                4.3 ms            40 GB/s
    all layers in one block of 64      26                0.37 ms           above 100 GB/s

`TOPICS` has a table for each thing that can be chosen, with an entry for each situation. Of each the first that fits is
taken; the document's own settings win over it. What is left as vLLM has it has a reason there, too.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from diptych.catalog.engines import minor
from diptych.models.config import ModelShape

BACKEND = "kv_transfer.backend"


@dataclass(frozen=True)
class Link:
    """What the tables decide by.

    Args:
        shape: the model's numbers; None where its config is not known.
        vllm: its version; None where nobody knows.
        backend: NIXL's that the engines are told; None: none, and vLLM takes UCX.
        on_cluster: the engines are on nodes of a cluster, else on one machine.
        in_host_memory: the KV cache crosses in the host's memory: engines on CPUs, or `kv_buffer_device: cpu`.
        across_layers: the document does not refuse blocks across layers.
        drafts: a model of its own drafts tokens: its cache is another group, and some such models need vLLM's second
            runner.
    """

    shape: ModelShape | None
    vllm: str | None
    backend: str | None = None
    on_cluster: bool = False
    in_host_memory: bool = False
    across_layers: bool = True
    drafts: bool = False

    @property
    def is_hybrid(self) -> bool:
        """Some layers keep a state per sequence."""
        return self.shape is not None and self.shape.has_recurrent_state

    @property
    def is_uniform(self) -> bool:
        """All layers keep the same for each token, in K and V of their own: their blocks can be one."""
        return (
            not self.drafts
            and self.shape is not None
            and not self.is_hybrid
            and not self.shape.is_mla
            and len(self.shape.kv_groups) == 1
            and self.shape.sliding_window is None
        )

    @property
    def can_cross_layers(self) -> bool:
        return self.vllm is not None and minor(self.vllm) in _ACROSS_LAYERS


@dataclass(frozen=True)
class Way:
    """How something is that no setting of ours says: in words, and why."""

    value: str
    reason: str


@dataclass(frozen=True)
class LinkSettings:
    """Settings of both engines, and why.

    Args:
        kwargs: arguments of vLLM.
        environment: variables of the engines.
        connector: entries of `kv_connector_extra_config`.
        fields: fields of the document that say `auto`, with what that is.
        reasons: for each name in the four.
        ways: by name, what Diptych does without a setting.
        left: by name, what stays as vLLM has it.
    """

    kwargs: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    connector: Mapping[str, Any] = field(default_factory=dict)
    fields: Mapping[str, str] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    ways: Mapping[str, Way] = field(default_factory=dict)
    left: Mapping[str, Way] = field(default_factory=dict)

    @property
    def values(self) -> dict[str, Any]:
        """All that is set, by name."""
        return {**self.fields, **self.kwargs, **self.environment, **self.connector}


@dataclass(frozen=True)
class Entry:
    """One situation: when it is there, what is set, and why; or how it is without."""

    when: Callable[[Link], bool]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    connector: Mapping[str, Any] = field(default_factory=dict)
    fields: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""
    ways: Mapping[str, Way] = field(default_factory=dict)
    left: Mapping[str, Way] = field(default_factory=dict)

    @property
    def reasons(self) -> dict[str, str]:
        names = [*self.fields, *self.kwargs, *self.environment, *self.connector]
        return dict.fromkeys(names, self.reason)


_ACROSS_LAYERS = ("0.26",)
"""Minor versions of vLLM that can put all layers into one block; 0.29 has no such setting any more."""


def _always(_: Link) -> bool:
    return True


def _leave(when: Callable[[Link], bool], name: str, value: str, reason: str) -> Entry:
    return Entry(when, left={name: Way(value, reason)})


def _do(name: str, value: str, reason: str) -> Entry:
    return Entry(_always, ways={name: Way(value, reason)})


_THE_BACKEND = (
    Entry(
        lambda link: link.on_cluster and link.backend == "LIBFABRIC",
        fields={BACKEND: "LIBFABRIC"},
        reason="LIBFABRIC: all worker pods have EFA, which UCX can't drive",
    ),
    Entry(
        lambda link: link.on_cluster,
        fields={BACKEND: "UCX"},
        reason="UCX: not all worker pods have EFA",
    ),
    _leave(
        lambda link: link.in_host_memory,
        BACKEND,
        "UCX",
        "vLLM's own; between processes of one machine UCX takes shared memory",
    ),
    _leave(_always, BACKEND, "UCX", "vLLM's own; between GPUs of one machine it was measured over NVLink"),
)

_BLOCKS = (
    _leave(
        lambda link: link.in_host_memory,
        "block_size",
        "vLLM's own",
        "larger blocks were measured from GPU to GPU; here the KV cache crosses in the host's memory",
    ),
    _leave(
        lambda link: link.is_hybrid,
        "block_size",
        "vLLM's own",
        "a hybrid model's blocks are large already: vLLM pads them to its state's size",
    ),
    Entry(
        lambda link: link.across_layers and link.is_uniform and link.can_cross_layers,
        kwargs={"block_size": 64},
        # Only vLLM's first model runner heeds the setting, and only this layout has a block's layers side by side.
        environment={"VLLM_USE_V2_MODEL_RUNNER": "0", "VLLM_KV_CACHE_LAYOUT": "HND"},
        connector={"enable_cross_layers_blocks": "True"},
        reason="one block holds all layers: 26 descriptors for 2000 tokens instead of 3,600",
    ),
    Entry(
        lambda link: link.shape is not None and not link.shape.is_mla,
        kwargs={"block_size": 128},
        reason="eight times fewer and larger descriptors than with blocks of 16",
    ),
    _leave(
        lambda link: link.shape is not None,
        "block_size",
        "vLLM's own",
        "the kernels of latent attention choose their block",
    ),
    _leave(
        _always,
        "block_size",
        "vLLM's own",
        "the model's config is not known: its kernels may choose their block",
    ),
)

_LAYERS = "enable_cross_layers_blocks"
_ACROSS = (
    _leave(lambda link: not link.across_layers, _LAYERS, "off", "the document refuses it"),
    _leave(lambda link: link.in_host_memory, _LAYERS, "off", "what it saves was measured from GPU to GPU"),
    _leave(lambda link: link.shape is None, _LAYERS, "off", "the model's config is not known"),
    _leave(
        lambda link: not link.is_uniform,
        _LAYERS,
        "off",
        "the layers don't all keep the same, each in K and V",
    ),
    _leave(
        lambda link: link.vllm is None,
        _LAYERS,
        "off",
        "vLLM's version is not known; only 0.26 has the setting",
    ),
    _leave(
        lambda link: not link.can_cross_layers,
        _LAYERS,
        "off",
        "of the versions known here only vLLM 0.26 has it",
    ),
)

_THREADS = (
    _leave(
        lambda link: link.backend not in (None, "UCX"),
        "num_threads",
        "NIXL's own",
        "vLLM passes a number of threads on to UCX only",
    ),
    _leave(
        _always,
        "num_threads",
        "4",
        "vLLM's own: each thread of UCX takes doorbell pages of the NIC, which run out; more were not measured",
    ),
)

_DIRECTION = (
    _do(
        "push or pull",
        "pull",
        "decode reads when prefill is done; pushing needs decode's blocks before, and was not measured",
    ),
)

_HANDSHAKES = (
    _do(
        "warm-up of handshakes",
        "at the start",
        "two engines' first KV transfer waits for their handshake: one pair is proven before decode is ready, the "
        "others soon after (not with orchestrator.canary_period_s: 0)",
    ),
)

_GRAPHS = (
    _do(
        "warm-up of graphs",
        "before ready",
        "vLLM captures them when it starts, and each replica answers a request of its own before any client's",
    ),
)

TOPICS = (_THE_BACKEND, _BLOCKS, _ACROSS, _THREADS, _DIRECTION, _HANDSHAKES, _GRAPHS)
"""Each a table, of which the first entry that fits is taken; none where none does."""


def link_settings(link: Link) -> LinkSettings:
    """What the engines of both phases are told where they are apart."""
    fitting = (next((each for each in topic if each.when(link)), None) for topic in TOPICS)
    found = [entry for entry in fitting if entry is not None]
    return LinkSettings(
        kwargs=_merged(each.kwargs for each in found),
        environment=_merged(each.environment for each in found),
        connector=_merged(each.connector for each in found),
        fields=_merged(each.fields for each in found),
        reasons=_merged(each.reasons for each in found),
        ways=_merged(each.ways for each in found),
        left=_merged(each.left for each in found),
    )


def _merged(mappings: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    return {name: value for each in mappings for name, value in each.items()}
