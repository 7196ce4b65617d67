"""Rows with open shard kinds, made concrete for a call: `S(0, sf=*)` takes every kind that the inputs have.

Most operators do not care which positions of a dim a rank holds, as long as all tensors agree. Their rows say
so, and only the kinds that actually occur are worth trying. Every operator can also be replicated.
"""

from collections.abc import Iterable, Sequence

from torch.distributed.tensor.placement_types import Placement

from ..errors import UsageError
from ..placements import Row, is_shard, parse_placement


def fill(rows: Sequence[Row], placements: Iterable[Placement], *, inputs: int, outputs: int = 1) -> list[Row]:
    """The rows to try for inputs with these placements: all replicated first, then the given ones in order.

    A row whose kind is open gives one row for each kind of shard among `placements`, plain before strided,
    none if nothing is sharded.

    >>> rows = [Row.parse("S(1, sf=*), S(0, sf=*) -> P(sum)")]
    >>> for row in fill(rows, [shard(0), shard(1, 2)], inputs=2):
    ...     print(row)
    R, R -> R
    S(1), S(0) -> P(sum)
    S(1, sf=2), S(0, sf=2) -> P(sum)
    """
    factors = {getattr(p, "split_factor", None) for p in placements if is_shard(p)}
    kinds = sorted(factors, key=lambda factor: factor or 0)
    _require_length(rows, inputs)
    filled: dict[Row, None] = {}
    if not any(row.is_replicated for row in rows):
        filled[_replicated(rows, inputs, outputs)] = None
    for row in rows:
        if row.is_open:
            for factor in kinds:
                filled[row.with_kind(factor)] = None
        else:
            filled[row] = None
    return list(filled)


def _replicated(rows: Sequence[Row], inputs: int, outputs: int) -> Row:
    replicate = parse_placement("R")
    if not rows:
        return Row((replicate,) * inputs, (replicate,) * outputs)
    # An output that a row does not return is one that the call does not return.
    return Row((replicate,) * inputs, tuple(None if p is None else replicate for p in rows[0].outputs))


def _require_length(rows: Sequence[Row], inputs: int) -> None:
    for row in rows:
        if len(row.inputs) != inputs:
            raise UsageError(f"row '{row}' has {len(row.inputs)} inputs but the call has {inputs} tensors")
        if len(row.outputs) != len(rows[0].outputs):
            raise UsageError(f"rows '{rows[0]}' and '{row}' differ in their number of outputs")
