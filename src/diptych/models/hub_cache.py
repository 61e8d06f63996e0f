"""What lies in the Hugging Face hub's cache on this disk, without the hub's own library.

(Being written: signatures are final, bodies follow.)
"""

from pathlib import Path


def config_in_hub_cache(source: str, revision: str | None = None) -> Path | None:
    """The `config.json` of a Hugging Face id in the hub's cache (HF_HUB_CACHE, HF_HOME), None without one.

    Its siblings, `hf_quant_config.json` and the weights if they were fetched, lie in the same directory.
    """
    raise NotImplementedError
