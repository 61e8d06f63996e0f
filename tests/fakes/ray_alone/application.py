"""An application's builder for `ray_alone`."""

from typing import Any


def build(arguments: Any) -> Any:
    return arguments
