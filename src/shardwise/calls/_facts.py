"""Facts about operators that have nothing to do with how they shard: one place to state them, one to ask for them.

`facts(op)` is put together from what schemas and tags say and from what was declared. `_fact_table` has what they do
not say about torch's operators; Shardwise's own operators and those of users declare themselves, next to their
definition: `declare("guide.softcap", kernel="reduction")`.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

import torch
from torch._ops import OpOverload
from torch.utils.flop_counter import flop_registry

from ..errors import UsageError
from . import _argument_kinds as kinds
from ._fact_table import TABLE
from ._guards import Guard
from ._names import TORCH_NAMESPACES, op_name, operator

# What limits a kernel, where that does not follow from how its tensors lie in memory.
Kernel = Literal["matmul", "attention", "attention_backward", "reduction"]

# What is drawn, where the draw of each element follows from its position.
Draw = Literal["dropout", "bernoulli", "rand", "randn", "uniform", "normal", "exponential", "randint"]

Collective = Literal["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast"]

# A number from the arguments of a call, given by name; tensors have at least a shape and a dtype.
Formula = Callable[..., int]


@dataclass(frozen=True)
class Facts:
    """What is known about one operator. The defaults hold for most.

    What it is:

    - `builtin`: torch's own, so that it stays what it is as long as torch does
    - `view`: its result lies in the memory of its first input
    - `identity`: its result is its input; `involution`: applied twice, it is
    - `shape_only`: where shape and strides of its result are those of its input, it is the identity
    - `reshape`: its result has the elements of its input in the same order, with sizes that it is given
    - `any_strides`: the operator that takes the same arguments and does not care how its input is stored
    - `by_strides`: it finds elements by the strides of its input
    - `stride_dependent`: its kernel relies on the order in which the dims of its inputs are stored; otherwise stored,
      they give other values, or an error
    - `elementwise`: each element of its result comes from the elements in the same place
    - `cast`: it changes the dtype and nothing else
    - `lookup`: it reads only as much of its first input as it returns
    - `recurrent`: it runs a stack of recurrent layers
    - `indexing`: the shape of its result is known unless an index is a mask, whatever its tags say
    - `foreach`: it takes and returns (or overwrites) a list of tensors
    - `reshapes_in_place`: it gives its input another shape
    - `collective`: what it communicates

    Its values:

    - `uninitialised`: they are memory as it was found
    - `exact`: they differ from the input's in the last digit, which a tolerance would hide
    - `random`: they are drawn from torch's generator; `draws` is what is drawn, if each draw follows from a position
    - `seeded`: they are drawn from a seed among its arguments
    - `dropout`: the argument without which nothing is drawn

    Its kernel:

    - `kernel`: what limits it; None where that follows from how its tensors are stored
    - `flops` and `scratch`: its operations, where torch has no formula, and the bytes that it holds beside its inputs
      and outputs; functions of its arguments by name
    - `heads`: the argument whose last dim is the size of a head, which devices work on in tiles
    - `guard`: whether it survives a call; None if it checks its arguments itself, as nearly all do

    Its arguments:

    - `dims` name dims, `sizes` name sizes (None: those that are called so), `shapes` spell out the shape of the output
    - `windows` have one number per dim of a window; those in `sliding` only an operator with a sliding window has
    - `counts` and `choices` change what it does; `choices` has their values, where those are few
    - `values`: other values worth trying
    """

    builtin: bool = False
    view: bool = False
    identity: bool = False
    involution: bool = False
    shape_only: bool = False
    reshape: bool = False
    any_strides: str | None = None
    by_strides: bool = False
    stride_dependent: bool = False
    elementwise: bool = False
    cast: bool = False
    lookup: bool = False
    recurrent: bool = False
    indexing: bool = False
    foreach: bool = False
    reshapes_in_place: bool = False
    collective: Collective | None = None

    uninitialised: bool = False
    exact: bool = False
    random: bool = False
    draws: Draw | None = None
    seeded: bool = False
    dropout: str | None = None

    kernel: Kernel | None = None
    flops: Formula | None = None
    scratch: Formula | None = None
    heads: str | None = None
    guard: Guard | None = None

    dims: tuple[str, ...] = kinds.DIMS
    sizes: tuple[str, ...] | None = None
    shapes: tuple[str, ...] = kinds.SHAPES
    windows: tuple[str, ...] = kinds.WINDOWS
    sliding: tuple[str, ...] = kinds.SLIDING
    counts: tuple[str, ...] = kinds.COUNTS
    choices: Mapping[str, tuple[int, ...]] = field(default_factory=lambda: kinds.CHOICES)
    values: Mapping[str, tuple[Any, ...]] = field(default_factory=lambda: kinds.VALUES)

    def is_size(self, argument: str, numbers: int) -> bool:
        """True if an argument that is given so many numbers names sizes."""
        return kinds.is_size(argument, numbers) if self.sizes is None else argument in self.sizes


# By the names of operators, with or without their overloads.
_declared: dict[str, dict[str, Any]] = {}

_NAMES = tuple(known.name for known in fields(Facts))
_ARGUMENTS = ("dims", "sizes", "shapes", "windows", "sliding", "counts")
_WORDS = {"kernel": get_args(Kernel), "draws": get_args(Draw), "collective": get_args(Collective)}


def declare(*ops: str | Callable[..., Any], **known: Any) -> None:
    """State facts about operators: `declare("guide.softcap", kernel="reduction")`. The facts are those of `Facts`.

    Operators are given as such or by name; a name without an overload stands for all overloads. What is declared holds
    over what schemas and tags say, and a fact that is declared again is replaced.
    """
    for fact, value in known.items():
        _require_fact(fact, value)
    for op in ops:
        _declared.setdefault(_name(op), {}).update(known)
    _facts_of.cache_clear()


def facts(op: Callable[..., Any]) -> Facts:
    """What is known about an operator; of a function that is none, nothing."""
    op = operator(op)
    return _facts_of(op) if isinstance(op, OpOverload) else Facts()


@functools.cache
def _facts_of(op: OpOverload) -> Facts:
    *packet, which = _names(op._schema)
    name = ".".join(packet)
    return Facts(**{**_said_by_torch(op), **_declared.get(name, {}), **_declared.get(f"{name}.{which}", {})})


def _names(schema: Any) -> tuple[str, str, str]:
    """Namespace, operator and overload."""
    namespace, name = schema.name.split("::")
    return namespace, name, schema.overload_name or "default"


def _said_by_torch(op: OpOverload) -> dict[str, Any]:
    """The facts that an operator's schema and tags state, and torch's table of formulas for operations."""
    schema, tags = op._schema, op.tags
    reduces = "reduction" if torch.Tag.reduction in tags else None
    return {
        "builtin": op.namespace in TORCH_NAMESPACES,
        "view": op.is_view,
        "elementwise": torch.Tag.pointwise in tags,
        "foreach": _is_foreach(schema),
        "reshapes_in_place": torch.Tag.inplace_view in tags,
        "random": torch.Tag.nondeterministic_seeded in tags,
        "dropout": next((a.name for a in schema.arguments if a.name == kinds.DROPOUT), None),
        "kernel": "matmul" if op.overloadpacket in flop_registry else reduces,
    }


def _is_foreach(schema: Any) -> bool:
    tensors = [a for a in schema.arguments if "Tensor" in str(a.type)]
    if not tensors or not _is_list(tensors[0]):
        return False
    return any(map(_is_list, schema.returns)) or any(_is_list(a) and a.is_write for a in tensors)


def _is_list(argument: Any) -> bool:
    return str(argument.type) == "List[Tensor]"


def _name(op: str | Callable[..., Any]) -> str:
    name = op.replace("::", ".") if isinstance(op, str) else op_name(op)
    if name.count(".") not in (1, 2):
        raise UsageError(f"{name!r} does not name an operator: use a name such as aten.mm or aten.mm.default")
    return name


def _require_fact(fact: str, value: Any) -> None:
    if fact not in _NAMES:
        raise UsageError(f"unknown fact {fact!r} about an operator: use one of {', '.join(_NAMES)}")
    if fact in _WORDS and value is not None and value not in _WORDS[fact]:
        raise UsageError(f"{fact}={value!r} is not known: use one of {', '.join(_WORDS[fact])}")
    if fact in _ARGUMENTS and not isinstance(value, tuple):
        raise UsageError(f"{fact}={value!r} is not a tuple of names of arguments: use {fact}=('dim',)")


for _ops, _known in TABLE:
    declare(*_ops, **_known)
