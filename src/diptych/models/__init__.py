"""What a model's own files imply."""

from diptych.models.budget import Budget, image_tokens_of, kv_transfer_bytes, memory_budget
from diptych.models.config import KVGroup, ModelShape, read_config, read_model_shape, weight_bytes
from diptych.models.hub_cache import config_in_hub_cache
from diptych.models.shipped import shipped_config, shipped_ids
from diptych.models.weights import WeightEstimate, estimate_weights

__all__ = [
    "Budget",
    "KVGroup",
    "ModelShape",
    "WeightEstimate",
    "config_in_hub_cache",
    "estimate_weights",
    "image_tokens_of",
    "kv_transfer_bytes",
    "memory_budget",
    "read_config",
    "read_model_shape",
    "shipped_config",
    "shipped_ids",
    "weight_bytes",
]
