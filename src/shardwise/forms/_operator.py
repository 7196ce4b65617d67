"""How one operator runs by a form: on its rank alone, or in a group of ranks that communicate."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..calls import Call
from ._group import Group
from ._group import Run as GroupRun
from ._piece import Held

# What one rank runs for a call, which holds the rank's local tensors and otherwise the arguments of the whole call.
Run = Callable[[Call, Held], Any]
# The same for an operator that runs as it is with other arguments: these, by name.
Changes = Callable[[Call, Held], dict[str, Any]]
# The same for a call in which the rank communicates with the others of its group.
InGroup = Callable[[Call, Group], GroupRun]
# A dim of an argument that is one tensor.
Dim = tuple[str, int]


@dataclass(frozen=True)
class Operator:
    """How one operator runs by a form, and what may be combined with that.

    With `changes` it runs as it is with other arguments: for the next axes of the mesh a plain call of it is left. With
    `run` or `in_group` it does not, and the rows of the whole call are those of the next axes. A pair of dims in
    `leads` says that positions in the first decide which of the second a rank needs: after an axis that shards the
    first alone, no axis may shard the second. `varies` says that ranks with pieces of equal sizes may work differently
    long: the price is then that of what the form runs, not that of a call of the operator. `less_nan` says
    that its result may be a number where that of the whole call is NaN: it leaves out what that multiplies by zero, or
    does not subtract infinities where that does. `other_infinities` says that where one of them is infinite or NaN the
    other need not be the same: they sum in another order. `by_values` says that what ranks send each other depends on
    values, so that a program cannot have the form's text in it: it calls the form. `along_any` says that it depends on
    how much ranks have and not on which part of the whole: the rows of several axes need not shard the same dim.
    """

    run: Run | None = None
    changes: Changes | None = None
    leads: tuple[tuple[Dim, Dim], ...] = ()
    in_group: InGroup | None = None
    rows_whole: tuple[str, ...] = ()
    varies: bool = False
    less_nan: bool = False
    other_infinities: bool = False
    by_values: bool = False
    along_any: bool = False

    def __call__(self, call: Call, held: Held) -> Any:
        if self.run is not None:
            return self.run(call, held)
        assert self.changes is not None
        return call(**self.changes(call, held))
