"""An operation as a table: a row for each tensor, a column for each factor, and in each cell its axes.

A dot marks a factor that the tensor carries but no axis shards; axes that propagation added are in brackets.
"""

from collections.abc import Mapping

from ..layout import Sharding
from ..mesh import Mesh
from ._program import Operation, Program
from ._state import Axes, Op, State, project


def factor_table(node: Operation, program: Program, after: Mapping[str, Sharding]) -> str:
    assert node.rule is not None  # callers draw operations that have one
    op = Op.of(node.rule, elementwise=False)
    kinds = [f.name if f.kind == "pass_through" else f"{f.name} ({f.kind})" for f in node.rule.factors]
    rows = [[str(node), *kinds]]
    for index, (name, tensor) in enumerate(zip((*node.inputs, *node.outputs), op.tensors, strict=True)):
        old, new = (
            project(State.of(sharding), tensor, op.sizes)
            for sharding in (program.values[name].sharding, after[name])
        )
        row = [f"  {op.place(index)}: {name}"]
        for factor in range(len(op.names)):
            before = old.cells[factor].axes if factor in old.cells else ()
            row.append(_cell(before, new.cells[factor].axes, program.mesh) if factor in new.cells else "")
        rows.append(row)
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def _cell(before: Axes, after: Axes, mesh: Mesh) -> str:
    kept = [axis.text(mesh) for axis in after if axis in before]
    added = [axis.text(mesh) for axis in after if axis not in before]
    if not after:
        return "."
    return " ".join([*kept, *(["[" + " ".join(added) + "]"] if added else [])])
