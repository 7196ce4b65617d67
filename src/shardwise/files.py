"""The files that users name: read with one sentence for what is wrong with them, written whole or not at all.

A path that cannot be written is refused before the work rather than after it.
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
    """The path of a file that a user named."""
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
        raise UsageError(f"{path} is no JSON: {error}") from None


def read_document(path: Path, read: Callable[[Any], Made]) -> Made:
    """What `read` makes of the document in a file; its complaints begin with the file's name."""
    document = read_json(path)
    try:
        return read(document)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None


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
