"""A model's weights from its config alone, in numbers and in bytes: on disk, and in a GPU's memory.

The two differ. Draft (MTP) layers lie on the disk and are not loaded; vLLM keeps a second copy of some tensors
(latent attention's `kv_b_proj`, Gemma 4's shared K and V); weights may be loaded as another dtype. Tensor
parallelism divides most tensors and repeats the rest on every GPU: norms, routers, KV heads that are too few.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from diptych.models.layers import DTYPE_BYTES, Fields, layer_kinds
from diptych.models.quantization import Scheme, schemes
from diptych.models.tensors import EMBEDDING, HEAD, LAYERS, VISION, Tensor
from diptych.models.text import draft_tensors, drafts_unknown, text_tensors
from diptych.models.vision import described_without_tower, vision_tensors

ASSUMED_DTYPE = "bfloat16"
"""Of checkpoints whose config names none; a note says so."""


@dataclass(frozen=True)
class WeightEstimate:
    """What a checkpoint of this shape holds.

    Args:
        parameters: numbers in what is loaded, tied ones once, those of draft (MTP) layers not counted.
        loaded_bytes: of all tensors that vLLM loads, of one copy of the model.
        checkpoint_bytes: of all tensors on disk, draft (MTP) layers included.
        vision_bytes: the part of `loaded_bytes` that a vision tower takes; not loaded text-only.
        gpu_bytes: of the fullest GPU at the tensor and pipeline parallelism asked for.
        schemes: how linear layers are quantised ("FP8"); nothing for plain weights.
        notes: what is less exact than the rest, one sentence each.
    """

    parameters: int
    loaded_bytes: int
    checkpoint_bytes: int
    vision_bytes: int
    gpu_bytes: int
    schemes: tuple[str, ...] = ()
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
        dtype: that they are loaded as ("bfloat16"); the config's own without, or with "auto".
        vision: False counts the text part only (vLLM's `language_model_only`, or all modalities limited to 0).

    Raises:
        ModelError: the architecture or its quantisation is not known here; nothing is guessed.
    """
    return weights_of(
        Fields(config, file),
        dtype=dtype,
        tensor_parallel=tensor_parallel,
        pipeline_parallel=pipeline_parallel,
        vision=vision,
    )


def weights_of(
    fields: Fields,
    *,
    dtype: str | None = None,
    tensor_parallel: int = 1,
    pipeline_parallel: int = 1,
    vision: bool = True,
) -> WeightEstimate:
    """As `estimate_weights`, from fields that are read already.

    Raises:
        ModelError: as there.
    """
    text, tower = text_tensors(fields, layer_kinds(fields)), _vision(fields, vision)
    sizes = Sizes(schemes(fields), *_dtypes(fields, dtype))
    tensors = [*text, *tower]
    stored = [tensor for tensor in [*tensors, *draft_tensors(fields)] if tensor.stored]
    stages = _stages(tensors, fields.required("num_hidden_layers"), pipeline_parallel)
    return WeightEstimate(
        parameters=sum(tensor.numbers for tensor in tensors if tensor.stored),
        loaded_bytes=sum(sizes.loaded(tensor) for tensor in tensors),
        checkpoint_bytes=sum(sizes.stored(tensor) for tensor in stored),
        vision_bytes=sum(sizes.loaded(tensor) for tensor in tower),
        gpu_bytes=max(
            sum(ceil(sizes.loaded(tensor) * tensor.share(tensor_parallel)) for tensor in stage)
            for stage in stages
        ),
        schemes=tuple(scheme.name for scheme in sizes.schemes),
        notes=tuple(_notes(fields, sizes.schemes, vision)),
    )


@dataclass(frozen=True)
class Sizes:
    """Bytes of tensors in one checkpoint.

    Args:
        schemes: how it is quantised.
        stored_as: dtype of what is not quantised.
        loaded_as: dtype that it is loaded as.
    """

    schemes: tuple[Scheme, ...]
    stored_as: str
    loaded_as: str

    def stored(self, tensor: Tensor) -> int:
        """Bytes on disk."""
        return self._bytes(tensor, self.stored_as)

    def loaded(self, tensor: Tensor) -> int:
        """Bytes in memory."""
        return self._bytes(tensor, self.loaded_as)

    def _bytes(self, tensor: Tensor, dtype: str) -> int:
        scheme = next((scheme for scheme in self.schemes if scheme.covers(tensor)), None)
        return scheme.matrix_bytes(tensor) if scheme else tensor.numbers * DTYPE_BYTES[dtype]


def stage_layers(layers: int, stages: int) -> list[int]:
    """How many layers each pipeline stage gets, as vLLM's `get_pp_indices` deals them out.

    >>> stage_layers(32, 2), stage_layers(10, 4)
    ([16, 16], [2, 3, 3, 2])
    """
    counts = [layers // stages] * stages
    for extra in range(layers % stages):
        counts[-(extra + 2)] += 1
    return counts


def _stages(tensors: list[Tensor], layers: int, stages: int) -> list[list[Tensor]]:
    """The tensors of each pipeline stage; a tied embedding is on the first and on the last."""
    tied = not any(tensor.name == "lm_head" for tensor in tensors)
    dealt: list[list[Tensor]] = []
    start = 0
    for stage, count in enumerate(stage_layers(layers, stages)):
        first, last = stage == 0, stage == stages - 1
        parts = {VISION: first, EMBEDDING: first or (last and tied), HEAD: last}
        dealt.append(
            [
                tensor
                for tensor in tensors
                if (tensor.part == LAYERS and start <= (tensor.layer or 0) < start + count)
                or parts.get(tensor.part, False)
            ]
        )
        start += count
    return dealt


def _vision(fields: Fields, wanted: bool) -> list[Tensor]:
    return [replace(tensor, part=VISION) for tensor in vision_tensors(fields)] if wanted else []


def _dtypes(fields: Fields, wanted: str | None) -> tuple[str, str]:
    """The dtypes of what is not quantised, as stored and as loaded; assumed where the config is silent."""
    stated = str(fields.get("dtype") or fields.get("torch_dtype") or ASSUMED_DTYPE).removeprefix("torch.")
    loaded = stated if wanted in (None, "auto") else str(wanted)
    for dtype in (stated, loaded):
        if dtype not in DTYPE_BYTES:
            raise fields.unknown_weights(f"weights of dtype {dtype}")
    return stated, loaded


def _notes(fields: Fields, used: Iterable[Scheme], vision: bool) -> Iterable[str]:
    if vision and described_without_tower(fields):
        yield "The config describes no vision tower; if the model has one, its weights are not counted."
    if drafts_unknown(fields):
        yield "The checkpoint's draft layers, which are not loaded, are not counted: their shape is not known here."
    if not fields.get("dtype") and not fields.get("torch_dtype"):
        yield f"The config names no dtype: {ASSUMED_DTYPE} is assumed."
    if any(scheme.name == "MXFP4" for scheme in used):
        yield "vLLM pads MXFP4 experts for some GPUs' kernels; they may take up to a tenth more."
