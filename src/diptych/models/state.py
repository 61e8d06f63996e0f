"""What recurrent layers keep for a sequence: a short convolution's window and a state, as vLLM sizes them.

    conv    (kernel - 1) x channels                 elements of the model's dtype
    state   heads x head size x state size          elements of the dtype that the config names for it

Both are divided by the tensor parallelism (`MambaStateShapeCalculator` in
`vllm/model_executor/layers/mamba/mamba_utils.py`). They do not grow with the sequence.
"""

from dataclasses import dataclass
from math import ceil

from diptych.models.layers import DTYPE_BYTES, Fields

_STATE_DTYPES = {"nemotron_h": ("mamba_ssm_cache_dtype", "float32")}
"""Model types with a field of their own for the state's dtype, and vLLM's default where it is silent."""


@dataclass(frozen=True)
class Recurrence:
    """One recurrent layer.

    Args:
        channels: that the convolution runs over, without the groups.
        groups, group_size: what B and C of Mamba-2 add to them; at least one group goes to each GPU.
        kernel: the convolution's width in tokens.
        heads, head_size, state_size: the shape of the state.
        state_dtype: the state's dtype; None for the model's own.
    """

    channels: int
    kernel: int
    heads: int
    head_size: int
    state_size: int
    state_dtype: str | None
    groups: int = 0
    group_size: int = 0

    @property
    def convolved(self) -> int:
        """All channels that the convolution runs over."""
        return self.channels + 2 * self.groups * self.group_size

    def state_bytes(self, dtype_bytes: int, tensor_parallel: int = 1) -> int:
        """Bytes that one sequence keeps in this layer on each of `tensor_parallel` GPUs.

        Args:
            dtype_bytes: of the model's dtype.
        """
        groups = self.groups if self.groups % tensor_parallel == 0 else tensor_parallel
        convolved = ceil((self.channels + 2 * groups * self.group_size) / tensor_parallel)
        state = ceil(self.heads / tensor_parallel) * self.head_size * self.state_size
        return (self.kernel - 1) * convolved * dtype_bytes + state * DTYPE_BYTES.get(
            self.state_dtype or "", dtype_bytes
        )


def recurrence(fields: Fields) -> Recurrence:
    """The recurrent layers of a model; they are all alike.

    Raises:
        ModelError: their kind is not known here, or a number is missing or none.
    """
    return delta_net(fields) if is_delta_net(fields) else mamba2(fields)


def is_delta_net(fields: Fields) -> bool:
    """Whether the recurrent layers are gated delta nets (Qwen3-Next, Qwen3.5)."""
    return fields.get("linear_num_value_heads") is not None


def delta_net(fields: Fields) -> Recurrence:
    """Gated delta nets: keys and queries share a size, values have their own.

    Raises:
        ModelError: a number is missing or none.
    """
    key = fields.number("linear_num_key_heads") * fields.number("linear_key_head_dim")
    heads, size = fields.number("linear_num_value_heads"), fields.number("linear_value_head_dim")
    return Recurrence(
        channels=2 * key + heads * size,
        kernel=fields.number("linear_conv_kernel_dim"),
        heads=heads,
        head_size=size,
        state_size=fields.number("linear_key_head_dim"),
        state_dtype=_state_dtype(fields, "mamba_ssm_dtype", None),
    )


def mamba2(fields: Fields) -> Recurrence:
    """Mamba-2 as Nemotron-H describes it.

    Raises:
        ModelError: it is described otherwise, or a number is missing or none.
    """
    if fields.get("ssm_state_size") is None or fields.get("mamba_num_heads") is None:
        raise fields.unknown(f"recurrent layers in a model of type {fields.get('model_type')}")
    field, default = _STATE_DTYPES.get(str(fields.get("model_type")), ("mamba_ssm_dtype", None))
    heads, size = fields.number("mamba_num_heads"), fields.number("mamba_head_dim")
    return Recurrence(
        channels=heads * size,
        groups=fields.number("n_groups"),
        group_size=fields.number("ssm_state_size"),
        kernel=fields.number("conv_kernel"),
        heads=heads,
        head_size=size,
        state_size=fields.number("ssm_state_size"),
        state_dtype=_state_dtype(fields, field, default),
    )


def _state_dtype(fields: Fields, name: str, default: str | None) -> str | None:
    stated = fields.get(name)
    if stated is None or stated == "auto":
        return default
    if str(stated) not in DTYPE_BYTES:
        raise fields.unknown(f"a state of dtype {stated}")
    return str(stated)
