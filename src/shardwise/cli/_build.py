"""`FILE.py:build` on the command line: the function that makes the model and the arguments to capture it with."""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import UsageError

Build = Annotated[
    str,
    typer.Argument(
        metavar="FILE.py:BUILD", help="A function without arguments that returns (model, args, kwargs)."
    ),
]

ClusterName = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        help="h100 (the default), h200, a100, l40s, tpu, laptop, or a JSON file.",
        show_default=False,
    ),
]


def built(text: str) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """What the function gives: a model, its positional arguments and its keyword arguments."""
    result = builder(text)()
    match result:
        case (model, tuple() | list() as args, dict() as kwargs) if callable(model):
            return model, tuple(args), kwargs
    kind = type(result).__name__
    if isinstance(result, tuple):
        kind = f"({', '.join(type(part).__name__ for part in result)})"
    raise UsageError(
        f"{text} gives {kind}: it must return (model, args, kwargs), a callable, a tuple and a dict"
    )


def builder(text: str) -> Callable[[], Any]:
    """The function itself."""
    file, colon, name = text.rpartition(":")
    if not colon or not name.isidentifier():
        raise UsageError(f"{text!r} names no function: write it as model.py:build")
    path = Path(file)
    if not path.is_file():
        raise UsageError(f"there is no file {file}: give the path of the file that has {name}()")
    function = getattr(_imported(path), name, None)
    if not callable(function):
        raise UsageError(f"{file} has no function {name}")
    return function


def _imported(path: Path) -> Any:
    name = f"_shardwise_{path.stem}"  # so that no installed module of the same name is hidden
    loaded = sys.modules.get(name)
    if loaded is not None and loaded.__file__ == str(path):
        return loaded
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    # Classes look their module up by name; the file may import its neighbours.
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent.resolve()))
    spec.loader.exec_module(module)
    return module
