"""One operation on local shards: the axes of its factors, and the shardings of its tensors.

Propagation only suggests shardings. An operation can run locally if every factor is sharded in the same way on all
tensors that carry it, and each axis shards one factor. Where inputs disagree, the largest one keeps its sharding and
the others are redistributed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import torch
from torch.distributed.tensor.placement_types import Placement

from ..errors import UsageError
from ..factors import Factor, FactorRule
from ..layout import AxisRef, DimSharding, Layout, Sharding, is_prefix, layouts_of, mixes_partials
from ..mesh import DEFAULT_CLUSTER, Cluster, Mesh
from ..placements import is_partial, is_replicate, is_shard
from ..redistribution import Chain, cheapest_chain
from ._state import Axes, Cell, Op, Projected, State, project, unproject


@dataclass(frozen=True)
class Reshard:
    """The redistribution of one input before the operation can run on local shards."""

    before: Sharding
    after: Sharding

    @cached_property
    def layouts(self) -> tuple[Layout, Layout]:
        """Both as layouts on one mesh."""
        before, after = layouts_of([self.before, self.after])
        return before, after

    @property
    def is_needed(self) -> bool:
        return self.layouts[0] != self.layouts[1]

    def chain(
        self,
        shape: Sequence[int],
        *,
        dtype: torch.dtype = torch.float32,
        cluster: Cluster | str = DEFAULT_CLUSTER,
    ) -> Chain:
        """The cheapest chain of collectives for a tensor of this shape."""
        return cheapest_chain(*self.layouts, shape, dtype=dtype, cluster=cluster)

    def __str__(self) -> str:
        return f"{self.before.closed()} -> {self.after}" if self.is_needed else "nothing to do"


@dataclass(frozen=True)
class LocalRun:
    """How an operation runs on local shards: the axes of its factors, and the shardings of its tensors."""

    rule: FactorRule
    axes: dict[str, Axes]
    inputs: tuple[Sharding, ...]
    outputs: tuple[Sharding, ...]


def infer_output_sharding(
    rule: FactorRule, in_shardings: Sequence[Sharding], wanted: Sequence[Sharding | None] | None = None
) -> tuple[Sharding, ...]:
    """The shardings of the outputs, given those of the inputs and, optionally, the desired ones of the outputs.

    >>> from shardwise.factors import Template
    >>> rule = Template.parse("m k, k n -> m n").on([(8, 16), (16, 32)])
    >>> x, w = (Sharding.parse(text, "dp=2,tp=4") for text in ("[{dp}, {tp}]", "[{tp}, {}]"))
    >>> print(*infer_output_sharding(rule, [x, w]))
    [{dp}, {}] partial={tp:sum}
    """
    return local_run(rule, in_shardings, wanted).outputs


def reshard_inputs(
    rule: FactorRule, in_shardings: Sequence[Sharding], wanted: Sequence[Sharding | None] | None = None
) -> tuple[Reshard, ...]:
    """For each input, the redistribution it needs so that the outputs have the shardings of `infer_output_sharding`."""
    needed = local_run(rule, in_shardings, wanted).inputs
    return tuple(Reshard(before, after) for before, after in zip(in_shardings, needed, strict=True))


def local_run(
    rule: FactorRule, in_shardings: Sequence[Sharding], wanted: Sequence[Sharding | None] | None = None
) -> LocalRun:
    """Decide the axes of each factor. An axis on which an input is partial shards no factor: the partial is carried
    through if a row of the rule allows it, and reduced beforehand otherwise.
    """
    op = Op.of(rule, elementwise=False)
    states = _states(op, in_shardings, wanted)
    mesh = next(s.mesh for s in (*in_shardings, *(wanted or ())) if s is not None)
    tensors = [project(state, tensor, op.sizes) for state, tensor in zip(states, op.tensors, strict=True)]
    partial: list[dict[AxisRef, Placement]] = [{} for _ in op.tensors]
    _carry(rule, states[: op.inputs], partial)
    axes = _assign(op, tensors, partial)
    shardings = [_sharding(op, mesh, index, axes, partial[index]) for index in range(len(states))]
    return LocalRun(rule, axes, tuple(shardings[: op.inputs]), tuple(shardings[op.inputs :]))


def _states(op: Op, inputs: Sequence[Sharding], wanted: Sequence[Sharding | None] | None) -> list[State]:
    outputs = len(op.tensors) - op.inputs
    given = [None] * outputs if wanted is None else list(wanted)
    for what, count, shardings in (("input", op.inputs, inputs), ("output", outputs, given)):
        if len(shardings) != count:
            raise UsageError(
                f"rule '{op.rule}' has {count} {what}s but {len(shardings)} shardings were given"
            )
    if not inputs and not any(given):
        raise UsageError(f"rule '{op.rule}' has no inputs: give the desired sharding of its output")
    meshes = {sharding.mesh for sharding in [*inputs, *given] if sharding is not None}
    if len(meshes) > 1:
        raise UsageError(f"the shardings are of {len(meshes)} meshes: {', '.join(map(str, meshes))}")
    states = []
    for index, (sharding, tensor) in enumerate(zip([*inputs, *given], op.tensors, strict=True)):
        if sharding is not None and sharding.rank != len(tensor):
            raise UsageError(f"{op.place(index)} has {len(tensor)} dims but its sharding is {sharding}")
        states.append(State.of(sharding or Sharding.unknown(next(iter(meshes)), len(tensor))))
    return states


def _carry(rule: FactorRule, inputs: Sequence[State], partial: list[dict[AxisRef, Placement]]) -> None:
    """Record, per tensor, the partial axes that some row of the rule carries through."""
    for axis in dict.fromkeys(axis for state in inputs for axis, _ in state.partial):
        held = [dict(state.partial).get(axis) for state in inputs]
        if any(other.overlaps(axis) for state in inputs for dim in state.axes for other in dim):
            continue
        for row in rule.rows():
            placements = [*row.inputs, *(placement for placement in row.outputs if placement is not None)]
            if (
                all(map(_keeps, row.inputs, held))
                and not any(map(is_shard, placements))
                and _note(partial, placements, (axis,))
            ):
                break


def _keeps(placement: Placement, held: str | None) -> bool:
    """True if an input that is partial with `held`, or replicated (None), has `placement` or can get it for free."""
    if held is None:
        return is_replicate(placement) or is_partial(placement)
    return is_partial(placement) and placement.reduce_op == held


def _assign(op: Op, tensors: list[Projected], partial: list[dict[AxisRef, Placement]]) -> dict[str, Axes]:
    """The axes of each factor, decided in the order of the size of the tensor that has them; resulting partials are
    recorded.
    """
    claims = []
    for number, factor in enumerate(op.rule.factors):
        if op.rule.row_of(factor.name) is None:
            continue
        asking = [
            (-math.prod(op.sizes[f] for f in tensor.cells), index, tensor.cells[number].axes)
            for index, tensor in enumerate(tensors)
            if number in tensor.cells and tensor.cells[number].axes
        ]
        if asking:
            elements, index, axes = min(asking, key=lambda claim: claim[:2])
            longest = max((a for _, _, a in asking if is_prefix(axes, a)), key=_shards)
            claims.append(((elements, index, number), longest))
    assigned: dict[int, Axes] = {}
    used = [axis for held in partial for axis in held]
    for (_, _, number), axes in sorted(claims, key=lambda claim: claim[0]):
        carriers = [tensor for tensor in tensors if number in tensor.cells]
        free = _clear(axes, [*used, *(axis for tensor in carriers for axis in tensor.barred)])
        assigned[number] = _held(free, op.rule.factors[number])
        used += assigned[number]
    mixing: int | None = -1
    while mixing is not None:
        _drop_strided(op, assigned)
        left = [dict(held) for held in partial]
        split = [(number, axes) for number, axes in assigned.items() if axes]
        mixing = next(
            (n for n, axes in split if not _note(left, _placements(op.rule, op.names[n]), axes)), None
        )
        if mixing is not None:
            assigned[mixing] = ()
    partial[:] = left
    return {op.names[number]: axes for number, axes in assigned.items() if axes}


def _clear(axes: Axes, used: Sequence[AxisRef]) -> Axes:
    """The axes up to the first that is used, including the unused prefix of that one."""
    kept: list[AxisRef] = []
    for axis in axes:
        part: AxisRef | None = axis
        for other in used:
            part = part and part.before(other)
        if part is not None:
            kept.append(part)
        if part != axis:
            break
    return tuple(kept)


def _held(axes: Axes, factor: Factor) -> Axes:
    """The longest prefix of the axes that may shard the factor, given the shard sizes for which its row holds."""
    for count in range(len(axes), 0, -1):
        shards = _shards(axes[:count])
        even = factor.size % shards == 0
        nonempty = even or (shards - 1) * -(-factor.size // shards) < factor.size
        if {"any": True, "nonempty": nonempty, "even": even}[factor.shards]:
            return axes[:count]
    return ()


def _drop_strided(op: Op, assigned: dict[int, Axes]) -> None:
    """A factor below one that is not fully sharded would give strided shards: it is not sharded."""
    changed = True
    while changed:
        changed = False
        for factors in (dim for tensor in op.tensors for dim in tensor):
            full = accumulate(
                (_shards(assigned.get(f, ())) == op.sizes[f] for f in factors),
                lambda a, b: a and b,
                initial=True,
            )
            for factor, above_is_full in zip(factors, full, strict=False):
                if assigned.get(factor) and not above_is_full:
                    assigned[factor] = ()
                    changed = True


def _placements(rule: FactorRule, factor: str) -> list[Placement]:
    """The placements of all tensors when the factor is sharded."""
    row = rule.row_of(factor)
    assert row is not None  # factors without a row are never sharded
    return [*row.inputs, *(placement for placement in row.outputs if placement is not None)]


def _note(partial: list[dict[AxisRef, Placement]], placements: Sequence[Placement], axes: Axes) -> bool:
    """Record which tensors become partial on these axes; False, and nothing recorded, if one would have two
    incompatible reductions.
    """
    added = {index: p for index, p in enumerate(placements) if is_partial(p)}
    if any(mixes_partials([*partial[index].values(), placement]) for index, placement in added.items()):
        return False
    for index, placement in added.items():
        partial[index].update(dict.fromkeys(axes, placement))
    return True


def _sharding(
    op: Op, mesh: Mesh, index: int, axes: dict[str, Axes], partial: dict[AxisRef, Placement]
) -> Sharding:
    tensor = op.tensors[index]
    cells = {
        factor: Cell(axes.get(op.names[factor], ()), closed=True, minor=factor == dim[-1])
        for dim in tensor
        for factor in dim
    }
    blank = State(((),) * len(tensor), (True,) * len(tensor), (), (), None)
    new = unproject(Projected(cells, (), ()), tensor, op.sizes, blank)
    dims = tuple(DimSharding(dim, open=False) for dim in new.axes)
    return Sharding(mesh, dims, (), tuple((axis, placement.reduce_op) for axis, placement in partial.items()))


def _shards(axes: Axes) -> int:
    return math.prod(axis.size for axis in axes)
