"""What a strategy must know about outputs, which it is not shown: said over the arguments, and checked in known calls.

A strategy is told the shapes of the inputs only. Where a clause speaks of an output's dims, the emitted code needs
their number; it is the first of a list of natural expressions that has the right value in every known call. Where a
clause holds only because some dims vanish from an output, the condition is found in the same way and made explicit.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from ..errors import UsageError
from ..rules import Bound, Clause, Rule, bind
from ._emit_calls import Arguments
from ._emit_signature import Signature


@dataclass(frozen=True)
class KnownCalls:
    """Calls of a rule's overload; without any, those on small meta tensors that run."""

    rule: Rule
    signature: Signature
    calls: Sequence[Arguments] = ()

    @cached_property
    def arguments(self) -> list[Arguments]:
        return list(self.calls) or list(_probes(self.rule, self.signature))

    @cached_property
    def bounds(self) -> list[Bound]:
        return [
            bind(self.rule.function, args, kwargs, self.rule.dims_of, self.rule.no_dims)
            for args, kwargs in self.arguments
        ]

    @cached_property
    def is_broadcast(self) -> bool:
        """True if the first output has the shape of all inputs broadcast together."""
        return bool(self.bounds) and all(_broadcasts(b) for b in self.bounds)

    def output_ndim(self, output: int) -> str:
        """The number of dims of an output, as an expression of clauses."""
        known = [(b, shape) for b in self.bounds if (shape := b.scope.outputs[output]) is not None]
        for text in _expressions(self.signature, [b for b, _ in known]):
            if known and all(b.scope.evaluate(text, None) == len(shape) for b, shape in known):
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
        for (args, kwargs), bound in zip(self.arguments, self.bounds, strict=True):
            for d, (i, term) in itertools.product(_values(clause, bound), sharded):
                if bound.groups[i]:
                    dim = bound.scope.evaluate(term.inside, d)
                    if self._runs_with_size_one(args, kwargs, i, dim):
                        return True
        return False

    def _runs_with_size_one(self, args: Sequence[Any], kwargs: dict[str, Any], index: int, dim: Any) -> bool:
        """True if the call also runs when a dim of tensor argument `index` is cut to size 1."""
        argument = self.signature.tensors[index]
        args, kwargs = list(args), dict(kwargs)
        held: Any = kwargs if argument.position is None else args
        key: Any = argument.name if argument.position is None else argument.position
        shape = list(held[key].shape)
        if type(dim) is not int or not -len(shape) <= dim < len(shape) or shape[dim] == 1:
            return False
        shape[dim] = 1
        held[key] = torch.empty(shape, dtype=held[key].dtype, device="meta")
        return _runs(self.rule, args, kwargs)

    def explicit(self, clause: Clause) -> Clause | None:
        """The clause with a condition for what it leaves to its outputs: that they have the dim, and not of size 1.
        None if no simple condition says it."""
        good: list[tuple[Bound, int | None]] = []
        bad: list[tuple[Bound, int | None]] = []
        for bound in self.bounds:
            for d in _values(clause, bound):
                if all(bound.scope.evaluate(c, d) for c in clause.when) and _inputs_fit(clause, bound, d):
                    row = clause.instance(bound.scope, bound.groups, bound.output_groups, d)
                    (bad if row is None else good).append((bound, d))
        if not bad:
            return clause
        for atom in _atoms(self.signature, len(clause.inputs)):
            if all(b.scope.evaluate(atom, d) for b, d in good) and not any(
                b.scope.evaluate(atom, d) for b, d in bad
            ):
                return replace(clause, when=(*clause.when, atom))
        return None


def _broadcasts(bound: Bound) -> bool:
    try:
        return tuple(torch.broadcast_shapes(*bound.scope.inputs)) == bound.scope.outputs[0]
    except RuntimeError:
        return False


def _expressions(signature: Signature, bounds: Sequence[Bound]) -> Iterator[str]:
    count = min((len(b.scope.inputs) for b in bounds), default=0)
    ndims = [f"ndim({i})" for i in range(count)]
    yield from ndims
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
    if clause.variable is None:
        return (None,)
    side, term = clause.variable
    groups = bound.groups if side == "input" else bound.output_groups
    shapes = bound.scope.inputs if side == "input" else bound.scope.outputs
    return range(len(shapes[groups[term][0]] or ())) if groups[term] else ()


def _inputs_fit(clause: Clause, bound: Bound, d: int | None) -> bool:
    return all(
        term.place(bound.scope, d, bound.scope.inputs[i]) is not None
        for term, group in zip(clause.inputs, bound.groups, strict=True)
        for i in group
    )


def _runs(rule: Rule, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    try:
        bind(rule.function, args, kwargs, rule.dims_of, rule.no_dims)
    except (RuntimeError, TypeError, IndexError, ValueError, NotImplementedError):
        return False  # shapes or dtypes that the operator does not take
    return True


def _probes(rule: Rule, signature: Signature) -> Iterator[Arguments]:
    """Calls on small meta tensors of every rank and the first fitting dtypes; in some, one tensor is longer."""
    plain: dict[str, Any] = {}
    for a in signature.arguments:
        if a.kind == "plain" and not a.has_default:
            plain[a.name] = [1] if a.is_list else 1.0 if "float" in a.type else 0 if a.is_dim else 1
    tensors = [a for a in signature.tensors if a.kind != "optional"]
    free = min(len(tensors), 3)
    for dtypes in itertools.product((torch.float32, torch.bool, torch.int64), repeat=free):
        found = []
        for ndims, longer in itertools.product(itertools.product(range(1, 5), repeat=free), range(-1, free)):
            given = dict(plain)
            for i, a in enumerate(tensors):
                place = min(i, free - 1)
                shape = (2,) * (ndims[place] - 1) + (3 if place == longer else 2,)
                tensor = torch.empty(shape, dtype=dtypes[place], device="meta")
                given[a.name] = [tensor, tensor] if a.kind == "list" else tensor
            args, kwargs = _split(signature, given)
            if _runs(rule, args, kwargs):
                found.append((args, kwargs))
        if found:
            return iter(found)
    return iter(())


def _split(signature: Signature, given: dict[str, Any]) -> Arguments:
    """Values by name as positional and keyword arguments."""
    args = [given.get(a.name, a.default) for a in signature.arguments if a.position is not None]
    return args, {
        a.name: given[a.name] for a in signature.arguments if a.position is None and a.name in given
    }
