"""A call as hand-written rules see it: arguments by name, shapes, and rows written with names instead of positions."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch.distributed.tensor.placement_types import Placement, Replicate

from ...calls import Shape, is_tensor, named_arguments
from ...placements import Row, Shards, partials_of

R = Replicate()

# How the reductions act on pieces: an average keeps what all pieces have, a maximum and a minimum too, a sum does not.
KEEPING = ("avg", "max", "min")
LINEAR = ("sum", "avg")
ALL = ("sum", "avg", "max", "min")

Placed = Mapping[str, Placement | Sequence[Placement]]


class HandCall:
    """`call["dim"]` is an argument, `call.shape("self")` a tensor's shape, `call.outputs` those of the outputs."""

    def __init__(
        self,
        op: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        outputs: Sequence[Shape | None],
    ) -> None:
        self._arguments = named_arguments(op, args, kwargs)
        positional = [name for name in self._arguments if name not in kwargs]
        self._order = [*positional, *kwargs]
        self.outputs = [None if shape is None else tuple(shape) for shape in outputs]

    def __getitem__(self, name: str) -> Any:
        return self._arguments[name]

    def __contains__(self, name: str) -> bool:
        return name in self._arguments

    def has(self, name: str) -> bool:
        """True if a tensor was given for this argument."""
        return is_tensor(self._arguments.get(name))

    @property
    def tensors(self) -> list[str]:
        """The arguments that are one tensor."""
        return [name for name in self._order if self.has(name)]

    def shape(self, name: str) -> Shape:
        return tuple(int(size) for size in self[name].shape)

    @property
    def output(self) -> Shape:
        """The shape of the first output."""
        assert self.outputs[0] is not None
        return self.outputs[0]

    def dims(self, name: str) -> list[int]:
        """Dims of a tensor that have something to shard."""
        return sharded_dims(self.shape(name))

    def dim(self, name: str = "self", argument: str = "dim") -> int:
        """The dim that an argument names, counted from 0."""
        return int(self[argument]) % max(len(self.shape(name)), 1)

    def partials(self, name: str, reductions: Sequence[str]) -> list[Placement]:
        """Those of the reductions that a tensor's dtype has."""
        return partials_of(self[name].dtype, reductions)

    def row(
        self,
        inputs: Placed,
        outputs: Placement | Sequence[Placement],
        shards: Shards = "any",
        local: str | None = None,
    ) -> Row:
        """A row from placements by argument (all others replicated) and those of the outputs, one for all or one
        each; what was not given or is not returned takes none."""
        placed: list[Placement] = []
        for name in self._order:
            value = self._arguments[name]
            inside = [value] if is_tensor(value) else _tensors(value)
            asked = inputs.get(name, R)
            placed += asked if isinstance(asked, list | tuple) else [asked] * len(inside)
        each = outputs if isinstance(outputs, list | tuple) else [outputs] * len(self.outputs)
        given = [None if s is None else p for s, p in zip(self.outputs, each, strict=True)]
        return Row(tuple(placed), tuple(given), shards, local)


def _tensors(value: Any) -> list[Any]:
    return [v for v in value if is_tensor(v)] if isinstance(value, list | tuple) else []


def sharded_dims(shape: Shape) -> list[int]:
    return [dim for dim, size in enumerate(shape) if size > 1]


def aligned(shape: Shape, dim: int, ndim: int) -> int | None:
    """The dim of an operand that broadcasting puts under dim `dim` of `ndim`; None where it is missing or of size 1."""
    own = dim - ndim + len(shape)
    return own if own >= 0 and shape[own] > 1 else None


def pass_through(call: HandCall, name: str, reductions: Sequence[str], **options: Any) -> Iterator[Row]:
    """Rows that carry a partial of one input to every output."""
    for p in call.partials(name, reductions):
        yield call.row({name: p}, p, **options)
