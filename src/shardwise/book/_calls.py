"""Which calls of an operator to study: of one kind, so that what differs between them is what the rule is about."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..calls import Call, overload
from ..synthesis import Sweep


def calls_of(name: str, calls: Sequence[Call]) -> Sequence[Call]:
    """Calls of an operator; of a variant, those of its original that it takes."""
    op = overload(name)
    if all(call.op is op for call in calls):
        return calls
    names = {a.name for a in op._schema.arguments}
    outs = [a for a in op._schema.arguments if a.is_out]
    found = []
    for call in filter(_runs, calls):
        given = {name: value for name, value in call.arguments.items() if name in names}
        if outs:
            results = [t for t in call.run() if t is not None]
            if str(outs[0].type).startswith("List"):
                given[outs[0].name] = [torch.empty_like(t) for t in results]
            elif len(results) == len(outs):
                given |= {a.name: torch.empty_like(t) for a, t in zip(outs, results, strict=True)}
            else:
                continue
        found.append(Call.named(op, given))
    return [call for call in found if _runs(call)]


def _runs(call: Call) -> bool:
    try:
        call.run()
    except Exception:
        return False  # its original broadcasts or promotes where it cannot, or takes other shapes
    return True


def of_one_kind(calls: Sequence[Call]) -> list[Call]:
    """The calls that have real numbers wherever any of them has (integers and truth values have fewer partials, which
    would look like exceptions), and tensors wherever any of them has (a plain number in their place is read as one).
    Dims of size 1 look like exceptions, too; the sweep tries them where operands broadcast."""
    kinds = [{name: _kind(value) for name, value in call.arguments.items()} for call in calls]
    kept = []
    for call, kind in zip(calls, kinds, strict=True):
        best = {n: min((other[n] for other in kinds), key=_KINDS.index) for n in kind}
        if all(kind[n] == best[n] or "none" in (kind[n], best[n]) for n in kind):
            kept.append(call)
    diverse = [c for c in kept if all(size > 1 for t in c.tensors for size in t.shape)]
    return diverse or kept or list(calls)


_KINDS = ("real", "other tensor", "number", "none")


def _kind(value: Any) -> str:
    if isinstance(value, Tensor):
        return "real" if value.is_floating_point() else "other tensor"
    return "number" if isinstance(value, bool | int | float | complex) else "none"


def of_equal_shapes(name: str, examples: Sequence[Call]) -> Sweep:
    """Calls of an operator on lists, and the same with one dim more or fewer on every tensor: what is true of one
    tensor of a list is true of the next."""
    changes: tuple[Callable[[Tensor], Tensor], ...] = (
        lambda t: t,
        lambda t: t.expand(3, *t.shape).clone(),
        lambda t: t[0].clone() if t.ndim > 1 else t,
    )
    changed = [
        call.with_tensors([change(t) if t.ndim else t for t in call.tensors])
        for change in changes
        for call in examples
    ]
    return Sweep({name: [call for call in changed if _runs(call)]})
