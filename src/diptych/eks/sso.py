"""When an SSO sign-in ends: what the AWS CLI keeps of it in `~/.aws/sso/cache`."""

import hashlib
import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

_CACHE = Path("~/.aws/sso/cache")


def token_ends(config: Mapping[str, Any], profile: str) -> datetime | None:
    """When the sign-in behind a profile ends; None without one, and for one that renews itself.

    Args:
        config: AWS's configuration files, as botocore reads them: `profiles` and `sso_sessions` by name.
    """
    settings = _settings(config.get("profiles", {}), profile)
    key = settings.get("sso_session") or settings.get("sso_start_url")
    if not key:
        return None
    name = hashlib.sha1(str(key).encode(), usedforsecurity=False).hexdigest()
    file = _CACHE.expanduser() / f"{name}.json"
    try:
        kept = json.loads(file.read_text("utf-8"))
        return None if kept.get("refreshToken") else datetime.fromisoformat(kept["expiresAt"])
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return None


def _settings(profiles: Mapping[str, Any], profile: str) -> Mapping[str, Any]:
    """Those of the profile that signs in: a role's come from its source profile."""
    seen: set[str] = set()
    while profile not in seen:
        seen.add(profile)
        settings: Mapping[str, Any] = profiles.get(profile, {})
        profile = settings.get("source_profile", profile)
    return settings
