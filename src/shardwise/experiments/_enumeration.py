"""Which placements of the inputs are worth an experiment.

With few inputs, all of them. With many, the ones a row can have: one shard class (dims of equal size) and one
kind of partial at a time. Tensors of a long list get the same placement.
"""

import itertools
import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.distributed.tensor.placement_types import Placement, Replicate

from ..calls import Call
from ..placements import partials_of, shard

# Up to this many combinations are simply all tried.
FEW = 5000
# The tensors of lists longer than this get the same placement.
LONG = 4


def placements_of(shape: Sequence[int], dtype: torch.dtype, partials: Sequence[str]) -> list[Placement]:
    """R, a shard of every dim that has something to shard, and partials."""
    shards = [shard(d) for d, size in enumerate(shape) if size > 1]
    return [Replicate(), *shards, *partials_of(dtype, partials)]


def combinations(call: Call, partials: Sequence[str]) -> Iterator[tuple[Placement, ...]]:
    """Placements of all inputs, all replicated excepted."""
    tensors = call.tensors
    groups = _groups(call)
    options = [_common(group, tensors, partials) for group in groups]
    if math.prod(len(o) for o in options) <= FEW:
        chosen: Iterator[tuple[Placement, ...]] = itertools.product(*options)
    else:
        chosen = _structured(groups, options, tensors)
    for combination in dict.fromkeys(chosen):
        placements: list[Placement] = [Replicate()] * len(tensors)
        for group, placement in zip(groups, combination, strict=True):
            for i in group:
                placements[i] = placement
        if tensors and all(isinstance(p, Replicate) for p in placements):
            continue
        yield tuple(placements)


def _groups(call: Call) -> list[tuple[int, ...]]:
    """Inputs that get the same placement: the elements of a long list; all others alone."""
    long = [group for group in call.lists if len(group) >= LONG]
    inside = {i for group in long for i in group}
    singles = [(i,) for i in range(len(call.tensors)) if i not in inside]
    return sorted([*long, *singles])


def _common(group: tuple[int, ...], tensors: Sequence[Tensor], partials: Sequence[str]) -> list[Placement]:
    options = [placements_of(tensors[i].shape, tensors[i].dtype, partials) for i in group]
    return [p for p in options[0] if all(p in other for other in options[1:])]


def _structured(
    groups: Sequence[tuple[int, ...]], options: Sequence[list[Placement]], tensors: Sequence[Tensor]
) -> Iterator[tuple[Placement, ...]]:
    """One size of sharded dim and one kind of partial at a time; if that is still too many, at most three inputs
    that are not replicated, or all the same."""
    sizes = {s for t in tensors for s in t.shape if s > 1}
    kinds = {p for o in options for p in o if p.is_partial()}
    for size, kind in itertools.product(sorted(sizes), sorted(kinds, key=str) or [None]):
        narrowed = [
            [p for p in o if p == kind or isinstance(p, Replicate) or _shards(p, tensors[g[0]], size)]
            for g, o in zip(groups, options, strict=True)
        ]
        if math.prod(len(n) for n in narrowed) <= 4 * FEW:
            yield from itertools.product(*narrowed)
            continue
        for count in (1, 2, 3):
            for places in itertools.combinations(range(len(narrowed)), count):
                choice = [narrowed[i] if i in places else narrowed[i][:1] for i in range(len(narrowed))]
                yield from itertools.product(*choice)
        for p in {p for n in narrowed for p in n}:
            yield tuple(p if p in n else n[0] for n in narrowed)


def _shards(placement: Placement, tensor: Tensor, size: int) -> bool:
    return placement.is_shard() and tensor.shape[placement.dim] == size
