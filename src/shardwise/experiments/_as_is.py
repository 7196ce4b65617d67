"""Rows tested on a call unchanged: with its own sizes and values, and only the placements of the rows.

Discovery also runs placements that no rule claims, on generated values. Kernels that trust their integers (indices in
range, ascending offsets), or the sizes of their tensors, crash the process then. Of such an operator only claimed
rows can be tested, on a call that is known to be valid.
"""

from collections.abc import Sequence

from ..calls import Call
from ..placements import Row
from ._experiment import CLAIMED, Experiment, LocalRunFailed


def check_as_is(call: Call, rows: Sequence[Row], ranks: int, way: str = "uneven") -> dict[Row, bool]:
    """Whether each row holds for the call on this number of ranks, without rows that do not apply to its sizes;
    partials are split as `way` says."""
    experiment = Experiment(call, ranks, "given", call.tensors, way, mutated=call.mutated)
    held: dict[Row, bool] = {}
    # Tensors that are written in place count as results, too, and stay as they were placed.
    for row in rows:
        outputs = (*row.outputs, *(row.inputs[i] for i in call.mutated))
        case = experiment.input_case(row.inputs)
        for i, placement in enumerate(outputs):
            case = case if placement is None else experiment.row_case(case, i, placement)
        if case not in CLAIMED[row.shards]:
            continue
        try:
            local = experiment.run(row.inputs, row.local, outputs)
        except LocalRunFailed:
            held[row] = False
            continue
        held[row] = all(
            placement is None or expected.agrees(pieces, placement)
            for expected, pieces, placement in zip(experiment.outputs, local, outputs, strict=True)
        )
    return held
