"""From the rows of many calls to the smallest rule that yields exactly those rows.

A row that no clause yields yet is generalised: each of its dims becomes every expression that has that value in its
call. Of all such clauses, each narrowed by the conditions that keep it from yielding rows that were not found, the one
that explains most is taken, the simplest first. This repeats until every row is explained.
"""

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch.distributed.tensor.placement_types import Placement

from ..calls import Call, facts
from ..experiments import Division, Found, implies
from ..placements import Row, Shards, is_partial, is_replicate, is_shard
from ..rules import Bound, Clause, Reading, Rule, Scope, Term, bind
from ._conditions import atoms, narrow

# A rule with more clauses than this is a table, not a rule.
MOST_CLAUSES = 20
# A row is generalised in no more ways than this.
MOST_GENERALISATIONS = 200

# A row without what a clause says once for all of its rows: for which shards, and in which local form.
Key = tuple[tuple[Placement, ...], tuple[Placement | None, ...]]


@dataclass(frozen=True)
class BoundObservation:
    """A call and the rows that were found for it. The rows of an exempt call need no explanation."""

    call: Call
    bound: Bound
    rows: dict[Key, Row]
    only_even: frozenset[Key]
    never_empty: frozenset[Key] = frozenset()
    exempt: bool = False
    _holds: dict[Key, bool] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, call: Call, found: Found, reading: Reading, outputs: Sequence[Any]) -> "BoundObservation":
        bound = bind(replace(call, made=tuple(outputs)), reading)
        rows = {key_of(row): row for row in found.rows}
        even = frozenset(key for key, row in rows.items() if _fails(found, row, "uneven"))
        never_empty = frozenset(key for key, row in rows.items() if _fails(found, row, "empty"))
        return cls(call, bound, rows, even, never_empty)

    def holds(self, key: Key) -> bool:
        """True if the row was found, or follows from one that was: R is a case of P(avg), P(max) and P(min)."""
        if key not in self._holds:
            row = Row(*key)
            known = key in self.rows or any(
                implies(replace(r, shards="any", local=None), row) for r in self.rows.values()
            )
            self._holds[key] = known
        return self._holds[key]

    def is_even(self, key: Key) -> bool:
        """True if the row was seen to hold for even shards alone, be it that others could not be tried."""
        return self.rows[key].shards == "even"


def key_of(row: Row) -> Key:
    return row.inputs, row.outputs


def _fails(found: Found, row: Row, case: Division) -> bool:
    """True if uneven or empty shards refuted the row, and not merely could not be tried."""
    candidate = found.candidates.get(row.inputs)
    if candidate is None:
        return row.shards == "even" or (row.shards == "nonempty" and case == "empty")
    return any(
        claims is not None and placement in claims and case in claims[placement].failed
        for claims, placement in zip(candidate.claims, row.outputs, strict=False)
    )


# Conditions that a clause with these terms may not have, because no witness was found for them.
Barred = Mapping[tuple[tuple[Term, ...], tuple[Term, ...]], Collection[str]]


def synthesize_clauses(observed: Sequence[BoundObservation], barred: Barred) -> tuple[list[Clause], int]:
    """The fewest clauses found that yield none but observed rows, and how many of the observed rows they do not yield.
    A row for even shards only that nothing explains is a coincidence of the sizes (windows that happen to end where
    shards do) and does not count."""
    vocabulary = Vocabulary(observed, barred)
    open_rows = {(i, key) for i, o in enumerate(observed) if not o.exempt for key in o.rows}
    clauses: list[Clause] = []
    unexplained = 0
    while open_rows and len(clauses) < MOST_CLAUSES:
        seed = min(open_rows, key=lambda item: _seed_order(observed[item[0]], item))
        best = _best(observed, seed, open_rows, vocabulary, observed[seed[0]].is_even(seed[1]))
        best = best or _best(observed, seed, open_rows, vocabulary)
        if best is None:
            open_rows.discard(seed)
            unexplained += not observed[seed[0]].is_even(seed[1])
            continue
        clause, explained = best
        clauses.append(clause)
        open_rows -= explained
    return sorted(_needed(clauses, observed), key=_reading_order), unexplained + len(open_rows)


