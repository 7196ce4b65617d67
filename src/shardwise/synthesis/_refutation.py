"""Calls made to refute a rule.

On each call only the claims of the rule are tested. That is cheap, so many calls can be tested: those of the sweep that
were not judged in full, calls in which every triple of levels occurs, and calls changed at random in several places.
"""

import itertools
from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor

from ..calls import Call
from ..experiments import ExperimentPolicy, refuted
from ..rules import Bound, Clause, Rule, bind, partials_fit
from ._sweep import Design, in_domain

# Elements in a tensor beyond which a call takes long, and attempts for each random call that is wanted.
_ELEMENTS, _ATTEMPTS = 4_000, 6


def triples(design: Design, most: int) -> Iterator[Call]:
    """Calls in which every triple of levels occurs, up to `most`."""
    return design.covering(3, lambda call: in_domain(call, _ELEMENTS), most)


def unusual_calls(design: Design) -> Iterator[Call]:
    """Calls that the operator may not be meant for, and that run."""
    return (call for call in design.unusual() if in_domain(call, _ELEMENTS))


def random_calls(design: Design, count: int, seed: int) -> Iterator[Call]:
    """Up to `count` calls that run, each a known one changed in one to four places."""
    attempts = itertools.islice(design.at_random(seed), _ATTEMPTS * count) if design.columns else ()
    return itertools.islice((call for call in attempts if in_domain(call, _ELEMENTS)), count)


def contradicted(rule: Rule, call: Call, policy: ExperimentPolicy | None = None) -> list[Clause]:
    """The clauses of a rule that claim something of a call that an experiment refutes."""
    bound, outputs = bound_call(rule, call)
    claims = {
        clause: [
            row
            for row in clause.rows(bound.scope, bound.groups, bound.output_groups)
            if partials_fit((*row.inputs, *row.outputs), [*call.tensors, *outputs])
        ]
        for clause in rule.clauses
    }
    wrong = refuted(call, list(dict.fromkeys(row for rows in claims.values() for row in rows)), policy)
    return [clause for clause, rows in claims.items() if any(row in wrong for row in rows)]


def bound_call(rule: Rule, call: Call) -> tuple[Bound, list[Tensor | None]]:
    """A call as the clauses of a rule read it, and its outputs."""
    outputs = [o if isinstance(o, Tensor) else None for o in call.run()]
    made = tuple(None if o is None else tuple(o.shape) for o in outputs)
    return bind(replace(call, made=made), rule.reading), outputs
