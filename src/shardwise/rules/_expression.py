"""The little expressions in clauses: `d-1`, `d not in dim`, `size(0, d) == size(1, d)`.

They are Python expressions of a few forms, evaluated over the arguments of one call (its `Scope`). Anything else
is refused when the clause is read, so that a rule file can hold nothing but rules.
"""

import ast
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..calls import Shape
from ..errors import UsageError

_NODES = (
    *(ast.Expression, ast.Name, ast.Load, ast.Constant, ast.Call, ast.Subscript, ast.Tuple, ast.List),
    *(ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod, ast.UnaryOp, ast.USub, ast.Not),
    *(ast.BoolOp, ast.And, ast.Or, ast.Compare, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE),
    *(ast.In, ast.NotIn, ast.Is, ast.IsNot),
)

_FUNCTIONS = ("ndim", "outdim", "size", "before", "ones", "len")

# What expressions can speak of beside the arguments of the call.
WORDS = frozenset((*_FUNCTIONS, "d", "inf"))
# Those of them that depend on how large dims are.
SIZE_WORDS = frozenset(("size", "ones"))


@dataclass(frozen=True)
class Scope:
    """What expressions can speak of: the call's arguments by name, and the shapes of its tensors. `broadcast` says
    that the operands broadcast to the output."""

    arguments: Mapping[str, Any]
    inputs: Sequence[Shape]
    outputs: Sequence[Shape | None]
    broadcast: bool = False
    names: dict[str, Any] = field(init=False, repr=False, compare=False)
    known: dict[tuple[str, int | None], Any] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )

    def __post_init__(self) -> None:
        functions: dict[str, Any] = {
            "ndim": self.ndim,
            "outdim": self.outdim,
            "size": self.size,
            "before": _before,
            "ones": self.ones,
            "len": len,
            "inf": float("inf"),
        }
        object.__setattr__(self, "names", {**self.arguments, **functions})

    def ndim(self, index: int) -> int:
        return len(self.inputs[index])

    def outdim(self, index: int) -> int:
        """Number of dims of an output."""
        return len(self.outputs[index] or ())

    def size(self, index: int, dim: int) -> int:
        """Size of a dim of an input; 0 where there is no such dim, which equals no size."""
        shape = self.inputs[index]
        return shape[dim] if -len(shape) <= dim < len(shape) else 0

    def ones(self, index: int, dim: int, among: Any = None) -> int:
        """How many dims of size 1 an input has before `dim`, of those in `among` if given."""
        allowed = (among,) if isinstance(among, int) else among
        sizes = enumerate(self.inputs[index][:dim])
        return sum(size == 1 and (allowed is None or d in allowed) for d, size in sizes)

    def evaluate(self, text: str, d: int | None) -> Any:
        """The value of an expression; None where it has none in this call (an index past the end)."""
        key = (text, d)
        if key not in self.known:
            try:
                self.known[key] = compiled(text)({**self.names, "d": d})
            except (TypeError, IndexError, KeyError, NameError, ValueError, ZeroDivisionError):
                self.known[key] = None
        return self.known[key]


def _before(d: int, *dims: Any) -> int:
    """How many of the dims lie before d."""
    flat = [x for dim in dims for x in (dim if isinstance(dim, tuple | list) else (dim,))]
    return sum(x < d for x in set(flat))


@functools.cache
def names_in(text: str) -> frozenset[str]:
    """The names that an expression speaks of."""
    return frozenset(node.id for node in ast.walk(ast.parse(text, mode="eval")) if isinstance(node, ast.Name))


@functools.cache
def compiled(text: str) -> Callable[[dict[str, Any]], Any]:
    """The expression as a function of its names; a `UsageError` for anything that is not such an expression."""
    try:
        tree = ast.parse(text, mode="eval")
    except SyntaxError:
        raise UsageError(f"{text!r} is not an expression: write it as d-1 or d not in dim") from None
    for node in ast.walk(tree):
        called = ast.unparse(node.func) if isinstance(node, ast.Call) else "len"
        if not isinstance(node, _NODES) or called not in _FUNCTIONS:
            raise UsageError(
                f"{text!r} is not an expression for clauses: use names, numbers, comparisons, arithmetic and "
                f"{', '.join(_FUNCTIONS)}"
            )
    code = compile(tree, text, "eval")
    return lambda names: eval(code, {"__builtins__": {}}, names)
