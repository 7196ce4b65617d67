"""Reading and writing users' files: errors are one sentence, and files are written atomically.

A path that cannot be written is refused before a computation rather than after it.
"""

import gzip
import json
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from .errors import UsageError, require

Made = TypeVar("Made")


def path_of(path: str | Path) -> Path:
    """The path of a file given by a user."""
    require(path, (str, Path), "path", "the name of a file")
    return Path(path)


def read_text(path: Path) -> str:
    """The text of a file, gzipped or not."""
    try:
        data = path.read_bytes()
        return (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from None
    except (EOFError, zlib.error, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None


def read_json(path: Path) -> Any:
    """The document in a file, gzipped or not."""
    try:
        return json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise UsageError(f"{path} is not valid JSON: {error}") from None


def read_document(path: Path, read: Callable[[Any], Made]) -> Made:
    """The result of `read` on the document in a file; its errors are prefixed with the file's name."""
    document = read_json(path)
    try:
        return read(document)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None


def write_text(path: Path, text: str) -> None:
    """Write to a temporary file and rename it, so that the target is never half written."""
    require_writable(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None


def require_writable(*paths: Path | None) -> None:
    """Refuse a path that cannot be written; called before a long computation."""
    for path in paths:
        if path is None:
            continue
        if path.is_dir():
            raise UsageError(f"{path} cannot be written: it is a directory")
        if not path.parent.is_dir():
            raise UsageError(f"{path} cannot be written: there is no directory {path.parent}")
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise UsageError(f"{path} cannot be written: permission denied")
