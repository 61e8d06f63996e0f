"""Tokens for an EKS cluster's API, as `aws eks get-token` makes them: `python -m diptych.eks.token --cluster NAME`.

A token is a signed request to STS, "who am I", which EKS makes in the caller's stead: for one minute, and for this
cluster only, since its name is signed with it. kubeconfigs that Diptych writes call this as their exec plugin, so that
no AWS CLI is needed.
"""

import argparse
import base64
import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from diptych.eks.aws import Session
from diptych.errors import DiptychError

_PREFIX = "k8s-aws-v1."
_CLUSTER_HEADER = "x-k8s-aws-id"
_URL_LASTS_S = 60
"""EKS takes no other."""
_TOKEN_LASTS = timedelta(minutes=14)
"""EKS takes a token for 15 minutes after it was signed."""


def token(session: Session, cluster: str) -> str:
    """A token for the cluster's API, in the caller's name.

    Raises:
        AccountError: there are no credentials.
    """
    url = session.presigned("sts", "get_caller_identity", {_CLUSTER_HEADER: cluster}, _URL_LASTS_S)
    return _PREFIX + base64.urlsafe_b64encode(url.encode()).decode().rstrip("=")


def credential(text: str, now: datetime) -> dict[str, object]:
    """A token in the shape that an exec plugin prints."""
    ends = (now + _TOKEN_LASTS).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "client.authentication.k8s.io/v1beta1",
        "kind": "ExecCredential",
        "spec": {},
        "status": {"expirationTimestamp": ends, "token": text},
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a token; what went wrong goes to standard error, in words."""
    parser = argparse.ArgumentParser(prog="python -m diptych.eks.token", description="Print a token for EKS.")
    parser.add_argument("--cluster", required=True)
    parser.add_argument("--region", required=True)
    asked = parser.parse_args(arguments)
    try:
        found = token(Session(asked.region), asked.cluster)
    except DiptychError as error:
        print(f"{error.message}\n{error.hint}".rstrip(), file=sys.stderr)
        return error.exit_code
    print(json.dumps(credential(found, datetime.now(UTC))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