class Vocabulary:
    """Expressions for dims and conditions that this operator's arguments allow."""

    def __init__(self, observed: Sequence[BoundObservation], barred: Barred) -> None:
        self.barred = barred
        names: dict[str, set[type]] = {}
        dims = {name for o in observed for name in facts(o.call.op).dims}
        for o in observed:
            for name, value in o.bound.scope.arguments.items():
                if name in dims:
                    names.setdefault(name, set()).add(type(value))
        self.single = [n for n, kinds in names.items() if int in kinds]
        self.several = [n for n, kinds in names.items() if tuple in kinds]
        lists = {
            name
            for o in observed
            for name, value in o.bound.scope.arguments.items()
            if isinstance(value, tuple) and name not in dims
        }
        self.expressions = ["d", *self.single, "0", "1", "-1", "2", "-2", "3", "-3", "d-1", "d+1"]
        self.expressions += [f"{name}[d]" for name in self.several]
        self.expressions += [f"d-before(d, {name})" for name in self.several]
        self.expressions += [f"d-before(d, {a}, {b})" for a, b in itertools.combinations(self.single, 2)]
        if any(_loses_dims(o.bound.scope) for o in observed):
            self.expressions += [f"d-ones(0, d, {name})" for name in (*self.single, *self.several)]
            self.expressions += ["d-ones(0, d)"]
        self.expressions += ["d+ndim(0)-ndim(1)", "d+ndim(1)-ndim(0)", "d+ndim(1)-1", "d+ndim(1)"]
        self.cost = {text: place for place, text in enumerate(self.expressions)}
        self._atoms = atoms([o.bound.scope for o in observed], self.single, self.several, sorted(lists))

    def atoms(self, clause: Clause) -> list[str]:
        """The conditions that a clause may have."""
        barred = self.barred.get((clause.inputs, clause.outputs), ())
        return [atom for atom in self._atoms if atom not in barred]


def _loses_dims(scope: Scope) -> bool:
    fewest = len(scope.inputs[0]) if scope.inputs else 0
    return any(shape is not None and len(shape) < fewest for shape in scope.outputs)


def _seed_order(observed: BoundObservation, item: tuple[int, Key]) -> tuple[Any, ...]:
    """Rows for all shards before those for even ones, which may not swallow them; rows with shards first, and calls
    with many dims, where a coincidence of dims is rare."""
    _, (inputs, outputs) = item
    shards = sum(is_shard(p) for p in inputs)
    dims = sum(len(shape) for shape in observed.bound.scope.inputs)
    return (observed.is_even(item[1]), -shards, -dims, str(Row(inputs, outputs)), item[0])


def _best(
    observed: Sequence[BoundObservation],
    seed: tuple[int, Key],
    open_rows: set[tuple[int, Key]],
    vocabulary: Vocabulary,
    apart: bool = False,
) -> tuple[Clause, set[tuple[int, Key]]] | None:
    """The clause that explains the seed and most other open rows; if `apart`, none that hold for uneven shards too."""
    best: tuple[tuple[float, ...], Clause, set[tuple[int, Key]]] | None = None
    only_even = observed[seed[0]].is_even(seed[1])
    for clause, cost in _generalisations(observed[seed[0]], seed[1], vocabulary):
        instances = list(_instances(clause, observed))
        right = [_is_right(observed[i], key, only_even, apart) for i, _, key in instances]
        condition = narrow(
            vocabulary.atoms(clause),
            [(observed[i].bound.scope, d) for i, d, _ in instances],
            right,
            [not observed[i].exempt for i, _, _ in instances],
            [(i, key) == seed for i, _, key in instances],
        )
        if condition is None:
            continue
        kept = [inst for inst, keep in zip(instances, condition.keeps, strict=True) if keep]
        explained = {(i, key) for i, _, key in kept} & open_rows
        simplicity = 1 + 0.15 * len(condition.atoms) + 0.03 * (cost + condition.cost)
        score = (-len(explained) / simplicity, len(condition.atoms), cost + condition.cost)
        if best is None or score < best[0]:
            shards = _least([(observed[i], key) for i, _, key in kept], only_even)
            found_rows = (observed[i].rows.get(key) for i, _, key in kept)
            local = next((row.local for row in found_rows if row is not None and row.local), None)
            found = replace(clause, when=condition.atoms, shards=shards, local=local)
            best = (score, replace(found, reason=reason_for(found, observed[seed[0]])), explained)
    return None if best is None else best[1:]


