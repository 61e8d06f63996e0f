"""The files by which a test and the engines' `held_connector` agree on what happens to KV transfers."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

FOLDER_ENV = "CHAOS_FOLDER"
UNPOSTED, SILENT, UNREPORTED, FAILING = "unposted", "silent", "unreported", "failing"
"""States of the link: reads are not posted; nor are they, and prefill hears no heartbeats; what has arrived is not
reported; reads fail. In any other state all is as ever."""


class Link:
    """The KV link as a test wants it.

    Args:
        folder: where the files are; by default the one that the environment names.
    """

    def __init__(self, folder: Path | None = None) -> None:
        folder = folder or Path(os.environ[FOLDER_ENV])
        self._state, self._seen, self._address = folder / "state", folder / "seen", folder / "address"

    @property
    def state(self) -> str:
        """What is to happen now."""
        try:
            return self._state.read_text()
        except FileNotFoundError:
            return ""

    @contextlib.contextmanager
    def being(self, state: str) -> Iterator[None]:
        """Have it in a state for as long as this lasts, or until `open`."""
        self._seen.unlink(missing_ok=True)
        self._state.write_text(state)
        try:
            yield
        finally:
            self.open()

    def open(self) -> None:
        """All is as ever from now on."""
        self._state.unlink(missing_ok=True)

    def tell(self, request_id: str) -> None:
        """Note that a request has come to what its state says."""
        with self._seen.open("a") as file:
            file.write(f"{request_id}\n")

    def held(self) -> int:
        """How many requests have come to it."""
        return len(self._seen.read_text().splitlines()) if self._seen.exists() else 0

    @property
    def address(self) -> tuple[str, str] | None:
        """Host and port at which engines that start now meet their peers; None: where they are told to."""
        if not self._address.exists():
            return None
        host, port = self._address.read_text().split()
        return host, port

    @contextlib.contextmanager
    def moving_new_engines(self, host: str, port: int) -> Iterator[None]:
        """Have engines that start meanwhile meet their peers at another address."""
        self._address.write_text(f"{host} {port}")
        try:
            yield
        finally:
            self._address.unlink()
