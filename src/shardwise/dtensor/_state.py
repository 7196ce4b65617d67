"""All changes of the bridge to DTensor, in one object: what is in use, and what was there before.

Rules are entries in DTensor's tables, the search and extensions are functions that replace DTensor's: which of them
follows from what is in use here (`_hooks.refresh`). `reset` restores everything.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from torch._ops import OpOverload
from torch.distributed.tensor._ops.single_dim_strategy import _SingleDimStrategyInfo

from ..calls import Call
from ..expansion import Choice
from ..mesh import Cluster
from ..placements import Row

# Marks an operator that a table of DTensor had no entry for.
MISSING: Any = object()


class RuleLike(Protocol):
    """What `register` needs of a rule: the operator, a name for messages, and rows for a call.

    Tensors in a call are meta tensors; rows count tensors in the order of the operator's schema, those in
    lists one by one. A rule that needs no more than shapes may also have `rows_by_shape(args, kwargs, outputs)`,
    which gets PyTorch's tensor metadata unchanged and the shapes of the outputs. `rows_left(call)` may return the
    rows of the local call that earlier axes of a mesh leave, None where they are those of the whole call.
    """

    @property
    def op(self) -> Any: ...

    @property
    def name(self) -> str: ...

    def rows(self, *args: Any, **kwargs: Any) -> list[Row]: ...


@dataclass
class RuleInfo(_SingleDimStrategyInfo):
    """PyTorch's record of a registered rule; `rows` is our form of it, `left` the rows of the local call that earlier
    axes of a mesh leave."""

    rows: Callable[[Any, Any, Any], list[Row]] | None = None
    left: Callable[[Call], Sequence[Row] | None] | None = None


@dataclass(frozen=True)
class Registered:
    """A rule in use; `replaces` says that it is used alone where DTensor has one too."""

    rule: RuleLike
    before: tuple[tuple[dict[Any, Any], Any], ...]  # DTensor's tables, and the entry of each for the operator
    replaces: bool = True


@dataclass(frozen=True, eq=False)
class Search:
    """A use of the search, with prices of a cluster."""

    cluster: Cluster


@dataclass(frozen=True)
class Replaced:
    """A function of torch that one of ours replaces; `own` says that it was an attribute of its owner itself, and not
    of its class."""

    original: Callable[..., Any]
    own: bool


@dataclass
class Bridge:
    """What is in use. If it is empty, DTensor is unchanged."""

    rules: dict[OpOverload, Registered] = field(default_factory=dict)
    # Of those rules, the ones that extend or replace DTensor's own.
    extensions: dict[OpOverload, RuleInfo] = field(default_factory=dict)
    # Operators that DTensor runs by a handler of ours.
    handlers: list[OpOverload] = field(default_factory=list)
    search: Search | None = None
    book: Literal["extending", "replacing"] | None = None
    # Whether a choice for a call may be used, which experiments decide; None where they are not asked for.
    confirms: Callable[[Call, Choice], bool] | None = None
    functions: dict[tuple[Any, str], Replaced] = field(default_factory=dict)
    # A copy of DTensor's propagator that has the extensions and no other rule.
    propagator: Any = None

    def original(self, owner: Any, name: str) -> Callable[..., Any]:
        """The function that ours replaced."""
        return self.functions[owner, name].original


bridge = Bridge()
