"""`emit_tests`: rules and example calls as the source of a test module for the emitted strategies.

Every row that the strategy yields for the calls is run on four ranks with three assertions: no communication, the
outputs placed as the row says, and the values of the unsharded operator. A further test holds the strategy's rows
against those listed, so that neither can be changed alone.
"""

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from torch.distributed.tensor.placement_types import Placement

from ..calls import Call, is_tensor, op_source
from ..errors import UsageError
from ..placements import Row, is_partial, is_replicate, is_shard, shard_sizes
from ..rules import Clause, Rule
from ._calls import SEED, Example, call_source, calls_by_overload, evaluated
from ._clause import WIDTH
from ._outputs import KnownCalls
from ._signature import Signature
from ._strategy import allows_uneven, function_names, served_rules, stated_clauses
from ._test_text import test_module

RANKS = 4
# Of many calls, no more than this are taken for one overload.
MOST_CALLS = 6


def emit_tests(rules: Rule | Sequence[Rule], calls: Sequence[Example], strategy_module: str) -> str:
    """The text of a test module for the strategies that `emit_strategy(rules)` put into `strategy_module`.

    `calls` are example calls of the operator or of its overloads; of many, those are taken that show every row.
    """
    rules = [rules] if isinstance(rules, Rule) else list(rules)
    by_overload = calls_by_overload(calls)
    rules = served_rules(rules, by_overload)
    cases = [case for rule in rules for case in _cases(rule, by_overload.get(rule.op, []))]
    unstated = [
        f"{clause}, since {why}"
        for rule in rules
        for clause, why in _left_out(rule, by_overload.get(rule.op, []))
    ]
    if not cases and unstated:
        raise UsageError(f"the strategy states no row to test; left out are {'; '.join(unstated)}")
    if not cases:
        raise UsageError(
            f"none of the {len(calls)} calls has a row of {', '.join(r.op for r in rules)} to test: give other calls"
        )
    names = function_names(rules)
    two_meshes = any(case.ranks(row) != RANKS for case in cases for row in case.rows)
    outs = any(case.signature.outs for case in cases)
    lines = "".join(s for case in cases for s in case.source_lines(f"{strategy_module}.{names[case.op]}"))
    return test_module(_class_name(rules), strategy_module, lines, two_meshes, outs, SEED)


class _Case:
    """One call of an overload, and its rows but for the replicated one; the rule is what the strategy states."""

    def __init__(self, rule: Rule, example: Call) -> None:
        self.op = rule.op
        self.signature = Signature.of(rule.op, rule.function)
        self.uneven = allows_uneven(rule.clauses)
        self.source = call_source(example)
        self.call = evaluated(example.op, self.source)
        self.rows = rule.rows_of(self.call)

    def ranks(self, row: Row) -> int:
        """On how many ranks a row is run: on two where four would leave one without a piece that it needs."""
        sizes = [shape[p.dim] for shape, p in zip(self.call.shapes, row.inputs, strict=True) if is_shard(p)]
        return RANKS if self.uneven or all(shard_sizes(s, RANKS)[-1] for s in sizes) else 2

    def source_lines(self, strategy: str) -> Iterator[str]:
        op = op_source(self.op)
        yield f"    Case(\n        {op},\n        {strategy},\n"
        flat = f"        lambda: call({', '.join(self.source)}),\n"
        if len(flat) <= WIDTH + 1 and "\n" not in flat[:-1]:
            yield flat
        else:
            yield "        lambda: call(\n"
            yield from (textwrap.indent(f"{part},\n", " " * 12) for part in self.source)
            yield "        ),\n"
        yield "        [\n"
        for row in self.rows:
            yield from _row_lines(row, self.ranks(row))
        yield "        ],\n    ),\n"


def _left_out(rule: Rule, calls: Sequence[Call]) -> list[tuple[Clause, str]]:
    known = KnownCalls(rule, Signature.of(rule.op, rule.function), calls)
    return stated_clauses(rule, known)[1]


def _cases(rule: Rule, calls: Sequence[Call]) -> list[_Case]:
    """A subset of the calls that shows every row of all of them, the most diverse calls first."""
    known = KnownCalls(rule, Signature.of(rule.op, rule.function), calls)
    stated = replace(rule, clauses=tuple(stated_clauses(rule, known)[0]))
    cases: list[_Case] = []
    for call in calls:
        case = _Case(stated, call)
        if case.rows and case.source not in [c.source for c in cases]:
            cases.append(case)
    chosen: list[_Case] = []
    shown: set[Any] = set()
    while cases and len(chosen) < MOST_CALLS:
        best = max(cases, key=lambda case: len(_shows(case) - shown))
        if not _shows(best) - shown:
            break
        cases.remove(best)
        chosen.append(best)
        shown |= _shows(best)
    return chosen


def _shows(case: _Case) -> set[Any]:
    """What a case is evidence of: its rows, with the arguments that are no tensors."""
    plain = str([leaf for _, leaf in case.call.leaves() if not is_tensor(leaf)])
    return {(str(row), plain) for row in case.rows}


def _row_lines(row: Row, ranks: int) -> list[str]:
    inputs = f"[{', '.join(_placement(p) for p in row.inputs)}]"
    outputs = f"[{', '.join(_placement(p) for p in row.outputs)}]"
    parts = [inputs, outputs] if ranks == RANKS else [inputs, outputs, f"ranks={ranks}"]
    flat = f"            Row({', '.join(parts)}),\n"
    if len(flat) <= WIDTH + 1:
        return [flat]
    return ["            Row(\n", *(f"                {part},\n" for part in parts), "            ),\n"]


def _placement(placement: Placement | None) -> str:
    if placement is None:
        return "None"
    if is_replicate(placement):
        return "Replicate()"
    return f'Partial("{placement.reduce_op}")' if is_partial(placement) else f"Shard({placement.dim})"


def _class_name(rules: Sequence[Rule]) -> str:
    packet = rules[0].op.split(".")[1]
    return "".join(part.capitalize() for part in packet.split("_"))
