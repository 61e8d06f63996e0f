"""Secrets in a manifest: none gets into a document; each is remarked on, and its value is never shown."""

from collections.abc import Mapping
from typing import Any

from diptych.spec.convert.parts import Remark
from diptych.spec.secrets import looks_secret, masked, names_secret

_FREE = ("engine_kwargs.", "kv_connector_extra_config.")
_WHY = "it is a secret, which a document does not hold"
_DO = (
    "keep it in a file, a variable or a Kubernetes secret, and name that: model.token_file, model.token_env or "
    "model.token_secret"
)


def without_secrets(values: Mapping[str, Any], remarks: list[Remark], path: str = "") -> dict[str, Any]:
    """The fields of a document without those that hold a secret; each of them gets a remark.

    >>> remarks: list[Remark] = []
    >>> without_secrets({"engine_kwargs": {"hf_token": "abc", "seed": 1}}, remarks)
    {'engine_kwargs': {'seed': 1}}
    >>> remarks[0].where
    'engine_kwargs.hf_token'
    """
    kept: dict[str, Any] = {}
    for name, value in values.items():
        here = f"{path}.{name}".removeprefix(".")
        if isinstance(value, dict) and not looks_secret(str(name)):
            kept[name] = without_secrets(value, remarks, here)
        elif looks_secret(str(name)) or _is_secret(here, value):  # a list goes as a whole
            remarks.append(Remark(masked(here), _WHY, _DO))
        else:
            kept[name] = value
    return kept


def _is_secret(path: str, value: Any) -> bool:
    if isinstance(value, list):
        return any(_is_secret(path, each) for each in value)
    if isinstance(value, dict):
        return any(
            looks_secret(str(name)) or _is_secret(f"{path}.{name}", each) for name, each in value.items()
        )
    named = any(free in path for free in _FREE) and names_secret(path.rpartition(".")[2])
    return isinstance(value, str) and value != "" and (named or looks_secret(value))
