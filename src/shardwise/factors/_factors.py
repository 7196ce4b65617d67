"""`FactorRule`: an operator call as a set of factors, the indices that it loops over.

A factor has the dims that carry it. Sharding the factor shards all of those dims; by default an output that does not
carry it becomes partial, and an input that does not carry it is replicated. That is one row per factor, which is the
idea here: a factor rule and a list of rows are equivalent.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from torch.distributed.tensor import Replicate
from torch.distributed.tensor.placement_types import Placement

from ..errors import UsageError
from ..placements import Row, Shards, is_partial, partial, shard

# What sharding a factor means: it passes through; it is reduced; the op needs it replicated; the op moves data
# between its shards.
Kind = Literal["pass_through", "reduction", "need_replication", "permutation"]

Shape = Sequence[int]
# For each dim of a tensor its factors, major to minor; none for a dim that cannot be sharded.
TensorFactors = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Factor:
    """One factor of a rule.

    `companions` are the placements of the inputs that do not carry it, in order (None: all replicated). `leaves`
    are those of the outputs that do not carry it (None: unknown, so there is no row for this factor alone).
    `blocked` factors are not propagated. `shards` and `local` are those of its row.
    """

    name: str
    size: int
    kind: Kind = "pass_through"
    blocked: bool = False
    companions: tuple[Placement, ...] | None = None
    leaves: tuple[Placement, ...] | None = None
    shards: Shards = "any"
    local: str | None = None


@dataclass(frozen=True)
class FactorRule:
    """The factors of one call: which dims carry which, their sizes and kinds.

    >>> rule = FactorRule.parse("([i, k], [k, j])->([i, j]) {i=8, j=4, k=16} reduction={k}")
    >>> [str(row) for row in rule.rows()]
    ['S(0), R -> S(0)', 'R, S(1) -> S(1)', 'S(1), S(0) -> P(sum)']

    The order of `factors` is their precedence in conflicts. `entries` is the order of `rows()`: names of factors, and
    rows that no factor expresses; None means all factors in order. An output that the call does not return is None.
    """

    inputs: tuple[TensorFactors, ...]
    outputs: tuple[TensorFactors | None, ...]
    factors: tuple[Factor, ...]
    entries: tuple[str | Row, ...] | None = None
    custom: bool = False

    def __post_init__(self) -> None:
        names = [factor.name for factor in self.factors]
        for factor in self.factors:
            if names.count(factor.name) > 1:
                raise UsageError(f"factor {factor.name} has two sizes: give it one")
            if factor.size < 0:
                raise UsageError(f"factor {factor.name} has size {factor.size}: it must not be negative")
        used = set()
        for place, tensor in self._places():
            carried = [name for dim in tensor for name in dim]
            for name in carried:
                if name not in names:
                    raise UsageError(
                        f"factor {name} of {place} has no size: add it to the sizes, as {{{name}=8}}"
                    )
                if carried.count(name) > 1:
                    raise UsageError(f"factor {name} is twice in {place}: a tensor may carry a factor once")
            used.update(carried)
        for factor in self.factors:
            if factor.name not in used:
                raise UsageError(f"factor {factor.name} has a size but no tensor carries it: remove it")
            self._require_counts(factor)
        for entry in self.entries or ():
            if isinstance(entry, str) and entry not in names:
                raise UsageError(f"the rows have the unknown factor {entry}: use one of {', '.join(names)}")

    def _require_counts(self, factor: Factor) -> None:
        for what, given, tensors in (
            ("companion", factor.companions, self.inputs),
            ("reduction", factor.leaves, self.outputs),
        ):
            lacking = sum(tensor is not None and not _carries(tensor, factor.name) for tensor in tensors)
            if given is not None and len(given) != lacking:
                side = "inputs" if what == "companion" else "outputs"
                raise UsageError(
                    f"factor {factor.name} has {len(given)} {what}s but {lacking} {side} lack "
                    "it: give one for each"
                )

    def _places(self) -> list[tuple[str, TensorFactors]]:
        places = [(f"input {i}", tensor) for i, tensor in enumerate(self.inputs)]
        return places + [(f"output {i}", t) for i, t in enumerate(self.outputs) if t is not None]

    @classmethod
    def parse(cls, text: str) -> "FactorRule":
        """The rule with this text form, with sizes: `([i, k], [k, j])->([i, j]) {i=8, j=4, k=16} reduction={k}`."""
        from ._text import parse_factor_rule

        return parse_factor_rule(text)

    @classmethod
    def from_rows(
        cls, rows: Sequence[Row], shapes: "tuple[Sequence[Shape], Sequence[Shape | None]]"
    ) -> "FactorRule":
        """The factors of a call with these rows; `shapes` are those of its inputs and of its outputs."""
        from ._from_rows import factors_from_rows

        return factors_from_rows(rows, *shapes)

    def __str__(self) -> str:
        from ._text import factor_rule_text

        return factor_rule_text(self)

    @property
    def notation(self) -> str:
        """The factors without their sizes, as in einsum: `i k, k j -> i j`. A dim that cannot be sharded is `1`, an
        output that is not returned `-`."""
        from ._language import tensor_text

        def text(tensor: TensorFactors | None) -> str:
            if tensor is None:
                return "-"
            return tensor_text(
                tuple(() if all(self.by_name[name].blocked for name in dim) else dim for dim in tensor)
            )

        left, right = (", ".join(map(text, side)) for side in (self.inputs, self.outputs))
        return f"{left} -> {right}".strip()

    @cached_property
    def by_name(self) -> dict[str, Factor]:
        return {factor.name: factor for factor in self.factors}

    def rows(self) -> list[Row]:
        """The rows that the rule claims. Factors that move data or need replication have none."""
        entries = self.entries if self.entries is not None else tuple(f.name for f in self.factors)
        rows = (entry if isinstance(entry, Row) else self.row_of(entry) for entry in entries)
        return [row for row in rows if row is not None]

    def row_of(self, name: str) -> Row | None:
        """The row in which the factor is sharded; None if sharding it alone is not valid."""
        factor = self.by_name[name]
        if factor.kind in ("need_replication", "permutation"):
            return None
        companions = iter(factor.companions or ())
        inputs = [
            place or (Replicate() if factor.companions is None else next(companions))
            for place in (self._placement(tensor, name) for tensor in self.inputs)
        ]
        leaves = iter(factor.leaves or ())
        outputs: list[Placement | None] = []
        for tensor in self.outputs:
            place = None if tensor is None else self._placement(tensor, name)
            if tensor is not None and place is None:
                place = next(leaves, None)
                if place is None:
                    return None
            outputs.append(place)
        return Row(tuple(inputs), tuple(outputs), factor.shards, factor.local)

    def _placement(self, tensor: TensorFactors, name: str) -> Placement | None:
        """The placement of the tensor when the factor is sharded; a minor factor of a dim gives a strided shard."""
        for dim, names in enumerate(tensor):
            if name in names:
                above = self.size_of(names[: names.index(name)])
                return shard(dim, above if above > 1 else None)
        return None

    def verify(self, inputs: Sequence[Shape], outputs: Sequence[Shape | None]) -> "FactorRule":
        """The rule itself, if it is valid for tensors of these shapes; otherwise a `UsageError` with the reason.

        The size of a dim is the product of its factors, except where an op changes sizes along them:
        factors that move data or need replication, factors of size 1 on a larger dim, which mean
        "cannot be sharded", and the window that is reduced while it slides over such a dim.
        """
        for side, tensors, shapes in (("input", self.inputs, inputs), ("output", self.outputs, outputs)):
            if len(tensors) != len(shapes):
                raise self._misfit(
                    inputs, outputs, f"the rule has {len(tensors)} {side}s but there are {len(shapes)} shapes"
                )
        placed = [
            (place, tensor, shape)
            for (place, tensor), shape in zip(
                self._places(), [*inputs, *(s for s in outputs if s is not None)], strict=True
            )
        ]
        for place, tensor, shape in placed:
            if len(tensor) != len(shape):
                raise self._misfit(
                    inputs, outputs, f"{place} has {len(shape)} dims but the rule has {len(tensor)}"
                )
        dims = [
            (place, dim, names, size)
            for place, tensor, shape in placed
            for dim, (names, size) in enumerate(zip(tensor, shape, strict=True))
            if names
        ]
        may_differ = self._may_differ([(names, size) for _, _, names, size in dims])
        for place, dim, names, size in dims:
            product = self.size_of(names)
            if product == size or product == 1 or may_differ.intersection(names):
                continue
            if len(names) == 1:
                fact = f"factor {names[0]} is {product} but dim {dim} of {place} is {size}"
            else:
                sizes = " * ".join(str(self.by_name[name].size) for name in names)
                fact = f"factors {' '.join(names)} are {sizes} = {product} but dim {dim} of {place} is {size}"
            raise self._misfit(inputs, outputs, fact)
        return self

    def size_of(self, names: Sequence[str]) -> int:
        """The size of a dim composed of these factors; 1 for a dim without factors."""
        return math.prod(self.by_name[name].size for name in names)

    def _may_differ(self, dims: list[tuple[tuple[str, ...], int]]) -> set[str]:
        """Factors whose size may differ from that of a dim that carries them."""
        moving = {f.name for f in self.factors if f.kind in ("need_replication", "permutation")}
        windows = {name for names, _ in dims if moving.intersection(names) for name in names}
        if any(self.size_of(names) == 1 and size > 1 for names, size in dims):
            windows.update(f.name for f in self.factors if f.kind == "reduction")
        return moving | windows

    def _misfit(self, inputs: Sequence[Shape], outputs: Sequence[Shape | None], fact: str) -> UsageError:
        return UsageError(f"rule {str(self)!r} on {shapes_text(inputs)} -> {shapes_text(outputs)}: {fact}")


def default_leaves(
    outputs: Sequence[TensorFactors | None], name: str, reduction: str
) -> tuple[Placement, ...]:
    """The same reduction for every output that does not carry the factor."""
    lacking = sum(tensor is not None and not _carries(tensor, name) for tensor in outputs)
    return (partial(reduction),) * lacking


def default_shards(tensors: Sequence[TensorFactors | None], name: str) -> Shards:
    """A factor that shares a dim with others must be sharded evenly, or shards would not be aligned."""
    shared = any(name in dim and len(dim) > 1 for tensor in tensors if tensor is not None for dim in tensor)
    return "even" if shared else "any"


def is_reduced(factor: Factor) -> bool:
    return any(is_partial(placement) for placement in factor.leaves or ())


def shapes_text(shapes: Sequence[Shape | None]) -> str:
    return ", ".join("-" if shape is None else str(tuple(shape)) for shape in shapes) or "no tensors"


def _carries(tensor: TensorFactors, name: str) -> bool:
    return any(name in dim for dim in tensor)
