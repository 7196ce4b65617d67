"""The four levels of propagation: their stages by kind of operation, and their rounds by priority.

`basic` and `aggressive` have one stage: everything, in both directions. `op-priority` has five, each adding to the
last, so that operations which only rename dims are propagated before those that mix them. `user-priority` runs all
five once per priority; dims of a later priority are closed and empty, and their axes are reserved for them.
"""

from collections.abc import Sequence
from typing import Literal, get_args

from ..factors import FactorRule
from ..layout import AxisRef
from ..mesh import Mesh
from ._program import OpKind
from ._state import State
from ._step import BACKWARD, BOTH, FORWARD, NONE

Level = Literal["basic", "aggressive", "op-priority", "user-priority"]
LEVELS: tuple[Level, ...] = get_args(Level)

ALL = "all"
STAGES = (
    "pass-through, single use",
    "pass-through",
    "pass-through factors",
    "all but broadcasts forward",
    ALL,
)


# Operations that only rename dims, and the directions in which they are propagated from the start.
_RENAMING = {"elementwise": BOTH, "reshape": BOTH, "transpose": BOTH, "copy": BOTH, "dynamic_slice": FORWARD}


def stages(level: Level) -> tuple[str, ...]:
    return STAGES if level in ("op-priority", "user-priority") else (ALL,)


def directions(rule: FactorRule, kind: OpKind, reused: bool, stage: str) -> tuple[int, ...]:
    """For each factor, the directions in which it is propagated in a stage. `reused`: an input has other users."""
    return tuple(
        NONE if factor.blocked else _direction(kind, factor.kind == "pass_through", reused, stage)
        for factor in rule.factors
    )


def _direction(kind: OpKind, passes: bool, reused: bool, stage: str) -> int:
    if stage == ALL:
        return BOTH
    way = BACKWARD if kind == "broadcast" else BOTH
    reached = STAGES.index(stage)
    allowed = NONE
    if reached >= 1 or not reused:
        allowed |= _RENAMING.get(kind, NONE)
    if reached >= 3 or (reached >= 2 and passes):
        allowed |= way
    return allowed


def priorities_of(states: Sequence[State]) -> list[int]:
    """The priorities above 0, in the order of their rounds."""
    return sorted({p for state in states for p in state.priorities or () if p})


def first_round(state: State, mesh: Mesh) -> State:
    """A sharding in the round of priority 0: dims of other priorities closed and empty, their axes reserved."""
    if state.priorities is None:
        return state
    later = [bool(priority) for priority in state.priorities]
    aside: list[AxisRef] = list(state.replicated)
    for axes, is_later in zip(state.axes, later, strict=True):
        aside += axes if is_later else ()
    return State(
        tuple(() if is_later else axes for axes, is_later in zip(state.axes, later, strict=True)),
        tuple(closed or is_later for closed, is_later in zip(state.closed, later, strict=True)),
        tuple(sorted(aside, key=lambda axis: (mesh.index(axis.name), axis.pre))),
        state.partial,
        None,
    )


def next_round(state: State, original: State, priority: int) -> State:
    """The sharding with the dims of `priority` restored."""
    axes, closed = list(state.axes), list(state.closed)
    returned: list[AxisRef] = []
    for dim, dim_priority in enumerate(original.priorities or ()):
        if dim_priority == priority:
            axes[dim], closed[dim] = original.axes[dim], original.closed[dim]
            returned += original.axes[dim]
    replicated = tuple(axis for axis in state.replicated if axis not in returned)
    return State(tuple(axes), tuple(closed), replicated, state.partial, None)
