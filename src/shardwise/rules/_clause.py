"""A clause: a family of rows with a condition, `S(d), S(d) -> S(d) when d != dim`.

Terms are placements whose dim is an expression; `S(-1)` counts from the end. `[S(d)]` stands for every tensor of a
list. The variable d runs over the dims of the first tensor written `S(d)`. For an operator whose operands broadcast, a
dim of a sharded output is meant instead: an operand is sharded along the dim aligned with it from the right, and
replicated where it has no such dim or only size 1. `S(-2)` is then likewise a shard or, where there is nothing to cut,
R; `S(0)` stays the operand's own first dim. `P(sum|avg) -> P(sum|avg)` is one row for each of the reductions.
`S(d, sf=*)` is a shard of any kind, plain or strided, the same for all tensors of the row.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from torch.distributed.tensor.placement_types import Placement, Replicate

from ..errors import UsageError
from ..placements import PARTIALS, SHARDS, AnyShard, Row, Shards, is_shard, partial, shard, split_terms
from ._expression import Scope, compiled, names_in

# For each term, the tensors it speaks of.
Groups = Sequence[Sequence[int]]

_TERM = re.compile(r"(?P<open>\[)?\s*(?:(?P<kind>[SP])\((?P<inside>.*)\)|(?P<plain>R|-))\s*(?P<close>\])?")

_OPEN = re.compile(r"(.*?)\s*,\s*sf\s*=\s*\*")


@dataclass(frozen=True)
class Term:
    """One placement of a clause: `kind` is R, S, P or - (a missing output); `inside` the dim or the reduction; `open` a
    shard of any kind."""

    kind: str
    inside: str = ""
    each: bool = False
    open: bool = False

    @classmethod
    def parse(cls, text: str) -> "Term":
        match = _TERM.fullmatch(text.strip())
        if match is None or bool(match["open"]) != bool(match["close"]):
            raise UsageError(f"{text.strip()!r} is not a term: use R, S(d), S(d, sf=*), P(sum) or [S(d)]")
        kind, inside = match["kind"] or match["plain"], (match["inside"] or "").strip()
        any_kind = _OPEN.fullmatch(inside) if kind == "S" else None
        inside = any_kind[1] if any_kind else inside
        for reduction in inside.split("|") if kind == "P" else ():
            if reduction not in PARTIALS:
                raise UsageError(f"unknown reduction {reduction!r}: use one of {', '.join(PARTIALS)}")
        if kind == "S":
            compiled(inside)
        return cls(kind, inside, bool(match["open"]), bool(any_kind))

    def __str__(self) -> str:
        inside = f"{self.inside}, sf=*" if self.open else self.inside
        text = f"{self.kind}({inside})" if inside else self.kind
        return f"[{text}]" if self.each else text

    def place(
        self, scope: Scope, d: int | None, shape: Sequence[int], aligned: bool = False, least: int = 2
    ) -> Placement | None:
        """The placement of a tensor of this shape; None where the term has none in this call. `aligned` says that
        the dim is one of the output's, to which this tensor broadcasts; `least` is the least size worth a shard."""
        if self.kind == "R":
            return Replicate()
        if self.kind == "P":
            return partial(self.inside)
        dim = scope.evaluate(self.inside, d)
        if type(dim) is not int:
            return None
        if aligned and not self.inside.isdigit():
            placed = _broadcast(dim, shape, scope.outputs[0])
        else:
            dim = dim + len(shape) if dim < 0 else dim
            placed = shard(dim) if 0 <= dim < len(shape) and shape[dim] >= least else None
        return AnyShard(placed.dim) if self.open and placed is not None and is_shard(placed) else placed


def _broadcast(dim: int, shape: Sequence[int], output: Sequence[int] | None) -> Placement | None:
    if output is None or not -len(output) <= dim < len(output):
        return None
    aligned = dim + len(shape) - (len(output) if dim >= 0 else 0)
    return Replicate() if aligned < 0 or shape[aligned] == 1 else shard(aligned)


