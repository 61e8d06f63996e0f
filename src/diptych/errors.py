"""What can go wrong, in words: every failure that a user may meet is one of these.

Each message says what happened, where, and what to do; the command line prints it and nothing else.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError


class DiptychError(Exception):
    """A failure with a message for the user.

    Args:
        message: what is wrong and where, in one sentence or two.
        hint: what to do about it.
    """

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class DocumentError(DiptychError):
    """The document, an option or a combination of them cannot be served as written."""

    exit_code = 2


class ModelError(DiptychError):
    """The model cannot be found, read or made ready."""


class SetupError(DiptychError):
    """The machine or its Python environment lacks something."""


class StartError(DiptychError):
    """The service did not come up."""


class EndpointError(DiptychError):
    """A running endpoint refused a request, or does not answer."""


class BusyError(EndpointError):
    """It takes no request now, and will later: it has too many, or its replicas change."""


class NotUpError(DiptychError):
    """No service of that name is up here."""

    exit_code = 3


class ClusterError(DiptychError):
    """The Kubernetes cluster, or something in it, refuses, is missing or does not come about."""


class AccountError(DiptychError):
    """The AWS account refuses or lacks something."""


class LeftError(DiptychError):
    """Something is left after `down`: what, why, and what it costs."""


def first_fault(error: "ValidationError") -> str:
    """Of data that is not the user's document: the first field that is wrong, with what is wrong with it."""
    first = error.errors()[0]
    field = ".".join(map(str, first["loc"]))
    return f"{field}: {first['msg']}" if field else first["msg"]
