"""Spurious clauses: no experiment refuted them, but only because of the sizes tried, or because a result is constant.

A few sizes and arguments cannot tell `start == 0 and end == 20` from a rule, where no dim was longer than 20. Leaving
a clause out costs rows that hold for some calls; keeping a wrong one costs right numbers. So conditions on an integer
that counts something, conditions on a fraction, partials that change their kind under a condition, and what holds for
even shards under conditions that have nothing to do with averages are left out. So is a result that is said to be the
same for partials of one kind, but not of sums: it depends on values, and these were not tried. Nor is a choice (of a
reduction) more or less than another, or a sum due to how many dims, two or more, there are; and what is linear or
monotone is so whatever the number of dims, and whatever the size of the last one.
"""

import re
from dataclasses import replace
from typing import Any

from ..calls import facts, overload
from ..rules import Clause, Rule, merged

_COMPARED = re.compile(r"(\w+) (==|!=|<|>|<=|>=) (-?[\w.]+|'\w*')")
_MANY_DIMS = re.compile(r"ndim\(\d\) == [2-9]")
_OF_SHAPE = re.compile(r"(out|n)dim\(\d\) (==|>) \d|size\(\d, -1\) == (1|size\(\d, -1\))")
_OF_AVERAGES = re.compile(
    r"d (not )?in \w+|d != \w+|d (<|>=|==) ndim\(\d\)-(\d|len\(\w+\))|reduction == 1|\w+ is None|(not )?keepdim"
)


def without_spurious(rule: Rule) -> Rule:
    """The rule without spurious clauses."""
    op = overload(rule.op)
    integers = {
        a.name for a in op._schema.arguments if "int" in str(a.type).lower() and "List" not in str(a.type)
    }
    names, choices = {a.name for a in op._schema.arguments}, set(facts(op).choices)
    kept = [c for c in rule.single_clauses if not _is_spurious(c, integers - choices, choices, names)]
    sums = {(c.inputs, c.outputs) for c in kept if not c.when}
    kept = [c for c in kept if not _ignores_partials(c) or _with_sums(c) in sums]
    return replace(rule, clauses=merged(kept))


def _ignores_partials(clause: Clause) -> bool:
    """True if it calls a result replicated although inputs are partial."""
    partial = any(term.kind == "P" for term in clause.inputs)
    return partial and all(term.kind in "R-" for term in clause.outputs)


def _with_sums(clause: Clause) -> tuple[Any, Any]:
    """What must hold of sums as well if the values of the partial inputs do not matter at all."""
    sums = (replace(term, inside="sum") if term.kind == "P" else term for term in clause.inputs)
    return tuple(sums), clause.outputs


def _is_spurious(clause: Clause, counts: set[str], choices: set[str], names: set[str]) -> bool:
    compared = [match for text in clause.when if (match := _COMPARED.fullmatch(text)) and match[1] in names]
    if any(match[1] in counts or "." in match[3].removesuffix(".0") for match in compared):
        return True
    if any(match[1] in choices and match[2] not in ("==", "!=") for match in compared):
        return True
    partial = any(term.kind == "P" for term in clause.outputs)
    if partial and any(_MANY_DIMS.fullmatch(text) for text in clause.when):
        return True
    inputs = {term.inside for term in clause.inputs if term.kind == "P"}
    if inputs and any(_OF_SHAPE.fullmatch(text) for text in clause.when):
        return True
    outputs = {term.inside for term in clause.outputs if term.kind == "P"}
    if inputs and outputs - inputs and any(match[2] == "==" for match in compared):
        return True
    if clause.shards != "even":
        return False
    averages = any(term.inside == "avg" for term in clause.outputs if term.kind == "P")
    stated = "reduction" not in names or not averages or "reduction == 1" in clause.when
    return not stated or not all(_OF_AVERAGES.fullmatch(text) for text in clause.when)
