"""A model's weights as a list of tensors: how many numbers, what quantises them, who holds them.

Sizes are those of a linear layer: `rows` outputs by `columns` inputs. Experts of one layer are one entry with
`copies`. Names are those of the checkpoint without its leading `model.` or `model.language_model.`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

EMBEDDING, LAYERS, HEAD, VISION, DRAFT = "embedding", "layers", "head", "vision", "draft"


@dataclass(frozen=True)
class Tensor:
    """One weight, or equal ones of the same layer.

    Args:
        name: of its module ("layers.3.mlp.experts.*.down_proj").
        rows, columns: its shape; one column for a vector.
        copies: how many there are of it.
        linear: the matrix of a linear layer, which quantisation covers unless told otherwise.
        shards: parts that tensor parallelism can divide it into: 1 for one copy per GPU, 0 for any number.
        part: `EMBEDDING`, `LAYERS`, `HEAD`, `VISION` or `DRAFT` (layers for speculation: stored, not loaded).
        layer: the layer it belongs to; None outside of layers.
        stored: whether the checkpoint holds it.
        loaded: whether vLLM holds it when it serves.
    """

    name: str
    rows: int
    columns: int = 1
    copies: int = 1
    linear: bool = False
    shards: int = 0
    part: str = LAYERS
    layer: int | None = None
    stored: bool = True
    loaded: bool = True

    @property
    def numbers(self) -> int:
        """Elements of all copies."""
        return self.rows * self.columns * self.copies

    def share(self, tensor_parallel: int) -> float:
        """The fraction of it that one of `tensor_parallel` GPUs holds."""
        return 1 / (min(self.shards, tensor_parallel) if self.shards else tensor_parallel)


def linear(
    name: str, rows: int, columns: int, *, bias: bool = False, copies: int = 1, shards: int = 0
) -> list[Tensor]:
    """A linear layer: its matrix, and its bias if it has one."""
    matrix = Tensor(name, rows, columns, copies, linear=True, shards=shards)
    return [matrix, Tensor(name, rows, 1, copies, shards=shards)] if bias else [matrix]


def replicated(name: str, rows: int, columns: int = 1) -> Tensor:
    """A tensor that quantisation leaves alone and every GPU holds whole: a norm, a router."""
    return Tensor(name, rows, columns, shards=1)


def placed(tensors: Iterable[Tensor], prefix: str, part: str, layer: int | None = None) -> Iterator[Tensor]:
    """The same tensors under `prefix`, in a part of the model."""
    return (replace(tensor, name=f"{prefix}.{tensor.name}", part=part, layer=layer) for tensor in tensors)
