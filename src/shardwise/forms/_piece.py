"""What one rank holds of one tensor, and a call seen from that rank: its arguments by name, each with its piece."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from torch import Tensor


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


class LocalOp:
    """One rank's call of an operator: `here["dim"]` is an argument, `here.pieces["self"]` the piece it is."""

    def __init__(
        self,
        op: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        inputs: Sequence[Piece],
        outputs: Sequence[Piece | None],
    ) -> None:
        self.op = op
        self.name, self.names, self.defaults = _signature(op)
        self.args = list(args)
        self.kwargs = dict(kwargs)
        self.inputs = list(inputs)
        self.outputs = list(outputs)
        rest = iter(inputs)
        self.pieces: dict[str, Any] = {}
        for name, value in self.items():
            self.pieces[name] = _pieces(value, rest)

    def items(self) -> Iterator[tuple[str, Any]]:
        """The arguments that were given, with their names; `#0` for one whose name is not known."""
        for position, value in enumerate(self.args):
            yield self.names[position] if position < len(self.names) else f"#{position}", value
        yield from self.kwargs.items()

    def __getitem__(self, name: str) -> Any:
        if name in self.kwargs:
            return self.kwargs[name]
        position = self.names.index(name)
        return self.args[position] if position < len(self.args) else self.defaults[name]

    def run(self, /, **changes: Any) -> Any:
        """The operator itself, with some arguments changed."""
        args, kwargs = list(self.args), dict(self.kwargs)
        for name, value in changes.items():
            position = self.names.index(name) if name in self.names else None
            if name in kwargs or position is None or position >= len(args):
                kwargs[name] = value
            else:
                args[position] = value
        return self.op(*args, **kwargs)


def _pieces(value: Any, rest: Iterator[Piece]) -> Any:
    if isinstance(value, Tensor):
        return next(rest, None)
    if isinstance(value, list | tuple) and any(isinstance(v, Tensor) for v in value):
        return [_pieces(v, rest) for v in value]
    return None


@lru_cache(maxsize=4096)
def _signature(op: Callable[..., Any]) -> tuple[str, tuple[str, ...], dict[str, Any]]:
    """Name without overload, names of positional arguments and defaults of an operator."""
    schema = getattr(op, "_schema", None)
    if schema is None:
        return getattr(op, "__name__", str(op)), (), {}
    names = tuple(a.name for a in schema.arguments if not a.kwarg_only)
    defaults = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}
    return schema.name.replace("::", "."), names, defaults


def operator_name(op: Callable[..., Any]) -> str:
    """`aten.embedding`: the operator's name without its overload."""
    return _signature(op)[0]
