"""What a strategy must know about outputs, which it does not see: expressed in its arguments, and checked on known
calls.

A strategy gets only the shapes of the inputs. Where a clause refers to an output's dims, the emitted code needs
their number; it is the first of a list of natural expressions that has the right value in every known call. Where a
clause holds only because some dims vanish from an output, the condition is found in the same way and made explicit.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from ..calls import Call, leaves, reached, reaches_dispatch
from ..errors import UsageError
from ..placements import is_shard
from ..rules import Bound, Clause, Rule, bind
from ._signature import Signature


@dataclass(frozen=True)
class KnownCalls:
    """Calls of a rule's overload: those given, and those on small meta tensors that run."""

    rule: Rule
    signature: Signature
    given: Sequence[Call] = ()

    @cached_property
    def calls(self) -> list[Call]:
        return [*self.given, *_probes(self.rule, self.signature, self.given)]

    @cached_property
    def bounds(self) -> list[Bound]:
        return [bind(call, self.rule.reading) for call in self.calls]

    @cached_property
    def is_broadcast(self) -> bool:
        """True if the first output has the shape of all inputs broadcast together."""
        return bool(self.bounds) and all(_broadcasts(b) for b in self.bounds)

    def output_ndim(self, output: int) -> str:
        """The number of dims of an output, as an expression of clauses."""
        # The ranks that an operator takes on meta tensors may be more than it means to take: given calls decide.
        for bounds in (self.bounds, self.bounds[: len(self.given)]):
            known = [(b, shape) for b in bounds if (shape := b.scope.outputs[output]) is not None]
            for text in _expressions(self.signature, [b for b, _ in known]):
                if known and all(_ndim(text, b) == len(shape) for b, shape in known):
                    return text
        raise UsageError(
            f"the number of dims of output {output} of {self.signature.op} does not follow from its arguments in a "
            "known way: give emit_strategy calls of the operator"
        )

    def may_differ(self, clause: Clause) -> bool:
        """True if a sharded dim of one input may have size 1 where another's has not: the operator broadcasts."""
        sharded = [(i, t) for i, t in enumerate(clause.inputs) if t.kind == "S" and not t.each]
        if len(sharded) < 2:
            return False
        for call, bound in zip(self.calls, self.bounds, strict=True):
            for d, (i, term) in itertools.product(_values(clause, bound), sharded):
                if bound.groups[i]:
                    dim = bound.scope.evaluate(term.inside, d)
                    if self._runs_with_size_one(call, i, dim):
                        return True
        return False

    def shift(self, clause: Clause, index: int) -> int | None:
        """How far the dims of an input lie behind the output's that they are aligned with, if this is always the
        same and the input is never broadcast along the dim that the clause shards; else None. Dims counted from
        the end are the same in both."""
        inside = clause.inputs[index].inside
        shifts = set()
        for bound in self.bounds:
            output = bound.scope.outputs[0]
            if output is None or not bound.groups[index]:
                return None
            shape = bound.scope.inputs[bound.groups[index][0]]
            shifts.add(0 if inside.startswith("-") else len(shape) - len(output))
            for d in _values(clause, bound):
                dim = bound.scope.evaluate(inside, d)
                if type(dim) is int and dim < 0:
                    dim += len(output)
                if (
                    type(dim) is int
                    and 0 <= dim < len(output)
                    and all(bound.scope.evaluate(c, d) for c in clause.when)
                ):
                    own = dim + len(shape) - len(output)
                    if own < 0 or shape[own] != output[dim]:
                        return None
        return shifts.pop() if len(shifts) == 1 else None

    def _runs_with_size_one(self, call: Call, index: int, dim: Any) -> bool:
        """True if the call also runs when a dim of tensor argument `index` is cut to size 1."""
        name = self.signature.tensors[index].name
        shape = list(call.shape(name))
        if type(dim) is not int or not -len(shape) <= dim < len(shape) or shape[dim] == 1:
            return False
        shape[dim] = 1
        smaller = torch.empty(shape, dtype=call[name].dtype, device="meta")
        return _runs(self.rule, call.with_arguments(**{name: smaller}))

    def explicit(self, clause: Clause) -> Clause | None:
        """The clause with a condition for what it leaves to its outputs: that they have the dim, and not of size 1.
        None if no simple condition says it."""
        good: list[tuple[Bound, int | None]] = []
        bad: list[tuple[Bound, int | None]] = []
        for bound in self.bounds:
            # A dim of size 1 to which operands broadcast is left out by the emitted code itself.
            values = clause.values(bound.scope, bound.groups, bound.output_groups)
            of_output = clause.variable(bound.scope) == ("output", 0)
            for d in values if clause.aligned(bound.scope) else _values(clause, bound):
                if all(bound.scope.evaluate(c, d) for c in clause.when) and _inputs_fit(clause, bound, d):
                    row = clause.instance(bound.scope, bound.groups, bound.output_groups, d)
                    (good if row is not None and (d in values or not of_output) else bad).append((bound, d))
        if not bad:
            return clause
        for atom in _atoms(self.signature, len(clause.inputs)):
            if all(b.scope.evaluate(atom, d) for b, d in good) and not any(
                b.scope.evaluate(atom, d) for b, d in bad
            ):
                return replace(clause, when=(*clause.when, atom))
        return None


