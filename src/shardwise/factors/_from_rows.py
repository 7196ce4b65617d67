"""Factors from rows: each row that shards a tensor becomes a factor, unless another factor already has its dims.

A dim of size n is represented by the interval from 1 to n; a shard claims it from 1, a strided shard with split
factor f from f, up to the size that all dims of the row share. Rows that cannot become factors together with the
others (their dims are taken, or they only carry partials) are kept as rows, so that nothing is lost.

What no row shards is a factor too. It cannot be sharded, and nothing is propagated along it; but calls that only move
elements carry shardings along such dims from tensor to tensor, at the price of moving data (a fused projection that is
split into queries, keys and values).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch.distributed.tensor import Replicate

from ..calls import Call
from ..errors import UsageError
from ..placements import SHARDS, Row, is_partial, is_shard, partial
from ..rules import Rule
from ._factors import Factor, FactorRule, Shape

_LETTERS = "ijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class _Claim:
    """A row as a factor: for each tensor that it shards, the dim and the size of the more significant factors there."""

    row: Row
    size: int
    places: tuple[tuple[int, int, int], ...]  # tensor, dim, size above the factor


def factors_from_rows(
    rows: Sequence[Row], inputs: Sequence[Shape], outputs: Sequence[Shape | None]
) -> FactorRule:
    for row in rows:
        _require_fit(row, inputs, outputs)
    shapes = [*inputs, *outputs]
    known = set(rows)
    candidates = {
        index: claim
        for index, row in enumerate(rows)
        if (claim := _claim(row, shapes)) is not None and not _is_unrelated(claim, shapes, known)
    }
    taken: dict[tuple[int, int], list[_Claim]] = {}
    chosen: dict[int, _Claim] = {}
    for index in sorted(candidates, key=lambda index: _preference(rows[index], index)):
        claim = candidates[index]
        if all(_is_free(claim, place, shapes, taken.get(place[:2], [])) for place in claim.places):
            chosen[index] = claim
            for tensor, dim, _ in claim.places:
                taken.setdefault((tensor, dim), []).append(claim)
    return _assemble(rows, chosen, inputs, outputs)


def factors_of(call: Call, rows: Sequence[Row]) -> FactorRule:
    """The factors of a call with these rows."""
    return factors_from_rows(rows, call.shapes, call.outputs)


def factors_of_call(rule: Rule, *args: Any, **kwargs: Any) -> FactorRule:
    """The rows of a rule for a call, as factors; tensors may be on the meta device."""
    call = Call(rule.function, args, kwargs)
    return factors_of(call, rule.rows_of(call))


def _require_fit(row: Row, inputs: Sequence[Shape], outputs: Sequence[Shape | None]) -> None:
    for side, placements, shapes in (("input", row.inputs, inputs), ("output", row.outputs, outputs)):
        if len(placements) != len(shapes):
            raise UsageError(f"row '{row}' has {len(placements)} {side}s but there are {len(shapes)} shapes")
        for i, (placement, shape) in enumerate(zip(placements, shapes, strict=True)):
            if (placement is None) != (shape is None):
                raise UsageError(
                    f"row '{row}' and the shapes disagree about {side} {i}: '-' corresponds to None"
                )
            if (
                placement is not None
                and shape is not None
                and is_shard(placement)
                and placement.dim >= len(shape)
            ):
                raise UsageError(
                    f"row '{row}' shards dim {placement.dim} of {side} {i}, which has shape {tuple(shape)}"
                )


def _claim(row: Row, shapes: Sequence[Shape | None]) -> _Claim | None:
    places = []
    sizes = []
    for tensor, placement in enumerate((*row.inputs, *row.outputs)):
        shape = shapes[tensor]
        if placement is None or shape is None or not is_shard(placement):
            continue
        above = getattr(placement, "split_factor", None) or 1
        size = shape[placement.dim]
        if above >= size or size % above or (above == 1 and hasattr(placement, "split_factor")):
            return None
        places.append((tensor, placement.dim, above))
        sizes.append(size // above)
    if not places or any(size % min(sizes) for size in sizes) or min(sizes) < 2:
        return None
    return _Claim(row, min(sizes), tuple(places))


def _is_unrelated(claim: _Claim, shapes: Sequence[Shape | None], known: set[Row]) -> bool:
    """True if the row shards different dims and holds as well with its inputs replicated, whose values it then ignores
    (`new_zeros`): sharding the input says nothing about the output."""
    row = claim.row
    dims = {(dim, shape[dim]) for tensor, dim, _ in claim.places if (shape := shapes[tensor]) is not None}
    if len(dims) == 1 or not any(map(is_shard, row.inputs)):
        return False
    replicated = tuple(Replicate() if is_shard(placement) else placement for placement in row.inputs)
    return replace(row, inputs=replicated) in known


def _preference(row: Row, index: int) -> tuple[int, int, int, int, int]:
    """Of rows that claim the same dims: first those without partial inputs, then those that shard the most tensors."""
    partial_inputs = sum(is_partial(placement) for placement in row.inputs)
    sharded = sum(placement is not None and is_shard(placement) for placement in (*row.inputs, *row.outputs))
    return partial_inputs, -sharded, row.local is not None, SHARDS.index(row.shards), index


def _is_free(
    claim: _Claim, place: tuple[int, int, int], shapes: Sequence[Shape | None], others: list[_Claim]
) -> bool:
    """True if the claim's interval and those of the others are compatible on every dim."""
    tensor, dim, above = place
    shape = shapes[tensor]
    assert shape is not None  # only tensors that exist are claimed
    if shape[dim] % (above * claim.size):
        return False
    for other in others:
        other_above = next(a for t, d, a in other.places if (t, d) == (tensor, dim))
        low, high = sorted(((above, claim.size), (other_above, other.size)))
        if high[0] % (low[0] * low[1]):
            return False
    return True


