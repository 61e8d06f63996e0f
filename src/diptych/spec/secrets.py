"""Text that looks like a secret: it has no place in a document, and is never repeated in a message."""

import re

MASK = "(a secret)"

_SECRET = re.compile(
    r"hf_[A-Za-z0-9]{20,}"
    r"|sk-[A-Za-z0-9_-]{20,}"
    r"|dk-[A-Za-z0-9_-]{30,}"
    r"|nvapi-[A-Za-z0-9_-]{20,}"
    r"|(?:AKIA|ASIA)[0-9A-Z]{16}"
    r"|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}"
    r"|glpat-[A-Za-z0-9_-]{16,}"
    r"|xox[abprs]-[A-Za-z0-9-]{10,}"
    r"|eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+"  # a JSON web token
    r"|(?<=Bearer )[A-Za-z0-9._~+/-]{16,}=*"
    r"|(?<=://)[^/\s:@]+:[^/\s:@]+(?=@)"  # user and password of a URL
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----"
)
"""Tokens by the beginnings that their makers gave them so that they can be found."""

_NAMES_SECRET = re.compile(r"(^|_)(token|api_key|password|secret|access_key)$")


def looks_secret(text: str) -> bool:
    """Whether a part of `text` looks like a token, a key or a password.

    >>> looks_secret("hf_abcdefghijklmnopqrstuvwxyz"), looks_secret("g6.8xlarge")
    (True, False)
    """
    return _SECRET.search(text) is not None


def names_secret(name: str) -> bool:
    """Whether a free field of this name (an argument of an engine, a variable) holds a secret.

    >>> names_secret("hf_token"), names_secret("tokenizer")
    (True, False)
    """
    return _NAMES_SECRET.search(name) is not None


def masked(text: str) -> str:
    """`text` with what looks like a secret left out."""
    return _SECRET.sub(MASK, text)
