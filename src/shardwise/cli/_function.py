"""`FILE.py:name` and `module:name` on the command line: a function of the user's, from a file or from a module that can
be imported, those of the current folder included."""

import importlib.util
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import UsageError


def is_users(text: str) -> bool:
    """True for text that names a function of the user's, and not an operator of torch's: `namespace::name` is one."""
    return ":" in text and "::" not in text


def function_of(text: str, example: str) -> Callable[..., Any]:
    """The function that is named; `example` is how one could be written."""
    where, colon, name = text.rpartition(":")
    if not colon or not where or not name.isidentifier():
        raise UsageError(f"{text!r} names no function: write it as {example}")
    module = _from_file(Path(where), name) if where.endswith(".py") else _from_name(where, text)
    function = getattr(module, name, None)
    if not callable(function):
        raise UsageError(f"{where} has no function {name}")
    return function


def _from_file(path: Path, wanted: str) -> ModuleType:
    if not path.is_file():
        raise UsageError(f"there is no file {path}: give the path of the file that has {wanted}")
    name = f"_shardwise_{path.stem}"  # so that no installed module of the same name is hidden
    loaded = sys.modules.get(name)
    if loaded is not None and loaded.__file__ == str(path):
        return loaded
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Classes look their module up by name; the file may import its neighbours.
    sys.modules[name] = module
    _look_in(path.parent)
    spec.loader.exec_module(module)
    return module


def _from_name(name: str, text: str) -> ModuleType:
    _look_in(Path())
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        # Of the module itself or a package that it is in; what it imports in vain is its own affair.
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise UsageError(
            f"cannot import {name!r} for {text!r}: give a module, or a file as FILE.py:NAME"
        ) from None


def _look_in(folder: Path) -> None:
    """Let modules of a folder be imported, as Python does for the folder of a script."""
    if str(folder.resolve()) not in sys.path:
        sys.path.insert(0, str(folder.resolve()))