def _assemble(
    rows: Sequence[Row], chosen: dict[int, _Claim], inputs: Sequence[Shape], outputs: Sequence[Shape | None]
) -> FactorRule:
    shapes = [*inputs, *outputs]
    order = sorted(chosen, key=lambda index: _first_place(chosen[index], len(inputs)))
    names = {index: _name(position) for position, index in enumerate(order)}
    gaps: list[_Gap] = []
    tensors: list[list[list[str | _Gap]] | None] = []
    for tensor, shape in enumerate(shapes):
        if shape is None:
            tensors.append(None)
            continue
        dims = []
        for dim, size in enumerate(shape):
            parts = sorted(
                (above, chosen[index].size, names[index])
                for index in order
                for t, d, above in chosen[index].places
                if (t, d) == (tensor, dim)
            )
            dims.append(_fill(parts, size, tensor, gaps))
        tensors.append(dims)
    fillers = _fillers(gaps, _moves_elements(rows), len(order))
    named = [
        None
        if dims is None
        else tuple(
            tuple(part if isinstance(part, str) else fillers[part].name for part in dim) for dim in dims
        )
        for dims in tensors
    ]
    carriers = (tuple(t for t in named[: len(inputs)] if t is not None), tuple(named[len(inputs) :]))
    factors = tuple(_factor(names[index], chosen[index]) for index in order)
    entries = tuple(names.get(index, row) for index, row in enumerate(rows))
    return FactorRule(*carriers, (*factors, *dict.fromkeys(fillers.values())), entries)


@dataclass(frozen=True, eq=False)
class _Gap:
    """A part of a dim that no row shards; `whole` if it is all of the dim."""

    tensor: int
    size: int
    whole: bool


def _fill(parts: list[tuple[int, int, str]], size: int, tensor: int, gaps: list[_Gap]) -> list[str | _Gap]:
    """The factors of a dim, and the gaps between them."""
    dims: list[str | _Gap] = []
    position = 1
    for above, length, name in [*parts, (size, 1, "")]:
        if above > position:
            gaps.append(_Gap(tensor, above // position, whole=not parts))
            dims.append(gaps[-1])
        if name:
            dims.append(name)
        position = above * length
    return dims


def _moves_elements(rows: Sequence[Row]) -> bool:
    """True if a call only moves elements, as views, slices and concatenations do: it commutes with every reduction."""
    carried = [{*row.inputs, *row.outputs} for row in rows]
    return all({partial(kind)} in carried for kind in ("sum", "max", "min"))


def _fillers(gaps: Sequence[_Gap], moves: bool, used: int) -> dict[_Gap, Factor]:
    """A factor for each gap, which cannot be sharded. Where a call only moves elements, those at the same place among
    the gaps of every tensor are one factor along which it moves data: its shards do not stay where they are."""
    of_tensor: dict[int, list[_Gap]] = {}
    for gap in gaps:
        of_tensor.setdefault(gap.tensor, []).append(gap)
    together = list(zip(*of_tensor.values(), strict=False))
    moved = (
        moves
        and len({len(own) for own in of_tensor.values()}) == 1
        and all(len({gap.size for gap in same}) == 1 or all(gap.whole for gap in same) for same in together)
    )
    groups: list[tuple[_Gap, ...]] = together if moved and len(of_tensor) > 1 else [(gap,) for gap in gaps]
    found: dict[_Gap, Factor] = {}
    for position, group in enumerate(groups):
        factor = Factor(
            _name(used + position),
            min(gap.size for gap in group),
            "permutation" if len(group) > 1 else "need_replication",
            blocked=len(group) == 1,
            shards="any" if all(gap.whole for gap in group) else "even",
        )
        found |= dict.fromkeys(group, factor)
    return found


def _factor(name: str, claim: _Claim) -> Factor:
    row = claim.row
    companions = tuple(p for p in row.inputs if not is_shard(p))
    leaves = tuple(p for p in row.outputs if p is not None and not is_shard(p))
    return Factor(
        name,
        claim.size,
        "reduction" if any(is_partial(p) for p in leaves) else "pass_through",
        companions=companions if any(is_partial(p) for p in companions) else None,
        leaves=leaves or None,
        shards=row.shards,
        local=row.local,
    )


def _first_place(claim: _Claim, inputs: int) -> tuple[bool, int, int, int]:
    """Factors of the outputs come first, in the order of their dims, as in written rules."""
    tensor, dim, above = min(claim.places, key=lambda place: (place[0] < inputs, place))
    return tensor < inputs, tensor, dim, above


def _name(position: int) -> str:
    return _LETTERS[position] if position < len(_LETTERS) else f"z_{position - len(_LETTERS) + 1}"
