"""The text form of a placement: `R`, `S(0)`, `S(0, sf=2)`, `P(sum)`; in rows also `S(0, sf=*)`.

>>> parse_placement("S(1)")
Shard(dim=1)
>>> placement_text(parse_placement("P(max)"))
'P(max)'
"""

import re
from functools import cache

from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement, _StridedShard

from ..errors import UsageError

# The reductions of partials, in the order in which rows list them.
PARTIALS = ("sum", "avg", "max", "min", "product")

_SHARD = re.compile(r"S\(\s*(-?\d+)\s*(?:,\s*sf\s*=\s*(\d+|\*)\s*)?\)")
_PARTIAL = re.compile(r"P\(\s*(\w+)\s*\)")


class AnyShard(Placement):
    """A shard of a dim of any kind: plain or strided, with any split factor.

    It is used only in rows, for operators whose result does not depend on which positions a rank holds as long as
    all tensors of the row agree; `shardwise.expansion` replaces it by the kinds of shards that the inputs have.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AnyShard) and self.dim == other.dim

    def __hash__(self) -> int:
        return hash((AnyShard, self.dim))

    def __repr__(self) -> str:
        return f"AnyShard(dim={self.dim})"

    def __reduce__(self) -> tuple[type["AnyShard"], tuple[int]]:
        return AnyShard, (self.dim,)


# By type and not by isinstance, which is slow for torch's placement classes.
def is_replicate(placement: Placement) -> bool:
    return type(placement) is Replicate


def is_shard(placement: Placement) -> bool:
    """True for shards of either kind, plain and strided."""
    return type(placement) is Shard or type(placement) is _StridedShard


def is_partial(placement: Placement) -> bool:
    return issubclass(type(placement), Partial)


@cache
def shard(dim: int, split_factor: int | None = None) -> Placement:
    return Shard(dim) if split_factor is None else _StridedShard(dim, split_factor=split_factor)


@cache
def partial(reduction: str = "sum") -> Placement:
    if reduction not in PARTIALS:
        raise UsageError(f"unknown reduction {reduction!r}: use one of {', '.join(PARTIALS)}")
    return Partial(reduction)


@cache
def parse_placement(text: str) -> Placement:
    """The placement with this text form; a `UsageError` lists the accepted forms."""
    text = text.strip()
    if text == "R":
        return Replicate()
    if match := _SHARD.fullmatch(text):
        dim, factor = int(match[1]), match[2]
        if dim < 0:
            raise UsageError(f"placement {text!r} has a negative dim: count dims from 0, as in S(0)")
        if factor == "*":
            return AnyShard(dim)
        if factor is not None and int(factor) < 1:
            raise UsageError(f"placement {text!r} has split factor {factor}: it must be at least 1")
        return shard(dim, int(factor) if factor else None)
    if match := _PARTIAL.fullmatch(text):
        return partial(match[1])
    raise UsageError(
        f"{text!r} is not a placement: use R, S(0), S(0, sf=2) or P(sum) (also {', '.join(PARTIALS[1:])})"
    )


def placement_text(placement: Placement) -> str:
    if isinstance(placement, Replicate):
        return "R"
    if isinstance(placement, _StridedShard):
        return f"S({placement.dim}, sf={placement.split_factor})"
    if isinstance(placement, Shard):
        return f"S({placement.dim})"
    if isinstance(placement, AnyShard):
        return f"S({placement.dim}, sf=*)"
    if isinstance(placement, Partial):
        return f"P({placement.reduce_op})"
    raise not_known(placement)


def not_known(placement: object) -> UsageError:
    """What to say of anything but R, S and P."""
    if not isinstance(placement, Placement):
        return UsageError(f"{placement!r} is not a placement: use R, S or P")
    return UsageError(
        f"{type(placement).__name__} is a placement of its own kind: rows and layouts have R, S and P, whose pieces "
        "they can split, join, reduce and redistribute, and would need all four of it; redistribute such tensors to "
        "one of them first"
    )
