"""In-place and out variants: operators that compute what another one does and write the result somewhere.

A variant has the arguments of its original. An `out` variant has its rows, too; an in-place one has those of them that
leave the result where the input that it overwrites lies.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from torch._ops import OpOverload

from ..calls import OF_RESULTS, overload, registered
from ..placements import Row
from ._clause import Clause
from ._rule import Rule


def variants_of(op: OpOverload) -> list[OpOverload]:
    """The in-place and out variants of a functional overload. Those that write lists and return nothing are made for
    compilers and are called by nobody; they are left out."""
    if op._schema.is_mutable:
        return []
    wanted = _arguments(op)
    mutable = [v for v in _candidates(op) if v._schema.is_mutable and (v._schema.returns or is_in_place(v))]
    return [v for v in mutable if _arguments(v) == wanted]


def is_in_place(op: OpOverload) -> bool:
    """True if it writes to its first argument."""
    arguments = op._schema.arguments
    return bool(arguments) and arguments[0].is_write and not arguments[0].is_out


def _candidates(op: OpOverload) -> Iterator[OpOverload]:
    namespace, name = op._schema.name.split("::")
    for packet_name in (name, f"{name}_"):
        packet = registered(f"{namespace}.{packet_name}")
        for variant in packet.overloads() if packet is not None else ():
            yield getattr(packet, variant)


def _arguments(op: OpOverload) -> list[tuple[str, str]]:
    """Names and types of what is given, apart from where to write; a variant makes no dtype or layout of its own."""
    arguments = op._schema.arguments
    return [(a.name, str(a.type)) for a in arguments if not a.is_out and a.name not in OF_RESULTS]


def rows_in_place(rows: Iterable[Row], op: OpOverload) -> list[Row]:
    """Of the rows of an original, those of its in-place variant."""
    returned = len(op._schema.returns)
    return [
        replace(row, outputs=row.outputs[:returned])
        for row in rows
        if row.inputs and row.outputs and row.outputs[0] == row.inputs[0] and row.local is None
    ]


def derived(rule: Rule, variant: str) -> Rule:
    """The rule of a variant from that of its original."""
    op = overload(variant)
    clauses: tuple[Clause, ...] = rule.clauses
    if is_in_place(op):
        returned = len(op._schema.returns)
        clauses = tuple(
            replace(clause, outputs=clause.outputs[:returned])
            for clause in clauses
            if clause.inputs and clause.outputs and clause.outputs[0] == clause.inputs[0]
        )
    return replace(rule, op=variant, clauses=clauses, front=None)
