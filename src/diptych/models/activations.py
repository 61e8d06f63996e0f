"""What vLLM needs on a GPU beside weights and KV cache: an estimate, within about half a GiB.

vLLM measures it at start-up by running one step of `max_num_batched_tokens` and sampling for `max_num_seqs`
(`profile_run` in gpu_model_runner.py). Here the same step is counted:

    a layer    tokens x (4 hidden states + the widest intermediate state: of the MLP, the experts or the mixer)
    sampling   sequences x vocabulary x (logits + three times float32: logits, probabilities, noise)
    an image   see `image_bytes`; vLLM runs it before the step, so that the larger of the two counts

Measured by others (start-up logs, GiB for activations or for all that is neither weights nor cache):

    Llama-3.1-8B, A100, vLLM 0.31             1.44 activations, 0.26 outside torch, 0.23 CUDA graphs
    Qwen3-235B-A22B-FP8, 4 GPUs, 32 sequences 0.76 activations, 1.70 outside torch, 0.32 CUDA graphs
    Qwen3.5-9B with images, L40S, vLLM 0.19   2.02 in all, 0.65 CUDA graphs
"""

from diptych.catalog.instances import GIB
from diptych.models.layers import DTYPE_BYTES, FULL, RECURRENT, SLIDING, Fields, is_latent, kv_heads
from diptych.models.mlps import experts
from diptych.models.state import recurrence
from diptych.models.vision import vision_fields

CUDA_GRAPHS = 7 * GIB // 10
"""Of the graphs that vLLM captures unless eager: 0.2 to 0.8 GiB in the logs above, 1.6 at the most."""

OUTSIDE_TORCH = GIB // 4
"""Of CUDA and its libraries, for one GPU alone."""

OUTSIDE_TORCH_PARALLEL = 5 * GIB // 4
"""The same where GPUs work together: NCCL's buffers are added."""

_QWEN_IMAGE_TOKENS = 16384
"""Qwen3-VL, Qwen3.5: `longest_edge` of preprocessor_config.json, 16777216 pixels, over 32 x 32 for a token."""


def step_bytes(
    fields: Fields,
    kinds: tuple[str, ...],
    *,
    tokens: int,
    sequences: int,
    dtype_bytes: int,
    tensor_parallel: int,
) -> int:
    """Bytes at the peak of one step of `tokens`, sampling for `sequences`, on one GPU.

    Raises:
        ModelError: a number is missing or none.
    """
    hidden, vocabulary = fields.required("hidden_size"), fields.required("vocab_size")
    widest = max(_mlp_width(fields, tensor_parallel), _mixer_width(fields, kinds, tensor_parallel))
    layer = tokens * (4 * hidden + widest) * dtype_bytes
    return layer + min(sequences, tokens) * vocabulary * (dtype_bytes + 3 * DTYPE_BYTES["float32"])


def image_bytes(fields: Fields, image_tokens: int, dtype_bytes: int, tensor_parallel: int) -> int:
    """Bytes at the peak of encoding one image of `image_tokens`; 0 for a model without a vision tower.

    For every patch: an MLP's intermediate state twice, four hidden states and the pixels.

    Raises:
        ModelError: a number is missing or none.
    """
    tower = vision_fields(fields)
    if tower is None:
        return 0
    hidden, inner = tower.number("hidden_size"), tower.number("intermediate_size")
    merge = tower.number("spatial_merge_size", default=tower.number("pooling_kernel_size", default=2))
    pixels = 3 * tower.number("temporal_patch_size", default=1) * tower.number("patch_size") ** 2
    width = 2 * inner // tensor_parallel + 4 * hidden + pixels
    return image_tokens * (merge**2 * width + fields.required("hidden_size")) * dtype_bytes


def largest_image_tokens(fields: Fields) -> int | None:
    """Tokens of the largest image that vLLM accepts, and runs at start-up; None where that is not known here.

    0 for a model without a vision tower.
    """
    tower = vision_fields(fields)
    if tower is None:
        return 0
    kind = str(tower.get("model_type"))
    if kind.startswith("qwen3"):
        return _QWEN_IMAGE_TOKENS
    if kind == "gemma4_vision":
        return fields.number("vision_soft_tokens_per_image", default=280)
    if kind == "siglip_vision_model":
        return fields.number("mm_tokens_per_image", default=256)
    return None


def _mlp_width(fields: Fields, tensor_parallel: int) -> int:
    """Elements per token of an MLP's intermediate states: gate, up and their product."""
    dense = 3 * fields.number("intermediate_size", default=0) // tensor_parallel
    has = experts(fields)
    if has is None:
        return dense
    routed = has.per_token * (3 * has.width // tensor_parallel + fields.required("hidden_size"))
    return max(dense, routed + 3 * has.shared_width // tensor_parallel)


def _mixer_width(fields: Fields, kinds: tuple[str, ...], tensor_parallel: int) -> int:
    """Elements per token of the widest mixer's intermediate states."""
    widths = [0]
    if RECURRENT in kinds:
        net = recurrence(fields)  # projections, their convolution, and what the chunked kernels keep
        widths.append((3 * net.convolved + 3 * net.heads * net.head_size) // tensor_parallel)
    heads = fields.required("num_attention_heads")
    for kind in {FULL, SLIDING} & set(kinds):
        groups, size = kv_heads(fields, kind)
        if is_latent(fields):
            size = fields.number("qk_nope_head_dim") + fields.number("qk_rope_head_dim")
            groups = heads
        widths.append((3 * heads + 2 * groups) * size // tensor_parallel)
    return max(widths)