@dataclass(frozen=True)
class Clause:
    inputs: tuple[Term, ...]
    outputs: tuple[Term, ...]
    when: tuple[str, ...] = ()
    shards: Shards = "any"
    local: str | None = None
    reason: str = ""

    @classmethod
    def parse(cls, text: str, reason: str = "") -> "Clause":
        """Read `S(d) -> P(avg) when d in dim for even shards with local sizes`; the last three parts are optional."""
        rest, _, local = text.partition(" with local ")
        rest, found, shards = rest.partition(" for ")
        rest, _, condition = rest.partition(" when ")
        left, arrow, right = rest.partition("->")
        if not arrow:
            raise UsageError(f"clause {text!r} has no '->': write it as 'S(d), R -> S(d) when d != dim'")
        kind = shards.strip().removesuffix("shards").strip() if found else "any"
        if kind not in SHARDS:
            raise UsageError(
                f"clause {text!r} has the condition 'for {shards.strip()}': write 'for even shards' or "
                "'for nonempty shards'"
            )
        try:
            inputs = tuple(Term.parse(part) for part in split_terms(left))
            outputs = tuple(Term.parse(part) for part in split_terms(right))
            if (
                len(several := {t.inside for t in (*inputs, *outputs) if t.kind == "P" and "|" in t.inside})
                > 1
            ):
                raise UsageError(
                    f"its partials are of one reduction at a time, not of {' and '.join(several)}"
                )
            conditions = tuple(part.strip() for part in condition.split(" and ")) if condition else ()
            for part in conditions:
                compiled(part)
        except UsageError as error:
            raise UsageError(f"clause {text!r}: {error}") from None
        return cls(inputs, outputs, conditions, kind, local.strip() or None, reason)

    def __str__(self) -> str:
        text = f"{', '.join(map(str, self.inputs))} -> {', '.join(map(str, self.outputs))}".strip()
        if self.when:
            text += f" when {' and '.join(self.when)}"
        if self.shards != "any":
            text += f" for {self.shards} shards"
        return text + (f" with local {self.local}" if self.local else "")

    def __repr__(self) -> str:
        return f"Clause.parse({str(self)!r})"

    @property
    def reductions(self) -> tuple[str, ...]:
        """The reductions of which it is about one at a time, where it is about several."""
        several = [t.inside for t in (*self.inputs, *self.outputs) if t.kind == "P" and "|" in t.inside]
        return tuple(several[0].split("|")) if several else ()

    def split(self) -> Iterator["Clause"]:
        """One clause for each of its reductions."""
        reductions = self.reductions
        for reduction in reductions:
            yield replace(
                self,
                inputs=tuple(_with_reduction(t, reduction) if "|" in t.inside else t for t in self.inputs),
                outputs=tuple(_with_reduction(t, reduction) if "|" in t.inside else t for t in self.outputs),
            )
        if not reductions:
            yield self

    @property
    def names(self) -> frozenset[str]:
        """All that its conditions and dims speak of."""
        dims = (term.inside for term in (*self.inputs, *self.outputs) if term.kind == "S")
        return frozenset().union(*map(names_in, (*self.when, *dims)))

    def aligned(self, scope: Scope) -> bool:
        """True if dims are those of the sharded output and operands broadcast to it."""
        return scope.broadcast and bool(self.outputs) and self.outputs[0].kind == "S"

    def variable(self, scope: Scope) -> tuple[str, int] | None:
        """The tensor over whose dims d runs: ("input", 0) or ("output", 0); None if no term is `S(d)`."""
        sides = (
            [("output", self.outputs)]
            if self.aligned(scope)
            else [("input", self.inputs), ("output", self.outputs)]
        )
        for side, terms in sides:
            for i, term in enumerate(terms):
                if term.kind == "S" and term.inside == "d":
                    return (side, i)
        return None

    def rows(self, scope: Scope, groups: Groups, output_groups: Groups) -> Iterator[Row]:
        """The rows this clause yields for a call; `groups` are the tensors each term speaks of."""
        for single in self.split():
            for d in single.values(scope, groups, output_groups):
                row = single.instance(scope, groups, output_groups, d)
                if row is not None and not row.is_replicated and all(scope.evaluate(c, d) for c in self.when):
                    yield row

    def values(self, scope: Scope, groups: Groups, output_groups: Groups) -> Sequence[int | None]:
        variable = self.variable(scope)
        if variable is None:
            return (None,)
        side, term = variable
        chosen = groups if side == "input" else output_groups
        shapes = scope.inputs if side == "input" else scope.outputs
        shape = shapes[chosen[term][0]] if term < len(chosen) and chosen[term] else None
        return [d for d, size in enumerate(shape or ()) if size > 1]

    def instance(
        self,
        scope: Scope,
        groups: Sequence[Sequence[int]],
        output_groups: Sequence[Sequence[int]],
        d: int | None,
    ) -> Row | None:
        """The row for one value of d, condition aside; None where a term has no placement."""
        if len(groups) != len(self.inputs) or len(output_groups) != len(self.outputs):
            return None
        if not self._lists_match(scope, groups):
            return None
        aligned = self.aligned(scope)
        inputs: list[Placement] = []
        for term, group in zip(self.inputs, groups, strict=True):
            for i in group:
                placement = term.place(scope, d, scope.inputs[i], aligned)
                if placement is None:
                    return None
                inputs.append(placement)
        outputs: list[Placement | None] = []
        for term, group in zip(self.outputs, output_groups, strict=True):
            for i in group:
                shape = scope.outputs[i]
                # Operands that broadcast to a dim of size 1 leave nothing of it to shard.
                placement = None if shape is None else term.place(scope, d, shape, least=1 + aligned)
                if placement is None and shape is not None:
                    return None
                outputs.append(placement)
        return Row(tuple(inputs), tuple(outputs), self.shards, self.local)

    def _lists_match(self, scope: Scope, groups: Groups) -> bool:
        """False where lists of tensors are sharded together whose shapes differ: a list says nothing of how its
        elements broadcast."""
        lists = [
            [scope.inputs[i] for i in group]
            for term, group in zip(self.inputs, groups, strict=True)
            if term.each and term.kind == "S"
        ]
        return all(other == lists[0] for other in lists[1:])


