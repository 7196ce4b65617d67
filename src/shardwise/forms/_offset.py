"""The local form `offset`: values that follow from positions, computed for the positions of the rank's piece."""

from collections.abc import Callable
from typing import Any

from ._piece import LocalOp


def _cut_out(here: LocalOp) -> Any:
    """This piece of what the whole call gives."""
    (output,) = here.outputs
    assert output is not None
    result = here.run()
    for dim, (start, size) in enumerate(zip(output.offset, output.local, strict=True)):
        result = result.narrow(dim, start if size else 0, size)
    return result.contiguous()


def _triangle(here: LocalOp) -> Any:
    """The diagonal moves with the piece's corner."""
    rows, columns = here.pieces["self"].offset[-2:]
    return here.run(diagonal=here["diagonal"] + rows - columns)


OFFSET: dict[str, Callable[[LocalOp], Any]] = {
    "aten.arange": _cut_out,
    "aten.linspace": _cut_out,
    "aten.eye": _cut_out,
    "aten.tril_indices": _cut_out,
    "aten.triu_indices": _cut_out,
    "aten.tril": _triangle,
    "aten.triu": _triangle,
}
