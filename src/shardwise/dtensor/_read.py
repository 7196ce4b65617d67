"""What DTensor claims about a call: read from its decisions, not from its source.

Every kind of registration (single-dim strategies, op strategies, rules, the decomposition fallback) ends in one
decision: given the placements of the inputs, DTensor runs the call on them, or redistributes some first. Querying every
placement of the inputs on a 1-D mesh gives the claimed rows, whatever their registration.
"""

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.distributed.tensor._op_schema import OpSchema
from torch.distributed.tensor.placement_types import Placement, Replicate
from torch.utils import _pytree as pytree

from ..calls import Call, leaves, with_leaves
from ..errors import first_line
from ..placements import Row, is_partial, is_replicate, partials_of, shard
from ._decompositions import has_decomposition, traced_once

Kind = Literal["single-dim strategy", "op strategy", "rule", "decomposition", "none"]

# Partials of one kind at a time; beyond this many placements of the inputs, at most two that are not replicated.
_MANY = 300
_MANY_DECOMPOSED = 80  # every query of the decomposition fallback traces the decomposition many times
_PARTIALS = ("sum", "avg", "max", "min")


@dataclass(frozen=True)
class Decision:
    """What DTensor does with inputs of given placements: `inputs` after redistribution, and its outputs."""

    requested: tuple[Placement, ...]
    inputs: tuple[Placement, ...]
    outputs: tuple[Placement | None, ...]

    @property
    def row(self) -> Row:
        """The row that it runs, on the redistributed inputs."""
        return Row(self.inputs, self.outputs)

    @property
    def moves(self) -> tuple[tuple[int, Placement, Placement], ...]:
        """(input, from, to) of every input whose redistribution communicates; from R every redistribution is free."""
        return tuple(
            (i, before, after)
            for i, (before, after) in enumerate(zip(self.requested, self.inputs, strict=True))
            if before != after and not is_replicate(before)
        )


class NoDecision(Exception):
    """DTensor raised because it has no strategy, or its strategy failed."""

    def __init__(self, message: str, missing: bool) -> None:
        super().__init__(message)
        self.missing = missing


def registration(op: torch._ops.OpOverload) -> Kind:
    """How DTensor knows an overload, in the order in which it looks."""
    propagator = _propagator()
    if op in propagator.op_single_dim_strategy_funcs:
        return "single-dim strategy"
    if op in propagator.op_strategy_funcs:
        return "op strategy"
    if has_decomposition(op):
        return "decomposition"
    return "rule" if op in propagator.op_to_rules else "none"


@traced_once()
def read(
    op: torch._ops.OpOverload,
    args: Sequence[Any],
    kwargs: dict[str, Any] | None = None,
    *,
    ranks: int = 2,
    also: Sequence[tuple[Placement, ...]] = (),
) -> list[Row]:
    """The rows that DTensor claims for a call of an overload, besides the all-replicated one.

    Tensors may be on any device, the meta device included. `also` are placements of the inputs to query
    besides the usual ones. Raises `NoDecision` where DTensor has no decision even for replicated inputs.

    >>> [str(row) for row in read(torch.ops.aten.t.default, [torch.rand(4, 6)])][:2]
    ['S(0) -> S(1)', 'S(1) -> S(0)']
    """
    call = Call(op, tuple(args), kwargs or {})
    return list(dict.fromkeys(d.row for d in decisions(call, ranks, also) if d.row.inputs == d.requested))


def decisions(call: Call, ranks: int = 2, also: Sequence[tuple[Placement, ...]] = ()) -> Iterator[Decision]:
    """DTensor's decisions for placements of the inputs, among which it counts `out=` tensors; those that it cannot
    propagate are left out."""
    tensors = [leaf for leaf in leaves([call.args, call.kwargs]) if isinstance(leaf, Tensor)]
    decide(call, (Replicate(),) * len(tensors), ranks)
    limit = _MANY_DECOMPOSED if registration(call.op) == "decomposition" else _MANY
    for inputs in dict.fromkeys([*also, *placements(tensors, limit)]):
        try:
            yield decide(call, inputs, ranks)
        except NoDecision:
            continue