def merged(clauses: Sequence[Clause]) -> tuple[Clause, ...]:
    """The clauses with those that differ in their reduction alone made one, in order of their first.

    >>> print(*merged([Clause.parse(f"P({r}), R -> P({r})") for r in ("avg", "sum")]))
    P(sum|avg), R -> P(sum|avg)
    """
    groups: dict[object, list[Clause]] = {}
    for single in (single for clause in clauses for single in clause.split()):
        used = {t.inside for t in (*single.inputs, *single.outputs) if t.kind == "P"}
        terms = [tuple(_with_reduction(t, "") for t in side) for side in (single.inputs, single.outputs)]
        alike = (*terms, single.when, single.shards, single.local) if len(used) == 1 else single
        groups.setdefault(alike, []).append(single)
    return tuple(map(_merged, groups.values()))


def _merged(singles: Sequence[Clause]) -> Clause:
    if len(singles) == 1:
        return singles[0]
    of = {next(t.inside for t in (*c.inputs, *c.outputs) if t.kind == "P"): c for c in singles}
    reductions = [reduction for reduction in PARTIALS if reduction in of]
    # What is linear is affine, too.
    reasons = dict.fromkeys(of[r].reason for r in reductions if r != "avg" or "sum" not in of)
    terms = [
        tuple(_with_reduction(t, "|".join(reductions)) for t in side)
        for side in (singles[0].inputs, singles[0].outputs)
    ]
    return replace(singles[0], inputs=terms[0], outputs=terms[1], reason="; ".join(filter(None, reasons)))


def _with_reduction(term: Term, reduction: str) -> Term:
    return replace(term, inside=reduction) if term.kind == "P" else term
