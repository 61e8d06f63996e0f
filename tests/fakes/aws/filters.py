"""What moto gets wrong of EC2's filters: of several `tag-key` values one is enough; moto asks for all of them.

EC2 documents: "If you specify multiple values for a filter, the values are joined with an OR."
"""

from fnmatch import fnmatch
from typing import Any

import moto.ec2.utils

_motos = moto.ec2.utils.is_filter_matching


def _matches(thing: Any, name: str, values: Any) -> bool:
    if name != "tag-key" or not isinstance(values, list):
        return bool(_motos(thing, name, values))
    return any(fnmatch(key, pattern) for key in thing.get_filter_value(name) for pattern in values)


def mend() -> None:
    """Have moto filter as EC2 does, for the life of this process."""
    moto.ec2.utils.is_filter_matching = _matches
