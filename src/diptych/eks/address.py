"""The address from which this machine reaches the internet: the only one that a new cluster's API is opened to."""

import ipaddress

import httpx

from diptych.errors import AccountError

SERVICE = "https://checkip.amazonaws.com/"
_TIMEOUT_S = 5.0


def own_cidr(service: str = SERVICE) -> str:
    """This machine's public address, as a network of one: "203.0.113.7/32".

    Raises:
        AccountError: nobody tells; the document then has to.
    """
    try:
        said = httpx.get(service, timeout=_TIMEOUT_S).raise_for_status().text.strip()
        address = ipaddress.ip_address(said)
    except (httpx.HTTPError, ValueError) as error:
        raise AccountError(
            f"{service} does not say from which address you reach the internet ({type(error).__name__}).",
            "Write it into the document, like eks.public_access_cidrs: [203.0.113.7/32]; or set "
            "eks.private_access_only where you are inside the cluster's network.",
        ) from None
    return f"{address}/{address.max_prefixlen}"
