"""What one rank holds of one tensor, and of all tensors of a call."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

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


# What one rank runs for a call, which holds the rank's local tensors and otherwise the arguments of the whole call.
Run = Callable[[Call, Held], Any]
# The same for an operator that runs as it is with other arguments: these, by name.
Changes = Callable[[Call, Held], dict[str, Any]]
# A dim of an argument that is one tensor.
Dim = tuple[str, int]


@dataclass(frozen=True)
class Operator:
    """How one operator runs by a local form, and what may be combined with that.

    With `changes` it runs as it is with other arguments: for the next axes of the mesh a plain call of it is left. With
    `run` it does not, and the rows of the whole call are those of the next axes. A pair of dims in `leads` says that
    positions in the first decide which of the second a rank needs: after an axis that shards the first alone, no axis
    may shard the second.
    """

    run: Run | None = None
    changes: Changes | None = None
    leads: tuple[tuple[Dim, Dim], ...] = ()

    def __call__(self, call: Call, held: Held) -> Any:
        if self.run is not None:
            return self.run(call, held)
        assert self.changes is not None
        return call(**self.changes(call, held))
