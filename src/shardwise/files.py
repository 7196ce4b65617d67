"""Writing the files that a user asked for: whole or not at all, and refused before the work rather than after it."""

import os
from pathlib import Path

from .errors import UsageError


def write_text(path: Path, text: str) -> None:
    """Write beside the target first, so that it never holds half a document."""
    require_writable(path)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text)
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None


def require_writable(*paths: Path | None) -> None:
    """A `UsageError` for a path that cannot be written; to be asked before minutes are spent on what goes there."""
    for path in paths:
        if path is None:
            continue
        if path.is_dir():
            raise UsageError(f"{path} cannot be written: it is a folder, and a file is needed")
        if not path.parent.is_dir():
            raise UsageError(f"{path} cannot be written: there is no folder {path.parent}")
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise UsageError(f"{path} cannot be written: permission denied")
