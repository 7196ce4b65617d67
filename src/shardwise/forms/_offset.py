"""The local form `offset`: values that follow from positions, computed for the positions of the rank's piece."""

from typing import Any

from ..calls import Call
from ._operator import Operator
from ._piece import Held


def _cut_out(call: Call, held: Held) -> Any:
    """This piece of what the whole call gives."""
    output, result = held.output, call()
    for dim, (start, size) in enumerate(zip(output.offset, output.local, strict=True)):
        result = result.narrow(dim, start if size else 0, size)
    return result.contiguous()


def _triangle(call: Call, held: Held) -> dict[str, Any]:
    """The diagonal moves with the piece's corner."""
    rows, columns = held["self"].offset[-2:]
    return {"diagonal": call["diagonal"] + rows - columns}


OFFSET: dict[str, Operator] = {
    "aten.arange": Operator(_cut_out),
    "aten.linspace": Operator(_cut_out),
    "aten.eye": Operator(_cut_out),
    "aten.tril_indices": Operator(_cut_out),
    "aten.triu_indices": Operator(_cut_out),
    "aten.tril": Operator(changes=_triangle),
    "aten.triu": Operator(changes=_triangle),
}
