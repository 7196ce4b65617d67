"""Calls to audit: what torch's OpInfo samples send to dispatch, forward and backward.

DTensor sees overloads, so the samples are run once, every overload call on the way is recorded with its
arguments, and for each overload a few diverse calls are kept: those that show most that the others do not
(ranks, dtypes, values of the other arguments).
"""

import fnmatch
import math
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..errors import UsageError
from ._arguments import copied, with_leaves
from ._call import Call
from ._facts import facts
from ._names import TORCH_NAMESPACES
from ._recorder import Recorder
from ._samples import samples
from ._torch import opinfos, registered_names

# Samples of one OpInfo that are run, and elements in a tensor beyond which a call is left out.
_SAMPLES = 60
_ELEMENTS = 20_000
_SPECIAL_NUMBERS = (0, 1, 2, 3, -1, -2)


def diverse_calls(
    pattern: str = "*", limit: int = 4, progress: Callable[[int, int], None] | None = None
) -> dict[torch._ops.OpOverload, list[Call]]:
    """Up to `limit` calls of every overload that matches, or that an OpInfo reaches whose name matches.

    An overload matches by `aten.mm.default`, `aten.mm` or `mm`; `progress` is called with the number of OpInfos done.
    """
    infos = [i for i in opinfos() if _matches(pattern, (i.name, i.aten_name))]
    by_name = not infos
    if by_name and not _names_an_overload(pattern):
        raise UsageError(f"no operator matches {pattern!r}: use an OpInfo or overload name, as in aten.mm*")
    infos = infos or [i for i in opinfos() if _may_reach(pattern, i)] or list(opinfos())
    found: dict[torch._ops.OpOverload, list[Call]] = defaultdict(list)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # samples try what is deprecated, too
        for done, info in enumerate(infos):
            for call in calls_of(info):
                if not by_name or _matches(pattern, overload_names(call.op)):
                    found[call.op].append(call)
            if progress is not None:
                progress(done + 1, len(infos))
    return {op: most_diverse(calls, limit) for op, calls in sorted(found.items(), key=lambda f: str(f[0]))}


def overload_names(op: torch._ops.OpOverload) -> tuple[str, ...]:
    packet = str(op).rsplit(".", 1)[0]
    return (str(op), packet, packet.split(".", 1)[1])


def calls_of(info: Any) -> Iterator[Call]:
    """The overload calls of an OpInfo's samples, those of the backward included. What an operator refuses to
    run is left out: that says nothing about DTensor."""
    try:
        chosen = list(zip(samples(info), range(_SAMPLES), strict=False))
    except Exception:
        return  # a few OpInfos need libraries or devices that are not here
    seen: set[str] = set()
    for sample, _ in chosen:
        for call in overload_calls(sample):
            text = str(call)
            if text not in seen and _fits(call):
                seen.add(text)
                yield call


def overload_calls(call: Call, backward: bool = True) -> list[Call]:
    """The overloads of torch that a call reaches, and those its backward reaches; without `backward`, those that it
    reaches when no gradient is required. A call that raises has reached those before."""
    if backward:
        _require_autograd()
    recorder = Recorder(copies=True)
    args, kwargs = (
        with_leaves(given, _trained) if backward else copied(given) for given in (call.args, call.kwargs)
    )
    try:
        with recorder, torch.set_grad_enabled(backward):
            result = call.op(*args, **kwargs)
            outputs = [t for t in pytree.tree_leaves(result) if isinstance(t, Tensor) and t.requires_grad]
            if outputs:
                torch.autograd.backward(outputs, [torch.ones_like(o) * 0.5 for o in outputs])
    except Exception:
        pass  # samples may be made to raise, and some operators have no derivative
    return [inner for inner in recorder.calls if facts(inner.op).builtin]


def _require_autograd() -> None:
    """Refuse a process in which every backward raises, so that none seems to reach anything. Autograd starts threads
    with the first backward where there are GPUs, or where fake tensors had a torch with CUDA assume some."""
    try:
        torch.ones(1, requires_grad=True).sum().backward()
    except RuntimeError as error:
        raise UsageError(
            "no backward can be recorded in a process forked from one whose autograd has threads: "
            "start from a new process, before any backward"
        ) from error


def most_diverse(calls: Iterable[Call], limit: int) -> list[Call]:
    """A small set of calls that shows what all of them show."""
    waiting = [(call, features(call)) for call in calls]
    chosen: list[Call] = []
    seen: set[Any] = set()
    while waiting and len(chosen) < limit:
        new = [(call, shown) for call, shown in waiting if shown - seen] or waiting[: not chosen]
        if not new:
            break
        best = max(new, key=lambda item: (_shardability(item[0]), sum(map(_weight, item[1] - seen))))
        chosen.append(best[0])
        seen |= best[1]
        waiting.remove(best)
    return chosen


def with_negative_dims(calls: list[Call]) -> list[Call]:
    """The calls of an overload, and one more if none of them counts a dim from the end: the first that names dims, with
    the same dims counted so. Rules that forget negative dims are common."""
    named = [(call, dims) for call in calls if (dims := _dims(call))]
    if not named or any(d < 0 for _, dims in named for value in dims.values() for d in _listed(value)):
        return calls
    call, dims = named[0]
    ndim = call.tensors[0].ndim
    turned = {name: [d - ndim for d in v] if isinstance(v, list) else v - ndim for name, v in dims.items()}
    return [*calls, call.with_arguments(**turned)]


def _dims(call: Call) -> dict[str, Any]:
    """The arguments of a call that name dims."""
    known = facts(call.op)
    return {
        name: value
        for name, value in call.given.items()
        if name in known.dims and _listed(value) and all(type(d) is int for d in _listed(value))
    }


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def features(call: Call) -> set[Any]:
    """What a call shows: the rank and dtype of each tensor, the kind of every other argument."""
    leaves = pytree.tree_flatten_with_path((list(call.args), call.kwargs))[0]
    tensors = [leaf for _, leaf in leaves if isinstance(leaf, Tensor)]
    shown: set[Any] = {("ranks", tuple(t.ndim for t in tensors))}
    for path, leaf in leaves:
        place = str(path)
        if isinstance(leaf, Tensor):
            shown.add((place, leaf.dtype))
        elif isinstance(leaf, int | float) and not isinstance(leaf, bool):
            special = leaf in _SPECIAL_NUMBERS or math.isinf(leaf) or math.isnan(leaf)
            shown.add((place, repr(leaf) if special else type(leaf).__name__))
        else:
            shown.add((place, repr(leaf)))
    return shown


def _weight(feature: tuple[str, Any]) -> int:
    """An infinity among the arguments is a case of its own to most operators that take one."""
    return 3 if feature[1] in ("inf", "-inf") else 1


def _shardability(call: Call) -> tuple[bool, bool]:
    """A call with something to shard in every tensor, and more than one dim, shows more than others."""
    shapes = [t.shape for t in call.tensors]
    return all(math.prod(s) > 1 and min(s) > 1 for s in shapes), max(len(s) for s in shapes) > 1


def _fits(call: Call) -> bool:
    """True for calls that can be tested: dense, non-empty tensors of moderate size."""
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


def _trained(leaf: Any) -> Any:
    """A tensor as a copy with which backward can start."""
    if isinstance(leaf, Tensor) and leaf.layout == torch.strided:
        return leaf.detach().clone().requires_grad_(leaf.is_floating_point() or leaf.is_complex())
    return leaf


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
