"""What can go wrong, in words: every failure that a user may meet is one of these.

Each message says what happened, where, and what to do; the command line prints it and nothing else.
"""


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


class NotUpError(DiptychError):
    """No service of that name is up here."""

    exit_code = 3
