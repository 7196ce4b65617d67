"""What a function becomes at dispatch: the ATen overload that it wraps, or several that it consists of."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor.placement_types import Placement, Replicate

from ..placements import Row
from ._arguments import flat_outputs, leaves
from ._call import Call
from ._facts import facts
from ._names import registered_as
from ._recorder import Recorder
from ._torch import is_composite, resolved, share_memory


@dataclass(frozen=True)
class Dispatched:
    """What a call becomes at dispatch.

    `judged` is the call that experiments run: the one overload that the function wraps, else the function
    itself (`is_front` tells which). `inputs` and `outputs` say which of the judged call's tensors are the user's, in
    the user's order.
    """

    overloads: tuple[str, ...]
    judged: Call
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    is_front: bool = True

    def judged_inputs(self, placements: Sequence[Placement]) -> tuple[Placement, ...]:
        """Placements of the judged call's inputs, from those of the user's."""
        judged: list[Placement] = [Replicate()] * len(placements)
        for position, placement in zip(self.inputs, placements, strict=True):
            judged[position] = placement
        return tuple(judged)

    def user_row(self, row: Row) -> Row:
        """A row about the judged call as a row about the user's."""
        return replace(
            row,
            inputs=tuple(row.inputs[i] for i in self.inputs),
            outputs=tuple(row.outputs[i] for i in self.outputs),
        )


def dispatched(call: Call) -> Dispatched:
    """Map a function to the ATen overloads that it reaches for these arguments, by running it on copies."""
    inputs = [t.clone() for t in call.tensors]
    if isinstance(call.op, torch._ops.OpOverload):
        count = len(call.run(inputs))
        return Dispatched((call.name,), call, tuple(range(len(inputs))), tuple(range(count)))
    recorder = Recorder()
    with torch.no_grad(), recorder:
        outputs = flat_outputs(call.runner(inputs))
    found = [(c, r) for c, r in _used(recorder, outputs) if not _is_identity(c) and not _only_aliases(c, r)]
    overloads = tuple(dict.fromkeys(inner.name for inner, _ in found))
    every, returned = tuple(range(len(inputs))), tuple(range(len(outputs)))
    whole = Dispatched(overloads, _registered(call), every, returned, is_front=False)
    if len(found) != 1:
        return whole
    inner, result = found[0]
    sources = [_position(t, inputs) for t in inner.tensors]
    results = flat_outputs(result)
    places = [_position(o, results) for o in outputs]
    if sorted(s for s in sources if s is not None) != list(every) or None in places:
        return whole
    example = inner.with_tensors(
        [t if s is None else call.tensors[s] for t, s in zip(inner.tensors, sources, strict=True)]
    )
    order = tuple(map(sources.index, every))
    return Dispatched(overloads, example, order, tuple(p for p in places if p is not None))


def reached(call: Call) -> list[Call]:
    """The overload calls that a call makes at dispatch without its backward, identities aside; run on copies."""
    inputs, recorder = [t.clone() for t in call.tensors], Recorder()
    with torch.no_grad(), recorder:
        call.runner(inputs)
    return [inner for inner in recorder.calls if not _is_identity(inner)]


def reaches_dispatch(op: Callable[..., Any]) -> bool:
    """False for functions, and for overloads that are decomposed before dispatch."""
    return isinstance(op, torch._ops.OpOverload) and not is_composite(op)


def _is_identity(call: Call) -> bool:
    return facts(call.op).identity


def _position(item: Any, items: Sequence[Any]) -> int | None:
    return next((i for i, other in enumerate(items) if other is item or _is_alias(other, item)), None)


def _registered(call: Call) -> Call:
    """A composite function of torch as the ATen overload of its name, whose schema names the arguments."""
    packet = registered_as(call.name)
    if packet is None or "out" in call.kwargs:
        return call
    overload = resolved(packet, call.args, dict(call.kwargs))
    return call if overload is None else Call(overload, call.args, call.kwargs)


def _used(recorder: Recorder, outputs: list[Any]) -> list[tuple[Call, Any]]:
    """The calls on which the outputs depend, and those that write to a tensor, with their results."""
    needed = {id(output) for output in outputs}
    kept = []
    for call, result in zip(reversed(recorder.calls), reversed(recorder.results), strict=True):
        if call.schema.is_mutable or any(id(r) in needed for r in flat_outputs(result)):
            needed |= {id(leaf) for leaf in leaves([call.args, call.kwargs]) if isinstance(leaf, Tensor)}
            kept.append((call, result))
    return kept[::-1]


def _only_aliases(call: Call, result: Any) -> bool:
    """True for a call that returns an alias of its input: an expand or view to the shape it had."""
    return any(_is_alias(leaf, result) for leaf in leaves([call.args, call.kwargs]) if leaf is not result)


def _is_alias(first: Any, second: Any) -> bool:
    """True for a tensor and its alias: factories return a detached alias of what was dispatched."""
    if not (isinstance(first, Tensor) and isinstance(second, Tensor)) or not first.numel():
        return False
    return (
        first.shape == second.shape
        and first.stride() == second.stride()
        and first.dtype == second.dtype
        and first.storage_offset() == second.storage_offset()
        and share_memory(first, second)
    )
