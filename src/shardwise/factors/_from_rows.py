"""Factors from rows: each row that shards a tensor becomes a factor, unless another factor already has its dims.

A dim of size n is represented by the interval from 1 to n; a shard claims it from 1, a strided shard with split
factor f from f, up to the size that all dims of the row share. Rows that cannot become factors together with the
others (their dims are taken, or they only carry partials) are kept as rows, so that nothing is lost.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..calls import Call
from ..errors import UsageError
from ..placements import SHARDS, Row, is_partial, is_shard
from ..rules import Rule
from ._factors import Factor, FactorRule, Shape, TensorFactors

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
    candidates = {
        index: claim for index, row in enumerate(rows) if (claim := _claim(row, shapes)) is not None
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
    fillers: list[Factor] = []
    tensors: list[TensorFactors | None] = []
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
            dims.append(_fill(parts, size, len(order), fillers))
        tensors.append(tuple(dims))
    carriers = (tuple(t for t in tensors[: len(inputs)] if t is not None), tuple(tensors[len(inputs) :]))
    factors = tuple(_factor(names[index], chosen[index]) for index in order)
    entries = tuple(names.get(index, row) for index, row in enumerate(rows))
    return FactorRule(*carriers, (*factors, *fillers), entries)


def _fill(parts: list[tuple[int, int, str]], size: int, used: int, fillers: list[Factor]) -> tuple[str, ...]:
    """The factors of a dim; the parts that no row shards become factors that cannot be sharded."""
    dims = []
    position = 1
    for above, length, name in [*parts, (size, 1, "")]:
        if above > position:
            filler = Factor(
                _name(used + len(fillers)),
                above // position,
                "need_replication",
                blocked=True,
                shards="even" if parts else "any",
            )
            fillers.append(filler)
            dims.append(filler.name)
        if name:
            dims.append(name)
        position = above * length
    return tuple(dims)


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