def decide(call: Call, inputs: Sequence[Placement], ranks: int = 2) -> Decision:
    """DTensor's decision for a call whose tensors have these placements, on a 1-D mesh of this many ranks."""
    mesh, op = _mesh(ranks), call.op
    waiting = iter(inputs)

    def spec(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        meta = TensorMeta(leaf.shape, leaf.stride(), leaf.dtype)
        return DTensorSpec(mesh, (next(waiting),), tensor_meta=meta)

    args, kwargs = with_leaves((call.args, dict(call.kwargs)), spec)
    propagator = _propagator()
    info = propagator.op_to_schema_info.get(op) or propagator.op_to_schema_info_for_single_dim_strategy.get(
        op
    )
    schema = OpSchema(op, args, kwargs, schema_info=info)
    try:
        # As where DTensor asks: composite operators inside of a decomposition are decided, not taken apart.
        with torch._C._AutoDispatchBelowAutograd():
            sharding = propagator.propagate_op_sharding_non_cached(schema)
    except Exception as error:
        missing = isinstance(error, NotImplementedError) and "sharding strategy" in str(error)
        raise NoDecision(_message(error), missing) from error
    after = tuple(inputs)
    if sharding.needs_redistribute and sharding.redistribute_schema is not None:
        moved = _specs(sharding.redistribute_schema.args_schema)
        kept = len(_specs(kwargs))
        after = (*(s.placements[0] for s in moved), *after[len(after) - kept :])
    outputs = pytree.tree_leaves(
        sharding.output_spec, is_leaf=lambda s: s is None or isinstance(s, DTensorSpec)
    )
    return Decision(
        tuple(inputs), after, tuple(s.placements[0] if isinstance(s, DTensorSpec) else None for s in outputs)
    )


def placements(tensors: Sequence[Tensor], limit: int = _MANY) -> Iterator[tuple[Placement, ...]]:
    """Placements of the inputs to query: all with one kind of partial, or where that is too many, at most
    two inputs that are not replicated, and all equal. Dims of size 1 are not sharded."""
    shards = [[shard(d) for d, size in enumerate(t.shape) if size > 1] for t in tensors]
    replicated: tuple[Placement, ...] = (Replicate(),) * len(tensors)
    for reduction in (None, *_PARTIALS):
        options: list[list[Placement]] = [
            [Replicate(), *cuts, *(partials_of(t.dtype, [reduction]) if reduction else ())]
            for cuts, t in zip(shards, tensors, strict=True)
        ]
        total = 1
        for option in options:
            total *= len(option)
        if total <= limit:
            chosen: Iterator[tuple[Placement, ...]] = itertools.product(*options)
        else:
            chosen = _sparse(options)
        for inputs in chosen:
            if inputs != replicated and (reduction is None or any(is_partial(p) for p in inputs)):
                yield inputs


def _sparse(options: Sequence[list[Placement]]) -> Iterator[tuple[Placement, ...]]:
    for placement in dict.fromkeys(p for option in options for p in option):
        yield tuple(placement if placement in option else Replicate() for option in options)
    for first, second in itertools.combinations(range(len(options)), 2):
        for pair in itertools.product(options[first], options[second]):
            inputs: list[Placement] = [Replicate()] * len(options)
            inputs[first], inputs[second] = pair
            yield tuple(inputs)


def _specs(tree: Any) -> list[DTensorSpec]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, DTensorSpec)]


@functools.cache
def _mesh(ranks: int) -> DeviceMesh:
    return DeviceMesh("cpu", list(range(ranks)), _init_backend=False, _rank=0)


def _propagator() -> Any:
    return DTensor._op_dispatcher.sharding_propagator


def _message(error: Exception) -> str:
    kind = "" if isinstance(error, NotImplementedError) else f"{type(error).__name__}: "
    return kind + first_line(error)
