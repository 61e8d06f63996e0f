"""Where a service keeps its files on this machine."""

import contextlib
import hashlib
import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from diptych.errors import DocumentError, SetupError
from diptych.remembering import STATE_DIR_ENV, state_root

# Ray adds about 75 characters of its own.
_LONGEST_TEMPORARY_DIRECTORY = 16
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


@dataclass(frozen=True)
class ServicePaths:
    """The files of one service. `directory` is private to the user (0700)."""

    directory: Path

    @classmethod
    def of(cls, name: str) -> "ServicePaths":
        """The paths of the service called `name`; creates nothing.

        Raises:
            DocumentError: nothing can be called that.
        """
        if not _NAME.fullmatch(name):
            raise DocumentError(f"{name!r} is no name of a service.", "Use small letters, digits and '-'.")
        return cls(state_root() / name)

    @property
    def state(self) -> Path:
        return self.directory / "state.json"

    @property
    def plan(self) -> Path:
        return self.directory / "plan.json"

    @property
    def events(self) -> Path:
        return self.directory / "events.jsonl"

    @property
    def api_key(self) -> Path:
        return self.directory / "api-key"

    @property
    def admin_key(self) -> Path:
        """A key that opens admin routes: Diptych's own commands ask with it."""
        return self.directory / "admin-key"

    @property
    def curl_header(self) -> Path:
        return self.directory / "curl-header"

    @property
    def ray_token(self) -> Path:
        return self.directory / "ray-token"

    @property
    def keeper_log(self) -> Path:
        return self.directory / "keeper.log"

    @property
    def deploy_log(self) -> Path:
        return self.directory / "deploy.log"

    @property
    def ray(self) -> Path:
        """Ray's temporary directory: short, since Unix socket paths under it may have 107 characters."""
        digest = hashlib.sha256(str(self.directory).encode()).hexdigest()[:10]
        chosen = Path(tempfile.gettempdir())
        short_enough = len(str(chosen)) <= _LONGEST_TEMPORARY_DIRECTORY
        return (chosen if short_enough else Path("/tmp")) / f"diptych-{os.getuid()}-{digest}"

    @property
    def ray_logs(self) -> Path:
        return self.ray / "session_latest" / "logs"

    @property
    def secrets_and_state(self) -> tuple[Path, ...]:
        """What must not outlive a run; its events and logs may."""
        return (self.state, self.plan, self.api_key, self.admin_key, self.curl_header, self.ray_token)

    def forget(self) -> None:
        """Remove what must not outlive a run, as far as the disk lets us."""
        for path in self.secrets_and_state:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)

    def create(self) -> None:
        """Make the directory.

        Raises:
            SetupError: it cannot be written to.
        """
        try:
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.directory.chmod(0o700)
            probe = self.directory / ".writable"
            probe.write_bytes(b"x" * 4096)
            probe.unlink()
        except OSError as error:
            raise SetupError(
                f"Diptych cannot write its state to {self.directory}: {error.strerror or error}.",
                f"Free space there, or point {STATE_DIR_ENV} at a directory you can write to.",
            ) from None
