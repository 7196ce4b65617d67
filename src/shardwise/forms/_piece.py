"""What one rank holds of one tensor, and of all tensors of a call."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..calls import Call


@dataclass(frozen=True)
class Piece:
    """What one rank holds of one tensor: the shape of the whole, that of the piece, and where the piece's first
    element lies in the whole."""

    shape: tuple[int, ...]
    local: tuple[int, ...]
    offset: tuple[int, ...]

    @classmethod
    def whole(cls, shape: Sequence[int]) -> "Piece":
        return cls(tuple(shape), tuple(shape), (0,) * len(shape))

    def cuts(self, dim: int) -> bool:
        return self.local[dim] != self.shape[dim]


@dataclass(frozen=True)
class Held:
    """What one rank holds of the tensors of a call: the pieces of its inputs in order, and of its outputs; None for an
    output that is not returned."""

    call: Call
    inputs: Sequence[Piece]
    outputs: Sequence[Piece | None]

    def __getitem__(self, name: str) -> Piece:
        """The piece that an argument is, which is one tensor."""
        return self.inputs[self.call.tensor_names.index(name)]

    @property
    def output(self) -> Piece:
        """The piece of the only output."""
        (output,) = self.outputs
        assert output is not None
        return output
