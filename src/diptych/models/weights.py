"""A model's weights from its config alone, in numbers and in bytes: on disk, and in a GPU's memory.

(Being written: signatures are final, bodies follow.)
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class WeightEstimate:
    """What a checkpoint of this shape holds.

    Args:
        parameters: numbers in what is loaded, tied ones once, those of draft (MTP) layers not counted.
        loaded_bytes: of all tensors that vLLM loads, of one copy of the model.
        checkpoint_bytes: of all tensors on disk, draft (MTP) layers included.
        vision_bytes: the part of `loaded_bytes` that a vision tower takes; not loaded text-only.
        gpu_bytes: of the fullest GPU at the tensor and pipeline parallelism asked for.
        notes: what is less exact than the rest, one sentence each.
    """

    parameters: int
    loaded_bytes: int
    checkpoint_bytes: int
    vision_bytes: int
    gpu_bytes: int
    notes: tuple[str, ...] = ()


def estimate_weights(
    config: Mapping[str, Any],
    file: str = "config.json",
    *,
    dtype: str | None = None,
    tensor_parallel: int = 1,
    pipeline_parallel: int = 1,
    vision: bool = True,
) -> WeightEstimate:
    """The weights that the content of a `config.json` describes.

    Args:
        dtype: that they are loaded as ("bfloat16"); the config's own without.
        vision: False counts the text part only (vLLM's `language_model_only`).

    Raises:
        ModelError: the architecture or its quantisation is not known here; nothing is guessed.
    """
    raise NotImplementedError
