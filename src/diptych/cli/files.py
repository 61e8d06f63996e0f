"""Files that commands write: whole or not at all."""

from pathlib import Path


def write_whole(file: Path, text: str) -> None:
    """Write `text` to `file`, never through a link; when it fails, `file` is what it was.

    Raises:
        OSError: the disk is full, or nothing can be written there.
    """
    fresh = file.with_name(f".{file.name}.new")
    try:
        fresh.unlink(missing_ok=True)
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(file)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise
