"""Rows for strided shards: those of a rule's rows that hold for them too, as experiments say.

Rules are stated for plain shards. Most of their rows do not care which positions of a dim a rank holds, as long as all
tensors of the row agree. Where a DTensor has a strided shard, the rows of its call are tested on strided pieces, at a
small size and once per process, and those that hold are taken for shards of any kind.
"""

from collections.abc import Sequence

from torch.distributed.tensor._dtensor_spec import DTensorSpec
from torch.utils._python_dispatch import _disable_current_modes

from ..calls import Call, facts, small_calls
from ..experiments import open_rows
from ..placements import Row

_known: dict[tuple[str, tuple[Row, ...]], list[Row]] = {}


def with_open_rows(rows: Sequence[Row], call: Call | None, specs: Sequence[DTensorSpec]) -> Sequence[Row]:
    """The rows of a call of tensors with these specs, for shards of any kind where that matters and is confirmed."""
    strided = any(hasattr(p, "split_factor") for spec in specs for p in spec.placements)
    if not strided or call is None or facts(call.op).random:
        return rows
    if any(len(row.inputs) != len(call.tensors) for row in rows):
        return rows  # they count the tensors of `out=` too, which experiments do not place
    key = str(call), tuple(rows)
    if key not in _known:
        with _disable_current_modes():  # which may make fake tensors, or those of all ranks
            small = next(small_calls(call), None)
            _known[key] = list(rows) if small is None else open_rows(small, rows)
    return _known[key]
