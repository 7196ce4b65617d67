"""What a function becomes at dispatch: the ATen overload that it is a front of, or several that it is made of."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor.placement_types import Placement, Replicate
from torch.utils import _pytree as pytree

from ..placements import Row
from ._arguments import flat_outputs
from ._call import Call
from ._facts import facts
from ._recorder import Recorder
from ._torch import is_composite, resolved


@dataclass(frozen=True)
class Dispatched:
    """What a call becomes at dispatch.

    `judged` is the call that experiments run: the one overload the function is a front of, else the function
    itself. `inputs` and `outputs` say which of the judged call's tensors are the user's, in the user's order.
    """

    overloads: tuple[str, ...]
    judged: Call
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    def judged_inputs(self, placements: Sequence[Placement]) -> tuple[Placement, ...]:
        """Placements of the judged call's inputs, from those of the user's."""
        judged: list[Placement] = [Replicate()] * len(placements)
        for position, placement in zip(self.inputs, placements, strict=True):
            judged[position] = placement
        return tuple(judged)

    def user_row(self, row: Row) -> Row:
        """A row about the judged call, told about the user's."""
        return replace(
            row,
            inputs=tuple(row.inputs[i] for i in self.inputs),
            outputs=tuple(row.outputs[i] for i in self.outputs),
        )


def dispatched(call: Call) -> Dispatched:
    """Map a function to the ATen overloads that it reaches for these arguments."""
    inputs = [t.clone() for t in call.tensors]
    if isinstance(call.op, torch._ops.OpOverload):
        count = len(call.run(inputs))
        return Dispatched((call.name,), call, tuple(range(len(inputs))), tuple(range(count)))
    recorder = Recorder()
    with torch.no_grad(), recorder:
        outputs = flat_outputs(call.runner(inputs))
    calls = [
        c for c in _used(recorder.calls, outputs) if not facts(c[0]).identity and not _only_aliases(*c[1:])
    ]
    overloads = tuple(dict.fromkeys(str(c[0]) for c in calls))
    whole = Dispatched(overloads, _registered(call), tuple(range(len(inputs))), tuple(range(len(outputs))))
    if len(calls) != 1:
        return whole
    func, args, kwargs, result = calls[0]
    inner = Call.of(func, args, kwargs)
    sources = [_position(t, inputs) for t in inner.tensors]
    results = flat_outputs(result)
    returned = [_position(o, results) for o in outputs]
    if sorted(s for s in sources if s is not None) != list(range(len(inputs))) or None in returned:
        return whole
    example = inner.with_leaves(
        {slot: call.tensors[s] for slot, s in zip(inner.slots, sources, strict=True) if s is not None}
    )
    order = tuple(sources.index(i) for i in range(len(inputs)))
    return Dispatched(overloads, example, order, tuple(r for r in returned if r is not None))


def reaches_dispatch(op: Callable[..., Any]) -> bool:
    """False for functions, and for overloads that are made of others before dispatch."""
    return isinstance(op, torch._ops.OpOverload) and not is_composite(op)


def recorded(call: Call) -> Iterator[tuple[torch._ops.OpOverload, tuple[Any, ...], dict[str, Any]]]:
    """Every overload that the call reaches, with the arguments it reaches it with."""
    inputs = [t.clone() for t in call.tensors]
    if isinstance(call.op, torch._ops.OpOverload):
        args, kwargs = call.arguments(inputs)
        yield call.op, tuple(args), kwargs
        return
    recorder = Recorder()
    with torch.no_grad(), recorder:
        call.runner(inputs)
    for func, inner, kwargs, _ in recorder.calls:
        if not facts(func).identity:
            yield func, inner, kwargs


def _position(item: Any, items: Sequence[Any]) -> int | None:
    return next((i for i, other in enumerate(items) if other is item or _same_memory(other, item)), None)


def _registered(call: Call) -> Call:
    """A composite function of torch as the ATen overload of its name, whose schema names the arguments."""
    packet = (
        getattr(torch.ops.aten, call.name.rpartition(".")[2], None)
        if call.name.startswith("torch.")
        else None
    )
    if packet is None or call.outs:
        return call
    args, kwargs = call.arguments(call.tensors)
    overload = resolved(packet, args, kwargs)
    return call if overload is None else Call.of(overload, args, kwargs)


def _used(calls: list[Any], outputs: list[Any]) -> list[Any]:
    """The calls on which the outputs depend, and those that write to a tensor."""
    needed = {id(output) for output in outputs}
    kept = []
    for call in reversed(calls):
        func, args, kwargs, result = call
        if func._schema.is_mutable or any(id(r) in needed for r in flat_outputs(result)):
            needed |= {id(leaf) for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
            kept.append(call)
    return kept[::-1]


def _only_aliases(args: Any, kwargs: Any, result: Any) -> bool:
    """True for a call that gave its input back under another name: an expand or view to the shape it had."""
    return any(
        _same_memory(leaf, result) for leaf in pytree.tree_leaves((args, kwargs)) if leaf is not result
    )


def _same_memory(first: Any, second: Any) -> bool:
    """True for a tensor and its alias: factories return a detached alias of what was dispatched."""
    if not (isinstance(first, Tensor) and isinstance(second, Tensor)) or not first.numel():
        return False
    return (
        first.data_ptr() == second.data_ptr()
        and first.shape == second.shape
        and first.stride() == second.stride()
        and first.dtype == second.dtype
    )
