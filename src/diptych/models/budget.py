"""What one GPU of a replica has room for, before anything is started.

(Being written: signatures are final, bodies follow.)
"""

from dataclasses import dataclass

from diptych.models.config import ModelShape


@dataclass(frozen=True)
class Budget:
    """One GPU's memory as vLLM would divide it, all in bytes.

    Args:
        requested: `gpu_bytes` times the utilization: what the engine may use.
        weights: of this GPU's part of the model.
        activations: the peak of a step of `max_num_batched_tokens`.
        non_torch: CUDA context, NCCL, library workspaces.
        cuda_graphs: 0 when eager.
        kv_cache: what is left for blocks; negative where it doesn't fit.
        block_bytes: one block in all its layers.
        blocks: in the pool, the one that vLLM keeps back not counted.
        blocks_per_sequence: that a sequence of `max_model_len` takes.
    """

    requested: int
    weights: int
    activations: int
    non_torch: int
    cuda_graphs: int
    kv_cache: int
    block_bytes: int
    blocks: int
    blocks_per_sequence: int
    max_model_len: int

    @property
    def fits(self) -> bool:
        """Whether at least one sequence of `max_model_len` can be served; vLLM refuses to start otherwise."""
        return self.blocks >= self.blocks_per_sequence

    @property
    def sequences(self) -> float:
        """Sequences of `max_model_len` that fit at once (vLLM's "maximum concurrency")."""
        return self.blocks / self.blocks_per_sequence

    @property
    def tokens(self) -> int:
        """Tokens in sequences of `max_model_len` that fit at once (vLLM's "KV cache size")."""
        return int(self.sequences * self.max_model_len)

    @property
    def sequence_bytes(self) -> int:
        """Bytes of blocks that one sequence of `max_model_len` takes, padding included."""
        return self.blocks_per_sequence * self.block_bytes


def memory_budget(
    shape: ModelShape,
    *,
    gpu_bytes: int,
    utilization: float,
    max_model_len: int,
    tensor_parallel: int = 1,
    pipeline_parallel: int = 1,
    kv_dtype_bytes: int | None = None,
    block_size: int = 16,
    max_num_seqs: int = 256,
    max_num_batched_tokens: int = 2048,
    eager: bool = False,
    prefix_caching: bool = False,
    weights: int | None = None,
    vision: bool = True,
) -> Budget:
    """Divide one GPU's memory.

    Args:
        gpu_bytes: memory that torch sees on one GPU (22.03 GiB on an L4).
        utilization: vLLM's `gpu_memory_utilization`.
        kv_dtype_bytes: bytes of one element of KV cache (bfloat16 2, fp8 1); the model's own without.
        block_size: tokens per block (vLLM's default on CUDA: 16); raised for hybrids as vLLM does.
        prefix_caching: whether it is on; hybrids then keep two states per sequence (`mamba_cache_mode: align`).
        weights: bytes of weights on this GPU where they are known; estimated from the config without.
        vision: False leaves a vision tower out (vLLM's `language_model_only`).

    Raises:
        ModelError: the model's weights or its cache can't be sized.
    """
    raise NotImplementedError


def kv_transfer_bytes(
    shape: ModelShape, tokens: int, *, kv_dtype_bytes: int | None = None, block_size: int = 16
) -> int:
    """Bytes of one KV transfer of `tokens`: whole blocks of all attention layers, and the recurrent state.

    Of the whole model: with tensor parallelism each GPU sends its part.

    Raises:
        ModelError: the model's cache can't be sized.
    """
    raise NotImplementedError
