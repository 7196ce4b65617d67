"""Reading and writing users' files: errors are one sentence, and files are written atomically.

A path that cannot be written is refused before a computation rather than after it.
"""

import gzip
import json
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
    text = read_text(path)
    with named(path):
        return parse_json(text)


def parse_json(text: str) -> Any:
    """The document that a text is; one with a field twice is refused."""
    try:
        return json.loads(text, object_pairs_hook=_object)
    except RecursionError:
        raise UsageError("this is not valid JSON: it is nested too deeply") from None
    except UsageError:
        raise
    except ValueError as error:  # also for a number of too many digits
        raise UsageError(f"this is not valid JSON: {error}") from None


def parse_yaml(text: str) -> Any:
    """The document that a text is; one with a field twice is refused."""
    import yaml

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            _object([(name.value, None) for name, _ in node.value if isinstance(name.value, str)])
            return super().construct_mapping(node, deep)

    try:
        return yaml.load(text, Loader)
    except RecursionError:
        raise UsageError("this is not valid YAML: it is nested too deeply") from None
    except UsageError:
        raise
    except (yaml.YAMLError, ValueError, TypeError) as error:
        raise UsageError(f"this is not valid YAML: {' '.join(str(error).split())}") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise UsageError(f"expected each field of an object once, found {twice!r} twice")
    return made


def read_document(path: Path, read: Callable[[Any], Made]) -> Made:
    """The result of `read` on the document in a file; its errors are prefixed with the file's name."""
    document = read_json(path)
    with named(path):
        return read(document)


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Within, errors of the caller are prefixed with the name of the file that is at fault."""
    try:
        yield
    except _Named:
        raise
    except UsageError as error:
        raise _Named(f"{path}: {error}") from None


class _Named(UsageError):
    """An error that names the file."""


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


def made_folder(path: Path) -> None:
    """Make a folder that does not exist yet, inside one that does."""
    try:
        path.mkdir(exist_ok=True)
    except OSError as error:
        raise UsageError(f"{path} cannot be made: {error.strerror or error}") from None


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
