"""What one GPU of a replica has room for, before anything is started.

    requested = memory that torch sees x gpu_memory_utilization
    KV cache  = requested - weights - activations - what lies outside torch - CUDA graphs

as vLLM divides it (`determine_available_memory` in gpu_worker.py). Weights and cache are counted from the
config (`weights.py`, `paging.py`) and close to exact; the rest is an estimate (`activations.py`).
"""

from dataclasses import dataclass
from math import ceil

from diptych.models.activations import (
    CUDA_GRAPHS,
    OUTSIDE_TORCH,
    OUTSIDE_TORCH_PARALLEL,
    image_bytes,
    largest_image_tokens,
    step_bytes,
)
from diptych.models.config import DTYPE_BYTES, ModelShape
from diptych.models.weights import ASSUMED_DTYPE, stage_layers


@dataclass(frozen=True)
class Budget:
    """One GPU's memory as vLLM would divide it, all in bytes.

    Args:
        requested: `gpu_bytes` times the utilization: what the engine may use.
        weights: of this GPU's part of the model; of the fullest GPU with pipeline parallelism.
        activations: the peak of a step of `max_num_batched_tokens`, or of an image.
        outside_torch: CUDA context, NCCL, library workspaces.
        cuda_graphs: 0 when eager.
        block_bytes: one block in all its layers.
        blocks_per_sequence: that a sequence of `max_model_len` takes.
        max_model_len: tokens of the longest sequence.
        notes: what is less exact than the rest, one sentence each.
    """

    requested: int
    weights: int
    activations: int
    outside_torch: int
    cuda_graphs: int
    block_bytes: int
    blocks_per_sequence: int
    max_model_len: int
    notes: tuple[str, ...] = ()

    @property
    def kv_cache(self) -> int:
        """What is left for blocks; negative where weights and the rest don't fit."""
        return self.requested - self.weights - self.activations - self.outside_torch - self.cuda_graphs

    @property
    def blocks(self) -> int:
        """Blocks that sequences can use: vLLM keeps one of them back."""
        return max(0, self.kv_cache // self.block_bytes - 1)

    @property
    def fits(self) -> bool:
        """Whether at least one sequence of `max_model_len` fits; vLLM refuses to start otherwise."""
        return self.blocks >= self.blocks_per_sequence

    @property
    def sequences(self) -> float:
        """Sequences of `max_model_len` that fit at once; vLLM logs it as "maximum concurrency"."""
        return self.blocks / self.blocks_per_sequence

    @property
    def tokens(self) -> int:
        """Tokens of such sequences that fit at once; vLLM logs it as "KV cache size"."""
        return int(self.sequences * self.max_model_len)

    @property
    def sequence_bytes(self) -> int:
        """Bytes of blocks that one sequence of `max_model_len` takes, padding included."""
        return self.blocks_per_sequence * self.block_bytes

    @property
    def missing(self) -> int:
        """Bytes by which the GPU is too small for one sequence of `max_model_len`; 0 where it fits."""
        return max(0, (self.blocks_per_sequence + 1) * self.block_bytes - self.kv_cache)


def memory_budget(
    shape: ModelShape,
    *,
    gpu_bytes: int,
    utilization: float,
    max_model_len: int,
    tensor_parallel: int = 1,
    pipeline_parallel: int = 1,
    dtype: str | None = None,
    kv_dtype_bytes: int | None = None,
    block_size: int = 16,
    max_num_seqs: int = 256,
    max_num_batched_tokens: int = 2048,
    eager: bool = False,
    prefix_caching: bool = False,
    weights: int | None = None,
    vision: bool = True,
    image_tokens: int = 0,
) -> Budget:
    """Divide one GPU's memory.

    With pipeline parallelism the fullest stage's weights and the widest stage's blocks count, so that it is a
    lower bound: vLLM holds all stages to the one with the least blocks.

    Args:
        gpu_bytes: memory that torch sees on one GPU (22.03 GiB on an L4).
        utilization: vLLM's `gpu_memory_utilization`.
        dtype: that the model is loaded and run in ("bfloat16"); its own without, bfloat16 where it states none.
        kv_dtype_bytes: bytes of one element of KV cache (bfloat16 2, fp8 1); without, what the checkpoint's
            quantisation asks for, else as the model's dtype.
        block_size: tokens per block (vLLM's default on CUDA: 16); raised for hybrids as vLLM does.
        prefix_caching: whether it is on; hybrids then keep two states per sequence (`mamba_cache_mode: align`).
        weights: bytes of weights on this GPU where they are known; estimated from the config without.
        vision: False leaves a vision tower out (vLLM's `language_model_only`, or all modalities limited to 0).
        image_tokens: of the largest image, which vLLM runs at start-up unless `skip_mm_profiling` is set;
            `image_tokens_of(shape)` where nothing limits images. 0 leaves it out, and a note says so.

    Raises:
        ModelError: the model's weights or its cache can't be sized.
    """
    dtype_bytes = _dtype_bytes(shape, dtype)
    layout = shape.cache_layout(
        kv_dtype_bytes=kv_dtype_bytes,
        dtype_bytes=dtype_bytes,
        tensor_parallel=tensor_parallel,
        block_size=block_size,
    )
    step = step_bytes(
        shape.fields,
        shape.layer_kinds,
        tokens=max_num_batched_tokens,
        sequences=max_num_seqs,
        dtype_bytes=dtype_bytes,
        tensor_parallel=tensor_parallel,
    )
    image = image_bytes(shape.fields, image_tokens if vision else 0, dtype_bytes, tensor_parallel)
    batches = 2 if pipeline_parallel == 1 else pipeline_parallel + 1  # with asynchronous scheduling
    estimate = None
    if weights is None:
        estimate = shape.weights(
            dtype=dtype, tensor_parallel=tensor_parallel, pipeline_parallel=pipeline_parallel, vision=vision
        )
    parallel = tensor_parallel * pipeline_parallel > 1
    return Budget(
        requested=ceil(gpu_bytes * utilization),
        weights=estimate.gpu_bytes if estimate else weights or 0,
        activations=max(step, image),
        outside_torch=OUTSIDE_TORCH_PARALLEL if parallel else OUTSIDE_TORCH,
        cuda_graphs=0 if eager else CUDA_GRAPHS,
        block_bytes=max(layout.block_bytes(stage) for stage in _stages(shape.num_layers, pipeline_parallel)),
        blocks_per_sequence=layout.blocks_per_sequence(
            max_model_len, batches * max_num_batched_tokens, states=2 if prefix_caching else 1
        ),
        max_model_len=max_model_len,
        notes=_notes(shape, estimate.notes if estimate else (), vision and not image_tokens),
    )


def image_tokens_of(shape: ModelShape) -> int | None:
    """Tokens of the largest image that vLLM runs at start-up where nothing limits it; None where not known.

    0 for a model without a vision tower.
    """
    return largest_image_tokens(shape.fields)


def kv_transfer_bytes(
    shape: ModelShape,
    tokens: int,
    *,
    dtype: str | None = None,
    kv_dtype_bytes: int | None = None,
    block_size: int = 16,
) -> int:
    """Bytes of one KV transfer of `tokens`: whole blocks of all attention layers, and the recurrent state.

    Of the whole model: with tensor parallelism each GPU sends its part. Of sliding layers only the blocks
    that their window touches go (`blocks_per_sw` in vLLM's NIXL connector); padding never does.

    Raises:
        ModelError: the model's cache can't be sized.
    """
    total = 0
    layout = shape.cache_layout(
        kv_dtype_bytes=kv_dtype_bytes, dtype_bytes=_dtype_bytes(shape, dtype), block_size=block_size
    )
    for group in layout.groups:
        blocks = 1
        if not group.is_recurrent:
            blocks = ceil(tokens / group.block_size)
            if group.window is not None:
                blocks = min(blocks, ceil(group.window / group.block_size) + 1)
        total += blocks * group.used_bytes * len(group.layers)
    return total


def _dtype_bytes(shape: ModelShape, dtype: str | None) -> int:
    name = (dtype if dtype != "auto" else None) or shape.dtype or ASSUMED_DTYPE
    if name not in DTYPE_BYTES:
        raise shape.fields.unknown(f"the dtype {name}")
    return DTYPE_BYTES[name]


def _stages(layers: int, stages: int) -> list[range]:
    """The layers of each pipeline stage."""
    ranges, start = [], 0
    for count in stage_layers(layers, stages):
        ranges.append(range(start, start + count))
        start += count
    return ranges


def _notes(shape: ModelShape, notes: tuple[str, ...], images_left_out: bool) -> tuple[str, ...]:
    largest = image_tokens_of(shape)
    if not images_left_out or largest == 0:
        return notes
    more = ""
    if largest:
        size = image_bytes(shape.fields, largest, _dtype_bytes(shape, None), 1)
        more = f", which takes up to {size / (1 << 30):.1f} GiB in place of the activations counted here"
    return (*notes, f"Images are left out: at start-up vLLM encodes the largest that is allowed{more}.")
