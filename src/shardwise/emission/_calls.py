"""Example calls as source: `call(torch.randn(6, 8).sort(dim=-1).values, torch.randn(6, 4), right=True)`.

Tensors are generated from a fixed seed where their kind is recognised (normal, positive, indices below a bound,
masks, sorted rows). A call that does not run on such tensors, or whose integers are a permutation, keeps its values.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..calls import Call, leaves, reached

# A call, or an operator with its arguments.
Example = Call | tuple[Callable[..., Any], Sequence[Any], dict[str, Any]]

SEED = 0
# Characters that fit on the line of an argument.
_FITS = 62


def calls_by_overload(examples: Sequence[Example]) -> dict[str, list[Call]]:
    """Every call of an overload that the examples reach, by overload; arguments as dispatch hands them on."""
    found: dict[str, list[Call]] = {}
    for example in examples:
        call = example if isinstance(example, Call) else Call(*example)
        is_overload = isinstance(call.op, torch._ops.OpOverload)
        for inner in [call.with_tensors(call.tensors)] if is_overload else reached(call):
            found.setdefault(inner.name, []).append(Call.named(inner.op, inner.given))
    return found


def call_source(call: Call) -> list[str]:
    """The source of each argument, keyword arguments with their names."""
    if not any(_is_permutation(t) for t in leaves([call.args, call.kwargs]) if isinstance(t, Tensor)):
        drawn = _arguments(call.args, call.kwargs, _drawn)
        if _runs_alike(drawn, call):
            return drawn
    return _arguments(call.args, call.kwargs, _exact)


def _arguments(args: Sequence[Any], kwargs: Mapping[str, Any], tensor: Callable[[Tensor], str]) -> list[str]:
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


def _runs_alike(source: Sequence[str], call: Call) -> bool:
    """True if the drawn call runs and its outputs have the example's shapes and are finite where those are."""
    try:
        drawn = evaluated(call.op, source).run()
    except Exception:
        return False
    return all(_alike(d, e) for d, e in zip(drawn, call.run(), strict=True))


def _alike(drawn: Any, expected: Any) -> bool:
    if not isinstance(drawn, Tensor) or not isinstance(expected, Tensor):
        return isinstance(drawn, Tensor) is isinstance(expected, Tensor)
    return drawn.shape == expected.shape and (_finite(drawn) or not _finite(expected))


def evaluated(op: Callable[..., Any], source: Sequence[str]) -> Call:
    """The call that the source of its arguments stands for."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        args, kwargs = eval(f"call({', '.join(source)})", {"torch": torch, "call": lambda *a, **k: (a, k)})
    return Call(op, args, kwargs)


def _finite(tensor: Tensor) -> bool:
    return bool(tensor.isfinite().all())
