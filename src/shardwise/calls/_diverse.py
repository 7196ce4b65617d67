"""Calls to audit: what torch's OpInfo samples send to dispatch, forward and backward.

DTensor sees overloads, so the samples are run once, every overload call on the way is remembered with its
arguments, and for each overload a few telling calls are kept: those that show most that the others do not
(ranks, dtypes, values of the other arguments).
"""

import fnmatch
import math
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from ..errors import UsageError
from ._arguments import call_text
from ._facts import facts
from ._names import TORCH_NAMESPACES
from ._samples import samples
from ._torch import opinfos, registered_names

# Samples of one OpInfo that are run, and elements in a tensor beyond which a call is left out.
_SAMPLES = 60
_ELEMENTS = 20_000
_TELLING_NUMBERS = (0, 1, 2, 3, -1, -2)


@dataclass(frozen=True, eq=False)
class OverloadCall:
    """A call of an overload with example tensors, and the OpInfo whose sample it came from."""

    op: torch._ops.OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    source: str

    @property
    def tensors(self) -> list[Tensor]:
        return [t for t in pytree.tree_leaves((self.args, self.kwargs)) if isinstance(t, Tensor)]

    def __str__(self) -> str:
        return f"{self.op}{call_text(self.args, self.kwargs)}"


def telling_calls(
    pattern: str = "*", limit: int = 4, progress: Callable[[int, int], None] | None = None
) -> dict[torch._ops.OpOverload, list[OverloadCall]]:
    """Up to `limit` calls of every overload that matches, or that an OpInfo reaches whose name matches.

    An overload matches by `aten.mm.default`, `aten.mm` or `mm`; `progress` is told how many OpInfos are done.
    """
    infos = [i for i in opinfos() if _matches(pattern, (i.name, i.aten_name))]
    by_name = not infos
    if by_name and not _names_an_overload(pattern):
        raise UsageError(f"no operator matches {pattern!r}: use an OpInfo or overload name, as in aten.mm*")
    infos = infos or [i for i in opinfos() if _may_reach(pattern, i)] or list(opinfos())
    found: dict[torch._ops.OpOverload, list[OverloadCall]] = defaultdict(list)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # samples try what is deprecated, too
        for done, info in enumerate(infos):
            for call in calls_of(info):
                if not by_name or _matches(pattern, overload_names(call.op)):
                    found[call.op].append(call)
            if progress is not None:
                progress(done + 1, len(infos))
    return {op: most_telling(calls, limit) for op, calls in sorted(found.items(), key=lambda f: str(f[0]))}


def overload_names(op: torch._ops.OpOverload) -> tuple[str, ...]:
    packet = str(op).rsplit(".", 1)[0]
    return (str(op), packet, packet.split(".", 1)[1])


def calls_of(info: Any) -> Iterator[OverloadCall]:
    """The overload calls of an OpInfo's samples, those of the backward included. What an operator refuses to
    run is left out: that is no finding about DTensor."""
    try:
        chosen = list(zip(samples(info), range(_SAMPLES), strict=False))
    except Exception:
        return  # a few OpInfos need libraries or devices that are not here
    seen: set[str] = set()
    for (function, args, kwargs), _ in chosen:
        for call in overload_calls(function, args, kwargs, info.formatted_name):
            text = str(call)
            if text not in seen and _fits(call):
                seen.add(text)
                yield call


def overload_calls(
    function: Callable[..., Any],
    args: list[Any],
    kwargs: dict[str, Any],
    source: str = "",
    backward: bool = True,
) -> list[OverloadCall]:
    """The overloads that a call reaches, and those its backward reaches; without `backward`, those that it reaches
    when no gradient is asked for."""
    recorder = _Recorder(source)
    args, kwargs = pytree.tree_map(_leaf if backward else _copy, (args, kwargs))
    try:
        with recorder, torch.set_grad_enabled(backward):
            result = function(*args, **kwargs)
            outputs = [t for t in pytree.tree_leaves(result) if isinstance(t, Tensor) and t.requires_grad]
            if outputs:
                torch.autograd.backward(outputs, [torch.ones_like(o) * 0.5 for o in outputs])
    except Exception:
        pass  # samples may be made to raise, and some operators have no derivative
    return recorder.calls


def most_telling(calls: Iterable[OverloadCall], limit: int) -> list[OverloadCall]:
    """A small set of calls that shows what all of them show."""
    waiting = [(call, features(call)) for call in calls]
    chosen: list[OverloadCall] = []
    seen: set[Any] = set()
    while waiting and len(chosen) < limit:
        new = [(call, shown) for call, shown in waiting if shown - seen] or waiting[: not chosen]
        if not new:
            break
        best = max(new, key=lambda item: (_telling(item[0]), sum(map(_weight, item[1] - seen))))
        chosen.append(best[0])
        seen |= best[1]
        waiting.remove(best)
    return chosen


