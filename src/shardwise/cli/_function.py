"""`FILE.py:name` and `module:name` on the command line: a user's function, from a file or from an importable module,
including those in the current directory."""

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import UsageError
from ..modules import module_of


def is_users(text: str) -> bool:
    """True if the text is the name of a user's function and not of an operator, such as `namespace::name`."""
    return ":" in text and "::" not in text


def function_of(text: str, example: str) -> Callable[..., Any]:
    """The function with this name; `example` shows the expected form in messages."""
    where, colon, name = text.rpartition(":")
    if not colon or not where or not name.isidentifier():
        raise UsageError(f"{text!r} is not the name of a function: write it as {example}")
    module = _from_file(Path(where), name) if where.endswith(".py") else _from_name(where, text)
    function = getattr(module, name, None)
    if not callable(function):
        raise UsageError(f"{where} has no function {name}")
    return function


def _from_file(path: Path, wanted: str) -> ModuleType:
    if not path.is_file():
        raise UsageError(f"there is no file {path}: give the path of the file that has {wanted}")
    _look_in(path.parent)
    return module_of(path)


def _from_name(name: str, text: str) -> ModuleType:
    _look_in(Path())
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        # Only if the module itself or its package is missing; a failing import inside it is the user's error.
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise UsageError(
            f"cannot import {name!r} for {text!r}: give a module, or a file as FILE.py:NAME"
        ) from None


def _look_in(folder: Path) -> None:
    """Make modules in a directory importable, as Python does for the directory of a script."""
    if str(folder.resolve()) not in sys.path:
        sys.path.insert(0, str(folder.resolve()))
