"""Rows of a call written with the names of its arguments instead of their positions, and what such rules often need."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch.distributed.tensor.placement_types import Placement, Replicate

from ...calls import Call, Shape
from ...errors import UsageError
from ...placements import Row, Shards, partials_of

R = Replicate()

# How the reductions act on pieces: an average keeps what all pieces have, a maximum and a minimum too, a sum does not.
KEEPING = ("avg", "max", "min")
LINEAR = ("sum", "avg")
ALL = ("sum", "avg", "max", "min")

Placed = Mapping[str, Placement | Sequence[Placement]]


def row_of(
    call: Call,
    inputs: Placed,
    outputs: Placement | Sequence[Placement],
    shards: Shards = "any",
    local: str | None = None,
) -> Row:
    """A row of a call from placements by argument (all others replicated), one for all tensors of a list or one each,
    and those of the outputs, one for all or one each; what was not given or is not returned takes none."""
    for name in inputs:
        if name not in call:
            raise UsageError(
                f"a rule of {call.name} places {name!r}: the operator's arguments are {', '.join(call.arguments)}"
            )
    placed: list[Placement] = []
    for name in dict.fromkeys(call.tensor_names):
        given = inputs.get(name, R)
        alone = not isinstance(given, list | tuple)
        placed += [given] * call.tensor_names.count(name) if alone else given
    each = outputs if isinstance(outputs, list | tuple) else [outputs] * len(call.outputs)
    made = tuple(None if shape is None else p for shape, p in zip(call.outputs, each, strict=True))
    return Row(tuple(placed), made, shards, local)


def dim_of(call: Call, name: str = "self", argument: str = "dim") -> int:
    """The dim of a tensor that an argument names, counted from 0."""
    return int(call[argument]) % max(len(call.shape(name)), 1)


def dims(call: Call, name: str) -> list[int]:
    """The dims of a tensor that have something to shard."""
    return sharded_dims(call.shape(name))


def sharded_dims(shape: Shape) -> list[int]:
    return [dim for dim, size in enumerate(shape) if size > 1]


def aligned(shape: Shape, dim: int, ndim: int) -> int | None:
    """The dim of an operand that broadcasting puts under dim `dim` of `ndim`; None where it is missing or of size 1."""
    own = dim - ndim + len(shape)
    return own if own >= 0 and shape[own] > 1 else None


def pass_through(call: Call, name: str, reductions: Sequence[str], **options: Any) -> Iterator[Row]:
    """Rows that carry a partial of one input to every output."""
    for p in partials_of(call[name].dtype, reductions):
        yield row_of(call, {name: p}, p, **options)