def with_negative_dims(calls: list[OverloadCall]) -> list[OverloadCall]:
    """The calls of an overload, and one more if none of them counts a dim from the end: the first that names dims, with
    the same dims counted so. Rules that forget this are common."""
    named = [(call, dims) for call in calls if (dims := _dims(call))]
    if not named or any(d < 0 for _, dims in named for value in dims.values() for d in _listed(value)):
        return calls
    call, dims = named[0]
    ndim = call.tensors[0].ndim
    turned = {i: [d - ndim for d in v] if isinstance(v, list) else v - ndim for i, v in dims.items()}
    args = tuple(turned.get(i, value) for i, value in enumerate(call.args))
    return [*calls, OverloadCall(call.op, args, call.kwargs, call.source)]


def _dims(call: OverloadCall) -> dict[int, Any]:
    """The positional arguments of a call that name dims, by place."""
    names, known = [a.name for a in call.op._schema.arguments], facts(call.op)
    return {
        i: value
        for i, (name, value) in enumerate(zip(names, call.args, strict=False))
        if name in known.dims and _listed(value) and all(type(d) is int for d in _listed(value))
    }


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def features(call: OverloadCall) -> set[Any]:
    """What a call shows: the rank and dtype of each tensor, the kind of every other argument."""
    leaves = pytree.tree_flatten_with_path((list(call.args), call.kwargs))[0]
    tensors = [leaf for _, leaf in leaves if isinstance(leaf, Tensor)]
    shown: set[Any] = {("ranks", tuple(t.ndim for t in tensors))}
    for path, leaf in leaves:
        place = str(path)
        if isinstance(leaf, Tensor):
            shown.add((place, leaf.dtype))
        elif isinstance(leaf, int | float) and not isinstance(leaf, bool):
            telling = leaf in _TELLING_NUMBERS or math.isinf(leaf) or math.isnan(leaf)
            shown.add((place, repr(leaf) if telling else type(leaf).__name__))
        else:
            shown.add((place, repr(leaf)))
    return shown


def _weight(feature: tuple[str, Any]) -> int:
    """An infinity among the arguments is a case of its own to most operators that take one."""
    return 3 if feature[1] in ("inf", "-inf") else 1


def _telling(call: OverloadCall) -> tuple[bool, bool]:
    """A call with something to shard in every tensor, and more than one dim, tells more than others."""
    shapes = [t.shape for t in call.tensors]
    return all(math.prod(s) > 1 and min(s) > 1 for s in shapes), max(len(s) for s in shapes) > 1


class _Recorder(TorchDispatchMode):
    """Remembers every overload call with copies of its tensors, which later calls may overwrite."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.source = source
        self.calls: list[OverloadCall] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if facts(func).builtin:
            copied_args, copied_kwargs = pytree.tree_map(_copy, (tuple(args), kwargs))
            self.calls.append(OverloadCall(func, copied_args, copied_kwargs, self.source))
        return func(*args, **kwargs)


def _fits(call: OverloadCall) -> bool:
    """Calls that something can be said about: dense tensors of moderate size with something in them."""
    tensors = call.tensors
    return (
        bool(tensors)
        and any(t.numel() > 1 for t in tensors)
        and all(
            t.layout == torch.strided
            and not t.is_quantized
            and t.device.type == "cpu"
            and 0 < t.numel() <= _ELEMENTS
            for t in tensors
        )
    )


def _leaf(value: Any) -> Any:
    if isinstance(value, Tensor) and value.layout == torch.strided:
        needs = value.is_floating_point() or value.is_complex()
        return value.detach().clone().requires_grad_(needs)
    return value


def _copy(value: Any) -> Any:
    if isinstance(value, Tensor) and value.layout == torch.strided:
        return value.detach().clone()
    return value


def _matches(pattern: str, names: Iterable[str]) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for name in names if name)


def _names_an_overload(pattern: str) -> bool:
    names = (name.replace("::", ".") for name in registered_names())
    return any(_matches(pattern, (name, f"{name}.default", name.split(".", 1)[1])) for name in names)


def _may_reach(pattern: str, info: Any) -> bool:
    """True if an OpInfo is named like the overloads of a pattern: a shortcut past running all samples."""
    parts = pattern.split(".")
    packet = parts[1] if len(parts) > 1 and parts[0] in TORCH_NAMESPACES else parts[0]
    stem = packet.strip("*_").removesuffix("_backward")
    names = (
        str(name).removeprefix("nn.functional.").replace(".", "_") for name in (info.name, info.aten_name)
    )
    return bool(stem) and any(name.startswith(stem) for name in names)
