"""A model's cache as vLLM pages it: blocks of one size, which groups of layers draw from one pool.

What vLLM 0.29 does (`vllm/v1/core/kv_cache_utils.py`, `Platform._align_hybrid_block_size`), for one GPU:

    page     block size x bytes per token in one layer (KV heads divided by the tensor parallelism, at least
             one each; latent attention whole on every GPU)
    hybrid   the block grows until an attention page holds a recurrent state, whose page is padded to it
    uneven   layers with smaller pages get longer blocks, or padding where the sizes do not divide
    group    layers of one kind, as many as the rarest kind has; a block id stands for a block in each of them
    block    the widest group's pages
    need     full attention ceil(tokens / block size), a window of w ceil((w - 1 + tokens in flight) / block
             size) + 1 and no more than full attention + 1, a recurrent state 1 (2 with prefix caching): blocks

With one kind of layer there is one group and nothing is padded.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

from diptych.models.layers import RECURRENT, KVGroup

KERNEL_BLOCK = 16
"""Tokens in the smallest block of vLLM's attention kernels on CUDA (FlashAttention)."""


@dataclass(frozen=True)
class CacheGroup:
    """Layers that share one table of blocks.

    Args:
        layers: their numbers, from 0.
        page_bytes: of one block in one of them, on one GPU, padding included.
        block_size: tokens in one block; 0 for recurrent layers.
        used_bytes: of `page_bytes` without padding.
        window: the last tokens that are kept, None for all.
    """

    layers: tuple[int, ...]
    page_bytes: int
    block_size: int
    used_bytes: int
    window: int | None = None

    @property
    def is_recurrent(self) -> bool:
        """Whether its layers keep a state per sequence instead of tokens."""
        return self.block_size == 0

    def blocks(self, tokens: int, in_flight: int, states: int) -> int:
        """Blocks that vLLM reserves for one sequence of `tokens`.

        Args:
            in_flight: tokens that may be scheduled and not settled yet.
            states: that a recurrent layer keeps per sequence.
        """
        if self.is_recurrent:
            return states
        if self.window is None:
            return ceil(tokens / self.block_size)
        return ceil(min(self.window - 1 + in_flight, tokens) / self.block_size) + 1


@dataclass(frozen=True)
class CacheLayout:
    """All groups of a model on one GPU."""

    groups: tuple[CacheGroup, ...]

    def block_bytes(self, layers: range | None = None) -> int:
        """Bytes of one block of the pool: the widest group's pages.

        Args:
            layers: those of one pipeline stage; all without.
        """
        return max(
            group.page_bytes * sum(1 for layer in group.layers if layers is None or layer in layers)
            for group in self.groups
        )

    def blocks_per_sequence(self, tokens: int, in_flight: int, states: int = 1) -> int:
        """Blocks of the pool that one sequence of `tokens` needs, in all groups."""
        return sum(group.blocks(tokens, in_flight, states) for group in self.groups)


def cache_layout(
    kinds: Sequence[str],
    kv_groups: Sequence[KVGroup],
    *,
    dtype_bytes: int,
    state_bytes: int = 0,
    tensor_parallel: int = 1,
    block_size: int = 16,
    kernel_block: int = KERNEL_BLOCK,
) -> CacheLayout:
    """The pages and groups of one GPU.

    Args:
        kinds: what each layer keeps, in order.
        kv_groups: its attention layers, by what they keep.
        dtype_bytes: of one element of the KV cache.
        state_bytes: of one recurrent layer's state on one GPU; 0 without such layers.
        block_size: tokens in one block of full attention, before it grows for a hybrid.
        kernel_block: the least tokens in a block of the attention kernel.
    """
    recurrent = tuple(layer for layer, kind in enumerate(kinds) if kind == RECURRENT)
    full = next((group for group in kv_groups if group.window is None), None)
    if recurrent and full:
        token = full.page_bytes(dtype_bytes, tensor_parallel)
        align = max(kernel_block, block_size)
        block_size = max(block_size, align * ceil(state_bytes / (align * token)))
    buckets = []
    for group in kv_groups:
        own = block_size if group.window is None else kernel_block
        page = own * group.page_bytes(dtype_bytes, tensor_parallel)
        members = tuple(layer for layer, kind in enumerate(kinds) if kind == group.kind)
        buckets.append(CacheGroup(members, page, own, page, group.window))
    if recurrent:
        buckets.append(CacheGroup(recurrent, state_bytes, 0, state_bytes))
    return CacheLayout(tuple(_dealt(_of_one_size(buckets))))


def _of_one_size(buckets: Sequence[CacheGroup]) -> list[CacheGroup]:
    """The same with equal pages: longer blocks where that works out, padding elsewhere."""
    page = max(bucket.page_bytes for bucket in buckets)
    alike = []
    for bucket in buckets:
        times = page // bucket.page_bytes if page % bucket.page_bytes == 0 and not bucket.is_recurrent else 1
        alike.append(
            replace(
                bucket,
                page_bytes=page,
                block_size=bucket.block_size * times,
                used_bytes=bucket.used_bytes * times,
            )
        )
    return alike


def _dealt(buckets: Sequence[CacheGroup]) -> list[CacheGroup]:
    """Groups of about equal numbers of layers, each bucket's layers dealt out in turn."""
    counts = [len(bucket.layers) for bucket in buckets]
    size = max(counts) if max(counts) < min(counts) * 1.5 else min(counts)
    groups = []
    for bucket in buckets:
        number = ceil(len(bucket.layers) / size)
        groups += [replace(bucket, layers=bucket.layers[start::number]) for start in range(number)]
    return groups