def _is_right(observed: BoundObservation, key: Key, only_even: bool, apart: bool) -> bool:
    """A clause for even shards may yield rows that hold for more, unless it is to stand `apart` from those, but not the
    other way round."""
    if not observed.holds(key):
        return False
    if apart and not observed.exempt:
        return key in observed.rows and observed.rows[key].shards == "even"
    return only_even or key not in observed.only_even


def _least(rows: Sequence[tuple[BoundObservation, Key]], only_even: bool) -> Shards:
    """The shard sizes for which all of these rows hold: those that refuted none of them and agreed with some."""
    if only_even:
        return "even"
    seen = {observed.rows[key].shards for observed, key in rows if key in observed.rows}
    if not seen - {"even"}:
        return "even"
    return (
        "any"
        if "any" in seen and not any(key in observed.never_empty for observed, key in rows)
        else "nonempty"
    )


def _instances(clause: Clause, observed: Sequence[BoundObservation]) -> Iterator[tuple[int, int | None, Key]]:
    for i, o in enumerate(observed):
        b = o.bound
        for d in clause.values(b.scope, b.groups, b.output_groups):
            row = clause.instance(b.scope, b.groups, b.output_groups, d)
            if row is not None and not row.is_replicated:
                yield i, d, key_of(row)


def _generalisations(
    observed: BoundObservation, key: Key, vocabulary: Vocabulary
) -> Iterator[tuple[Clause, float]]:
    """Every clause that yields the row in its own call."""
    inputs, outputs = key
    scope, groups, output_groups = observed.bound.scope, observed.bound.groups, observed.bound.output_groups
    sharded = [p.dim for p in (*inputs, *outputs) if p is not None and is_shard(p)]
    first = outputs[0] if outputs else None
    aligned = scope.broadcast and first is not None and is_shard(first)
    for d in sorted(set(sharded)) or [None]:
        placed = [[(inputs[i], scope.inputs[i]) for i in group] for group in groups]
        placed_outputs = [[(outputs[i], scope.outputs[i]) for i in group] for group in output_groups]
        options = [_terms(tensors, scope, d, vocabulary, aligned) for tensors in placed]
        options += [_terms(tensors, scope, d, vocabulary) for tensors in placed_outputs]
        for terms, cost in _cheapest(options):
            clause = Clause(terms[: len(groups)], terms[len(groups) :])
            given, made = (_uses_d(side) for side in (clause.inputs, clause.outputs))
            if (given or made) and (clause.variable(scope) is None or d is None):
                continue
            if made and not given and any(t.kind == "S" for t in clause.inputs):
                continue  # one dim of an input does not become every dim of an output
            yield clause, cost


def _cheapest(options: Sequence[list[tuple[Term, float]]]) -> Iterator[tuple[tuple[Term, ...], float]]:
    """Choices of one term each, the cheapest few hundred."""
    several = sum(len(o) > 1 for o in options)
    most = max(2, int(MOST_GENERALISATIONS ** (1 / several))) if several else 1
    kept = [sorted(o, key=lambda item: item[1])[:most] for o in options]
    for choice in itertools.product(*kept):
        yield tuple(term for term, _ in choice), sum({term.inside: cost for term, cost in choice}.values())


def _uses_d(terms: Sequence[Term]) -> bool:
    return any("d" in _names(t.inside) for t in terms if t.kind == "S")


def _names(expression: str) -> list[str]:
    return "".join(c if c.isalnum() or c == "_" else " " for c in expression).split()


