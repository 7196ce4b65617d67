"""What is known of grouped matrix products, `aten._grouped_mm`: runs of rows, columns or inner positions, one for each
group, end where `offs` says. How long the runs are depends on values; prices count them as equally long."""

import math
from typing import Any

from torch import Tensor


def ends_of_groups(**arguments: Any) -> Tensor:
    """Where groups end, from any integers: in order, the last at the last row."""
    given, mat2 = arguments["self"], arguments["mat2"]
    rows = {(2, 3): given.shape[0], (2, 2): given.shape[-1], (3, 2): mat2.shape[-1]}[given.dim(), mat2.dim()]
    ends: Tensor = (arguments["offs"].abs() % (rows + 1)).sort().values
    ends[-1:] = rows
    return ends


def grouped_products(**arguments: Any) -> list[tuple[int, int, int, int]]:
    """Batch, rows, columns and inner dim."""
    given, mat2, offs = (arguments.get(name) for name in ("self", "mat2", "offs"))
    first, second = given.shape, mat2.shape  # type: ignore[union-attr]
    stacked = next((shape[0] for shape in (first, second) if len(shape) == 3), None)
    rows, inner, columns = first[-2], first[-1], second[-1]
    if offs is not None:
        groups = max(offs.shape[0], 1)
        rows, inner, columns = (
            -(-size // groups) if is_cut else size
            for size, is_cut in (
                (rows, len(second) == 3),
                (inner, stacked is None),
                (columns, len(first) == 3),
            )
        )
        stacked = groups if stacked is None else stacked
    return [(int(stacked or 0), rows, columns, inner)]


def grouped_flops(**arguments: Any) -> int:
    return sum(2 * math.prod(each) for each in grouped_products(**arguments))
