"""Where an endpoint is, and how a request to it authenticates."""

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from diptych.errors import EndpointError

# A key, with what it may behind it, or the header line that `curl -H @FILE` sends.
_KEY_LINE = re.compile(
    r"(?:Authorization:\s*)?(?:Bearer\s+)?(?P<key>[\x21-\x7e]+)(?:\s+(?:admin|priority=-?\d+))*",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Endpoint:
    """An OpenAI-compatible endpoint.

    The key itself is no field: it is read from its file for each request, so no repr, log or pickle holds it.

    Args:
        url: `http[s]://host[:port][/prefix]`; a trailing `/` or `/v1` is dropped.
        api_key_file: a file whose first line is a key, alone, with `admin` or `priority=N` behind it, or as
            `Authorization: Bearer KEY` (what `curl -H @FILE` takes); empty lines and those that begin with `#` are
            left out. None when the endpoint takes no key.
        model: the model's name as the endpoint serves it.

    Raises:
        EndpointError: the URL is none, or carries a user name or password.
    """

    url: str
    api_key_file: Path | None
    model: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "url", _base_url(self.url))

    @property
    def is_loopback(self) -> bool:
        """Whether it is on this machine, where no proxy may come between."""
        host = urlsplit(self.url).hostname or ""
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return host == "localhost"

    def read_key(self) -> str | None:
        """The key, read now; None when the endpoint takes none.

        Raises:
            EndpointError: the file cannot be read, or holds no key.
        """
        path = self.api_key_file
        if path is None:
            return None
        try:
            text = path.read_text("utf-8")
        except UnicodeDecodeError:
            raise _no_key_in(path) from None
        except OSError as error:
            raise EndpointError(
                f"The API key file {path} cannot be read: {error.strerror or error}.",
                "`diptych up` makes it, readable for the user who started the service.",
            ) from error
        lines = (line.strip() for line in text.splitlines())
        match = _KEY_LINE.fullmatch(next((line for line in lines if line and not line.startswith("#")), ""))
        if match is None:
            raise _no_key_in(path)
        return match["key"]


def _no_key_in(path: Path) -> EndpointError:
    return EndpointError(
        f"The API key file {path} holds no API key.",
        "Its first line should be the key, alone or as `Authorization: Bearer KEY`.",
    )


def _base_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        # Reading the port checks it.
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise EndpointError(
            "The endpoint's address is no http:// or https:// URL.", "Write it like http://127.0.0.1:8000."
        )
    if parts.username is not None:
        raise EndpointError(
            "The endpoint's URL carries a user name or password, which would be shown wherever the URL is.",
            "Put the API key into a file and name the file.",
        )
    return parts._replace(query="", fragment="").geturl().rstrip("/").removesuffix("/v1").rstrip("/")
