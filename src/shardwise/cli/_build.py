"""`FILE.py:build` on the command line: the function that makes the model and the arguments to capture it with."""

import importlib.util
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import UsageError

_PREFIX = "_shardwise_"
Build = Annotated[
    str, typer.Argument(metavar="FILE.py:BUILD", help="A function without arguments: (model, args, kwargs).")
]


def built(text: str) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """What the function gives: a model, its positional arguments and its keyword arguments."""
    file, colon, name = text.rpartition(":")
    if not colon or not name.isidentifier():
        raise UsageError(f"{text!r} names no function: write it as model.py:build")
    path = Path(file)
    if not path.is_file():
        raise UsageError(f"there is no file {file}: give the path of the file that has {name}()")
    function = getattr(_imported(path), name, None)
    if not callable(function):
        raise UsageError(f"{file} has no function {name}")
    result = function()
    match result:
        case (model, tuple() | list() as args, dict() as kwargs) if callable(model):
            return model, tuple(args), kwargs
    raise UsageError(f"{text} gives {type(result).__name__}: it must return (model, args, kwargs)")


def loaded_files() -> dict[str, str]:
    """The files that were loaded here, by the names of their modules: other processes need them to know the classes."""
    return {
        name: str(module.__file__)
        for name, module in sys.modules.items()
        if name.startswith(_PREFIX) and module.__file__
    }


def _imported(path: Path) -> Any:
    name = f"{_PREFIX}{path.stem}"  # so that no installed module of the same name is hidden
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    # Classes look their module up by name; the file may import its neighbours.
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent.resolve()))
    spec.loader.exec_module(module)
    return module
