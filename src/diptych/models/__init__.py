"""What a model's own files imply."""

from diptych.models.config import KVGroup, ModelShape, read_model_shape, weight_bytes

__all__ = ["KVGroup", "ModelShape", "read_model_shape", "weight_bytes"]