def why_unserved(rule: Rule, calls: Sequence[Call]) -> str | None:
    """Why DTensor would never use a strategy for this overload, or None if it would."""
    if not reaches_dispatch(rule.function):
        return f"torch decomposes it into {_parts(calls)} before DTensor sees it: their strategies decide"
    try:
        for call in calls[:1]:
            bind(call, rule.reading)
    except Exception:  # the meta implementation is missing, or has a bug
        return "it does not run on meta tensors, which DTensor needs for the shapes of its outputs"
    return None


def _parts(calls: Sequence[Call]) -> str:
    """The overloads that calls of a composite operator reach."""
    return " and ".join(dict.fromkeys(part.name for call in calls for part in reached(call))) or "others"


def _broadcasts(bound: Bound) -> bool:
    try:
        return tuple(torch.broadcast_shapes(*bound.scope.inputs)) == bound.scope.outputs[0]
    except RuntimeError:
        return False


def _ndim(text: str, bound: Bound) -> Any:
    """The value of an expression of `_expressions`: clauses know no maximum."""
    if text.startswith("max("):
        return max(len(bound.scope.inputs[0]), len(bound.scope.inputs[1]))
    return bound.scope.evaluate(text, None)


def _expressions(signature: Signature, bounds: Sequence[Bound]) -> Iterator[str]:
    count = min((len(b.scope.inputs) for b in bounds), default=0)
    ndims = [f"ndim({i})" for i in range(count)]
    yield from ndims
    if count > 1:
        yield "max(ndim(0), ndim(1))"
    yield from (str(n) for n in range(5))
    yield from (f"{ndim}{step}" for ndim in ndims for step in ("-1", "+1", "-2", "+2"))
    for a in signature.arguments:
        if a.kind == "plain" and (a.is_list or a.is_dim):
            yield from (f"ndim(0)-len({a.name})", f"ndim(0)+len({a.name})", f"len({a.name})")
    yield from (f"{a}+{b}{step}" for a, b in itertools.combinations(ndims, 2) for step in ("", "-1", "-2"))


def _atoms(signature: Signature, inputs: int) -> Iterator[str]:
    for a in signature.arguments:
        if a.is_dim:
            yield from (f"d not in {a.name}", f"d != {a.name}", f"d < {a.name}")
    for i in range(inputs):
        yield from (f"d < ndim({i})-{k}" for k in (1, 2, 3))
        yield f"d < ndim({i})"
    for i, j in itertools.combinations(range(inputs), 2):
        yield from (f"size({i}, d) == size({j}, d)",)
    for a in signature.arguments:
        if a.kind == "plain" and a.is_list:
            yield f"d < ndim(0)-len({a.name})"


