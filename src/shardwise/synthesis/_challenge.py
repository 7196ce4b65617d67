"""Calls made to refute a rule.

The calls that a rule is built from and held against differ from known ones in a place or two. What is wrong with it
shows in others: a mean that has weights, a column in place of a matrix. Here calls are changed at random in several
places, and of each nothing is tried but what the rule claims. That costs little, so many can be tried.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

from torch import Tensor

from ..calls import Call
from ..experiments import ExperimentPolicy, refuted
from ..placements import Row, is_partial, partials_of
from ..rules import Clause, Rule, bind
from ._changes import Habit, changed_at_random

# Places that are changed at most, attempts for each call that is wanted (many changes give calls that do not run), and
# elements in a tensor beyond which a call takes long.
_PLACES, _ATTEMPTS, _ELEMENTS = 4, 6, 4_000


def challenges(calls: Sequence[Call], count: int, seed: int = 0) -> Iterator[Call]:
    """Up to `count` calls that run, each from one of the calls, changed in one to four places."""
    choose = random.Random(seed)
    habit = Habit.of(calls)
    for _ in range(_ATTEMPTS * count):
        call = choose.choice(calls)
        for _ in range(choose.randint(1, _PLACES)):
            call = changed_at_random(call, habit, choose) or call
        if _runs(call):
            yield call
            count -= 1
        if not count:
            return


def _runs(call: Call) -> bool:
    """True if the call gives something to compare."""
    if not all(0 < t.numel() <= _ELEMENTS for t in call.tensors):
        return False
    try:
        outputs = call.run()
    except Exception:
        return False  # an operator takes only some of the changes
    tensors = [o for o in outputs if isinstance(o, Tensor)]
    return bool(tensors) and all(0 < t.numel() <= _ELEMENTS for t in tensors)


def contradicted(rule: Rule, call: Call, policy: ExperimentPolicy | None = None) -> list[Clause]:
    """The clauses of a rule that claim something of a call that an experiment refutes."""
    outputs = [o if isinstance(o, Tensor) else None for o in call.run()]
    made = tuple(None if o is None else tuple(o.shape) for o in outputs)
    bound = bind(replace(call, made=made), rule.reading)
    claims = {
        clause: [
            row
            for row in clause.rows(bound.scope, bound.groups, bound.output_groups)
            if _makes_sense(row, [*call.tensors, *outputs])
        ]
        for clause in rule.clauses
    }
    wrong = refuted(call, list(dict.fromkeys(row for rows in claims.values() for row in rows)), policy)
    return [clause for clause, rows in claims.items() if any(row in wrong for row in rows)]


def _makes_sense(row: Row, tensors: Sequence[Tensor | None]) -> bool:
    """False for partials that the dtypes of the tensors do not have."""
    return all(
        p is None or t is None or not is_partial(p) or bool(partials_of(t.dtype, [p.reduce_op]))
        for p, t in zip((*row.inputs, *row.outputs), tensors, strict=True)
    )