def _terms(
    placed: Sequence[tuple[Placement | None, Any]],
    scope: Scope,
    d: int | None,
    vocabulary: Vocabulary,
    aligned: bool = False,
) -> list[tuple[Term, float]]:
    """The terms that place tensors of these shapes so, each with a cost; `aligned` as in `Term.place`."""
    if not placed:
        return [(Term("R"), 0.0)]  # an absent tensor: any term fits, and calls that have it decide
    each = len(placed) > 1
    first = placed[0][0]
    alike = all(p == first for p, _ in placed)
    if alike and first is None:
        return [(Term("-"), 0.0)]
    if alike and first is not None and is_partial(first):
        return [(Term("P", first.reduce_op, each), 0.0)]
    terms = [(Term("R", each=each), 0.0)] if alike and is_replicate(first) else []
    if terms and not aligned:
        return terms
    for text in vocabulary.expressions:
        term = Term("S", text, each)
        if all(p is not None and term.place(scope, d, shape, aligned, least=1) == p for p, shape in placed):
            terms.append((term, vocabulary.cost[text]))
    return terms


def _needed(clauses: Sequence[Clause], observed: Sequence[BoundObservation]) -> list[Clause]:
    """Without clauses whose rows others yield too."""
    yields = [
        {
            (i, key_of(row))
            for i, o in enumerate(observed)
            for row in clause.rows(o.bound.scope, o.bound.groups, o.bound.output_groups)
        }
        for clause in clauses
    ]
    kept = list(range(len(clauses)))
    for i in range(len(clauses)):
        others = set().union(*(yields[j] for j in kept if j != i)) if len(kept) > 1 else set()
        if i in kept and yields[i] <= others:
            kept.remove(i)
    return [clauses[i] for i in kept]


def _reading_order(clause: Clause) -> tuple[Any, ...]:
    kinds = [t.kind for t in clause.inputs]
    return ("P" in kinds, "P" in [t.kind for t in clause.outputs], str(clause))


def reason_for(clause: Clause, observed: BoundObservation) -> str:
    """Why the clause holds, derived from its terms."""
    names = _argument_names(observed)
    partials = [i for i, t in enumerate(clause.inputs) if t.kind == "P"]
    shards = [i for i, t in enumerate(clause.inputs) if t.kind == "S"]
    outputs = {t.kind for t in clause.outputs}
    reductions = sorted({t.inside for t in clause.outputs if t.kind == "P"})
    if partials and not shards:
        which = " and ".join(names[i] for i in partials)
        kinds = {clause.inputs[i].inside for i in partials}
        if outputs <= {"R", "-"}:
            return f"the result does not depend on the values of {which}"
        if kinds <= {"sum", "avg"}:
            together = " together" if len(partials) > 1 else ""
            return f"{'linear' if 'sum' in kinds else 'affine'} in {which}{together}"
        falling = (kinds & {"max"} and reductions == ["min"]) or (kinds & {"min"} and reductions == ["max"])
        return f"monotone in {which}, {'falling' if falling else 'rising'}"
    if shards and "P" in outputs:
        how = {"sum": "add up", "avg": "average", "max": "take the largest", "min": "take the smallest"}
        text = ", ".join(how.get(r, f"reduce by {r}") for r in reductions)
        also = f"; {' and '.join(names[i] for i in partials)} must count once" if partials else ""
        return f"contracted: the results of the pieces {text}{also}"
    if shards:
        return "batch dim: every index along it is computed by itself"
    return "every rank makes its own part of the output"


def _argument_names(observed: BoundObservation) -> list[str]:
    schema = observed.call.schema
    if schema is None:
        return [f"argument {i + 1}" for i in range(len(observed.bound.groups))]
    names = [a.name for a in schema.arguments if "Tensor" in str(a.type) and not a.is_out]
    return [f"argument {i + 1} ({name})" for i, name in enumerate(names)]


def agrees(rule: Rule, observed: BoundObservation) -> bool:
    """True if the rule yields the rows found for a call and no others; those for even shards only may be missing."""
    missing = observed.rows.keys() - yielded(rule, observed)
    return is_sound(rule, observed) and all(observed.is_even(key) for key in missing)


def is_sound(rule: Rule, observed: BoundObservation) -> bool:
    """True if the rule yields no row that was not found for a call."""
    return all(observed.holds(key) for key in yielded(rule, observed))


def yielded(rule: Rule, observed: BoundObservation) -> set[Key]:
    """The rows that a rule yields for a call."""
    b = observed.bound
    return {key_of(row) for c in rule.clauses for row in c.rows(b.scope, b.groups, b.output_groups)}