def _values(clause: Clause, bound: Bound) -> Sequence[int | None]:
    """Every dim that the emitted loop runs over, those of size 1 too."""
    variable = clause.variable(bound.scope)
    if variable is None:
        return (None,)
    side, term = variable
    groups = bound.groups if side == "input" else bound.output_groups
    shapes = bound.scope.inputs if side == "input" else bound.scope.outputs
    return range(len(shapes[groups[term][0]] or ())) if groups[term] else ()


def _inputs_fit(clause: Clause, bound: Bound, d: int | None) -> bool:
    """True if the inputs can be placed so, and one is sharded where the clause shards any: a dim of size 1 is not."""
    aligned = clause.aligned(bound.scope)
    placed = [
        term.place(bound.scope, d, bound.scope.inputs[i], aligned)
        for term, group in zip(clause.inputs, bound.groups, strict=True)
        for i in group
    ]
    shards = any(term.kind == "S" for term in clause.inputs)
    return None not in placed and (not shards or any(p is not None and is_shard(p) for p in placed))


def _runs(rule: Rule, call: Call) -> bool:
    try:
        bind(call, rule.reading)
    except (RuntimeError, TypeError, IndexError, ValueError, AttributeError, AssertionError):
        # Shapes or dtypes that the operator or its meta implementation does not accept; those of torch 2.12 assert.
        return False
    return True


# The same size, another one, and size 1: in the last dim and in the first.
_OTHER_SIZES = ((0, 2), (-1, 3), (-1, 1), (0, 3), (0, 1))
_DTYPES = (torch.float32, torch.bool, torch.int64)


def _probes(rule: Rule, signature: Signature, calls: Sequence[Call]) -> list[Call]:
    """Calls on small meta tensors of every rank; in some, one tensor has another size in its first or last dim.
    Dtypes and other arguments are those of the first call, or the first that the operator takes."""
    given: dict[str, Any] = {}
    for a in signature.arguments:
        if a.kind == "plain" and not a.has_default:
            given[a.name] = [1] if a.is_list else 1.0 if "float" in a.type else 0 if a.is_dim else 1
    tensors = [a for a in signature.tensors if a.kind != "optional"]
    if calls:
        given |= {a.name: calls[0][a.name] for a in signature.arguments if a.kind == "plain"}
        # The first of a list, which may have gaps.
        firsts = [next(v for v in leaves(calls[0][a.name]) if v is not None) for a in tensors]
        choices = [tuple(tensor.dtype for tensor in firsts)]
    else:
        choices = list(itertools.product(_DTYPES, repeat=min(len(tensors), 3)))

    def probe(ndims: Sequence[int], dtypes: Sequence[torch.dtype], changed: int, dim: int, size: int) -> Call:
        values = dict(given)
        for i, a in enumerate(tensors):
            shape = [2] * ndims[min(i, len(ndims) - 1)]
            if i == changed:
                shape[dim] = size
            tensor = torch.empty(shape, dtype=dtypes[min(i, len(dtypes) - 1)], device="meta")
            values[a.name] = [tensor, tensor] if a.kind == "list" else tensor
        return Call.named(rule.function, values)

    free = min(len(tensors), 3)
    for dtypes in choices:
        if not any(_runs(rule, probe([n], dtypes, 0, 0, 2)) for n in range(1, 5)):
            continue
        ranks = itertools.product(range(1, 5), repeat=free)
        probes = [
            probe(ndims, dtypes, changed, dim, size)
            for ndims, changed, (dim, size) in itertools.product(ranks, range(free), _OTHER_SIZES)
        ]
        return [p for p in probes if _runs(rule, p)]
    return []
