"""What a plan's values take on the first rank, entry by entry, before anything has run.

A view takes nothing and keeps what it is a view of: memory is free after the last use of any view of it.
"""

from math import prod

from ..graph import is_view
from ..plan import Call, Move, Plan, Value


def predicted_peak(plan: Plan, wide: bool = False) -> int:
    """The most bytes that values take at one time: what is given, what is kept, what is being made."""
    schedule = plan.schedule
    base: dict[Value, Value] = {}  # whose memory each value uses
    users: dict[Value, int] = {}
    now = peak = 0

    def size(value: Value) -> int:
        info = plan.graph.tensor(value.ref)
        itemsize = 8 if wide and info.dtype.is_floating_point else info.dtype.itemsize
        return itemsize * prod(schedule.layouts[value].local_shape(info.shape))

    def take(value: Value, of: Value) -> int:
        base[value] = of
        users[of] = users.get(of, 0) + 1
        return size(of) if users[of] == 1 else 0

    for value in schedule.layouts:
        if not value.copy and value.ref.name in plan.inputs:
            now += take(value, value)
    for entry in schedule.entries:
        viewed = base[entry.used[0]] if _shares(entry) else None
        for value in entry.made:
            now += take(value, viewed or value)
        peak = max(peak, now)
        for value in entry.dead:
            of = base.pop(value)
            users[of] -= 1
            now -= 0 if users[of] else size(of)
    return max(peak, now)


def _shares(entry: Call | Move) -> bool:
    """True if what is made uses the memory of what is given. The first rank's part of a partial is the whole value."""
    if isinstance(entry, Call):
        return is_view(entry.node.overload)
    return all(step.kind == "to_partial" for step in entry.change.steps)
