"""Example calls as source: `call(torch.randn(6, 8).sort(dim=-1).values, torch.randn(6, 4), right=True)`.

Tensors are drawn anew from a fixed seed where their kind is plain to see (normal, positive, indices below a bound,
masks, sorted rows). A call that does not run on such tensors, or whose integers are a permutation, keeps its values.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..calls import Call, recorded

Arguments = tuple[Sequence[Any], dict[str, Any]]
# A call: as discovery holds it, or an operator with its arguments.
Example = Call | tuple[Callable[..., Any], Sequence[Any], dict[str, Any]]

SEED = 0
# Characters that fit on the line of an argument.
_FITS = 62


def overload_calls(calls: Sequence[Example]) -> dict[str, list[Arguments]]:
    """The arguments of every overload that the calls reach, by overload."""
    found: dict[str, list[Arguments]] = {}
    for example in calls:
        call = example if isinstance(example, Call) else Call.of(*example)
        for overload, args, kwargs in recorded(call):
            found.setdefault(str(overload), []).append(_as_dispatched(overload, args, kwargs))
    return found


def _as_dispatched(overload: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Arguments:
    """The arguments as the dispatcher hands them on: positional ones by position, trailing defaults left out."""
    schema = overload._schema.arguments
    positional = [a for a in schema if not a.kwarg_only]
    given = {**dict(zip((a.name for a in positional), args, strict=False)), **kwargs}
    last = max((i for i, a in enumerate(positional) if a.name in given), default=-1)
    return (
        [given.get(a.name, a.default_value) for a in positional[: last + 1]],
        {a.name: given[a.name] for a in schema if a.kwarg_only and a.name in given},
    )


def call_source(op: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> list[str]:
    """The source of each argument, keyword arguments with their names."""
    tensors = [t for t in pytree.tree_leaves((list(args), kwargs)) if isinstance(t, Tensor)]
    if not any(_is_permutation(t) for t in tensors):
        drawn = _arguments(args, kwargs, _drawn)
        if _runs_alike(op, drawn, args, kwargs):
            return drawn
    return _arguments(args, kwargs, _exact)


def _arguments(args: Sequence[Any], kwargs: dict[str, Any], tensor: Callable[[Tensor], str]) -> list[str]:
    return [
        *(_value(a, tensor) for a in args),
        *(f"{name}={_value(value, tensor)}" for name, value in kwargs.items()),
    ]


def _value(value: Any, tensor: Callable[[Tensor], str]) -> str:
    if isinstance(value, Tensor):
        return tensor(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(_value(v, tensor) for v in value)}]"
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return f'float("{value}")'
    if isinstance(value, str):
        return f'"{value}"'
    return repr(value)


def _drawn(tensor: Tensor) -> str:
    """An expression that draws a tensor of this kind."""
    if not tensor.numel():
        return f"torch.empty({list(tensor.shape)}, dtype={tensor.dtype})"
    shape = ", ".join(str(s) for s in tensor.shape) or "()"
    if tensor.dtype == torch.bool:
        return f"torch.rand({shape}) < 0.5"
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        dtype = "" if tensor.dtype == torch.float32 else f", dtype={tensor.dtype}"
        positive = not tensor.dtype.is_complex and tensor.numel() > 2 and bool((tensor >= 0).all())
        text = f"torch.{'rand' if positive else 'randn'}({shape}{dtype})"
    else:
        low, high = int(tensor.min()), int(tensor.max())
        sizes = ", ".join(str(s) for s in tensor.shape) + ("," if tensor.ndim == 1 else "")
        dtype = "" if tensor.dtype == torch.int64 else f", dtype={tensor.dtype}"
        text = f"torch.randint({low}, {high + 1}, ({sizes}){dtype})"
    return f"{text}.sort(dim=-1).values" if _is_sorted(tensor) else text


def _exact(tensor: Tensor) -> str:
    """The values themselves, floats to three digits."""
    dtype = [] if tensor.dtype in (torch.float32, torch.int64, torch.bool) else [f"dtype={tensor.dtype}"]
    values = _rounded(tensor.tolist())
    flat = f"torch.tensor({', '.join([repr(values), *dtype])})"
    if len(flat) <= _FITS:
        return flat
    inside = _nested(values, _FITS - 4)
    if dtype:
        inside = [*_ended(inside), f"{dtype[0]},"]
    return "\n".join(["torch.tensor(", *(f"    {line}" for line in inside), ")"])


def _rounded(values: Any) -> Any:
    if isinstance(values, list):
        return [_rounded(v) for v in values]
    return round(values, 3) if isinstance(values, float) else values


def _nested(values: Any, width: int) -> list[str]:
    """The lines of a list, broken as the formatter would."""
    if not isinstance(values, list) or len(repr(values)) <= width:
        return [repr(values)]
    lines = [line for v in values for line in _ended(_nested(v, width - 4))]
    return ["[", *(f"    {line}" for line in lines), "]"]


def _ended(lines: list[str]) -> list[str]:
    return [*lines[:-1], f"{lines[-1]},"]


def _is_sorted(tensor: Tensor) -> bool:
    if tensor.dtype.is_complex or tensor.ndim == 0 or tensor.shape[-1] < 3:
        return False
    return bool((tensor.diff(dim=-1) >= 0).all() and (tensor.diff(dim=-1) != 0).any())


def _is_permutation(tensor: Tensor) -> bool:
    """True for integers that are all the indices of the last dim, in another order."""
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex or tensor.dtype == torch.bool:
        return False
    if tensor.ndim == 0 or tensor.shape[-1] < 3:
        return False
    return bool((tensor.sort(dim=-1).values == torch.arange(tensor.shape[-1])).all())


def _runs_alike(
    op: Callable[..., Any], source: Sequence[str], args: Sequence[Any], kwargs: dict[str, Any]
) -> bool:
    """True if the drawn call runs and its outputs have the example's shapes and are finite where those are."""
    try:
        drawn = _outputs(op, *evaluated(source))
    except Exception:
        return False
    expected = _outputs(op, *pytree.tree_map_only(Tensor, torch.clone, (list(args), dict(kwargs))))
    return all(_alike(d, e) for d, e in zip(drawn, expected, strict=True))


def _alike(drawn: Tensor | None, expected: Tensor | None) -> bool:
    if drawn is None or expected is None:
        return drawn is expected
    return drawn.shape == expected.shape and (_finite(drawn) or not _finite(expected))


def evaluated(source: Sequence[str]) -> Arguments:
    """The arguments that the source of a call stands for."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        return eval(f"call({', '.join(source)})", {"torch": torch, "call": lambda *a, **k: (a, k)})


def _outputs(op: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> list[Tensor | None]:
    return list(_flat(op(*args, **kwargs)))


def _flat(result: Any) -> Iterator[Tensor | None]:
    if isinstance(result, list | tuple):
        for part in result:
            yield from _flat(part)
    else:
        yield result if isinstance(result, Tensor) else None


def _finite(tensor: Tensor) -> bool:
    return bool(tensor.isfinite().all())
