"""An operator and a call of it, from the options of a command."""

import ast
from collections.abc import Callable
from typing import Annotated, Any

import typer

from ..errors import UsageError
from ._function import function_of, is_users

_SHAPE_HELP = (
    "Shape of an input tensor, as 4,6,8 or 4,6:int64; 4,6;4,6 for a list of tensors. Repeat for more."
)
Op = Annotated[
    str,
    typer.Argument(help="torch.mm, aten.mm.default, namespace::name, FILE.py:function or module:function."),
]
Shapes = Annotated[list[str] | None, typer.Option("--shape", help=_SHAPE_HELP)]
Args = Annotated[list[str] | None, typer.Option("--arg", help="A positional argument after the tensors.")]
Keywords = Annotated[
    list[str] | None, typer.Option("--kw", help="A keyword argument, as dim=1. Repeat for more.")
]


def operator_of(text: str) -> Callable[..., Any]:
    """The operator with this name, torch's or the user's."""
    from ..calls import resolve_op

    return function_of(text, "ops.py:my_operator") if is_users(text) else resolve_op(text)


def called(
    op: str, shapes: list[str] | None, args: list[str] | None, kw: list[str] | None
) -> tuple[Any, list[Any], dict[str, Any]]:
    """The call that the options describe; an OpInfo sample if there are no shapes."""
    import torch

    from ..calls import best_sample

    torch.set_num_threads(1)
    function = operator_of(op)
    kwargs = dict(_keyword(text) for text in kw or ())
    positional = [value_of(text) for text in args or ()]
    if not shapes and not positional:
        sample = best_sample(function)
        return sample.op, list(sample.args), {**sample.kwargs, **kwargs}
    return function, [*(_tensors(text) for text in shapes or ()), *positional], kwargs


def _keyword(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"--kw {text!r} has no '=': write it as dim=1")
    return name, value_of(value)


def value_of(text: str) -> Any:
    """A number, a list, an attribute of torch such as `torch.float64`; anything else is text."""
    import torch

    if text.startswith("torch.") and hasattr(torch, text[6:]):
        return getattr(torch, text[6:])
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _tensors(text: str) -> Any:
    if ";" in text:
        return [_tensor(part) for part in text.split(";") if part.strip()]
    return _tensor(text)


def _tensor(text: str) -> Any:
    import torch

    sizes, _, name = text.partition(":")
    try:
        shape = tuple(int(size) for size in sizes.split(",") if size.strip())
    except ValueError:
        raise UsageError(f"--shape {text!r} is not a shape: write it as 4,6,8 or 4,6:int64") from None
    dtype = getattr(torch, name or "float32", None)
    if not isinstance(dtype, torch.dtype):
        raise UsageError(
            f"--shape {text!r} has an unknown dtype: use one of torch's, such as float32, int64 or bool"
        )
    if any(size < 0 for size in shape):
        raise UsageError(f"--shape {text!r} has a negative size")
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape))).to(dtype)
    return torch.zeros(shape, dtype=dtype)
