"""Mathematical properties of an operator that explain rows of its rule: each is read off the clauses that it implies.

| property | what it explains |
| --- | --- |
| linear, affine, monotone | partials that pass through |
| bilinear | `P(sum), R -> P(sum)` and `R, P(sum) -> P(sum)`, but not both partial |
| homogeneous | `P(avg)` beside `P(sum)`: a factor of all pieces is one of the result |
| contracted | a shard that leaves a partial |
| idempotent | a reduction that may meet an element twice: replicated results are partial ones too |
| batch-wise | a shard that passes through, as every index along it is computed by itself |
| permutation-equivariant | the same for strided shards: which index stands where does not matter |
"""

from collections.abc import Iterator, Sequence

from ..experiments import open_rows
from ..placements import is_shard
from ..rules import Clause
from ..synthesis import Study


def properties(study: Study) -> list[str]:
    """The properties of the operator of a study, in words; none without a rule."""
    if study.rule is None:
        return []
    clauses = study.rule.single_clauses
    found = [c.reason for c in clauses if c.reason.startswith(("linear", "affine", "monotone", "contracted"))]
    found += [*_of_sums(clauses), *_of_reductions(clauses), *_of_batches(study, clauses)]
    return list(dict.fromkeys(found))


def _of_sums(clauses: Sequence[Clause]) -> Iterator[str]:
    linear = {_where(c, "sum") for c in clauses if _passes(c, "sum")}
    alone = sorted(number for places in linear if len(places) == 1 for number in places)
    if len(alone) > 1 and tuple(alone) not in linear:
        numbers = " and ".join(str(number + 1) for number in alone)
        yield f"{'bilinear' if len(alone) == 2 else 'multilinear'} in arguments {numbers}"
    averaged = {_where(c, "avg") for c in clauses if _passes(c, "avg")}
    for places in sorted(linear & averaged):
        yield f"homogeneous in {_arguments(places)}: a factor passes through"


def _of_reductions(clauses: Sequence[Clause]) -> Iterator[str]:
    kept = {t.inside for c in clauses if _shards(c) for t in c.outputs if t.kind == "P"} & {"max", "min"}
    if kept:
        yield f"idempotent: its reduction by {' and '.join(sorted(kept))} may meet an element twice"


def _of_batches(study: Study, clauses: Sequence[Clause]) -> Iterator[str]:
    batches = [c for c in clauses if _shards(c) and all(t.kind in "SR-" for t in (*c.inputs, *c.outputs))]
    for clause in batches:
        yield f"batch-wise along {_dims(clause)}"
    if batches and _permutes(study):
        yield "permutation-equivariant along its batch dims: strided shards pass through as plain ones do"


def _permutes(study: Study) -> bool:
    """Whether all rows of a call that shard inputs and outputs alike hold for strided shards, by experiment."""
    seen = False
    for observation in study.observations[:2]:
        rows = [r for r in observation.found.rows if r.local is None and _is_batch(r.inputs, r.outputs)]
        if not rows:
            continue
        if not all(row.is_open for row in open_rows(observation.call, rows)):
            return False
        seen = True
    return seen


def _is_batch(inputs: Sequence[object], outputs: Sequence[object]) -> bool:
    sharded = any(p is not None and is_shard(p) for p in inputs)
    return sharded and any(p is not None and is_shard(p) for p in outputs)


def _passes(clause: Clause, reduction: str) -> bool:
    partial = {t.inside for t in (*clause.inputs, *clause.outputs) if t.kind == "P"}
    out = all(t.kind in "P-" for t in clause.outputs)
    return out and not _shards(clause) and partial == {reduction}


def _where(clause: Clause, reduction: str) -> tuple[int, ...]:
    return tuple(i for i, t in enumerate(clause.inputs) if t.kind == "P" and t.inside == reduction)


def _shards(clause: Clause) -> bool:
    return any(t.kind == "S" for t in clause.inputs)


def _arguments(places: Sequence[int]) -> str:
    return ("argument " if len(places) == 1 else "arguments ") + " and ".join(str(i + 1) for i in places)


def _dims(clause: Clause) -> str:
    dims = dict.fromkeys(t.inside for t in clause.inputs if t.kind == "S")
    condition = f" when {' and '.join(clause.when)}" if clause.when else ""
    return f"{' and '.join(f'dim {dim}' if dim != 'd' else 'd' for dim in dims)}{condition}"
