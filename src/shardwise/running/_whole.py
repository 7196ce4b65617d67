"""The operators that a rank runs whole, although they were decomposed for planning.

Their parts can be sharded where they cannot. Where the plan has no collective between the parts of a call, a rank runs
all of them on its pieces of the call's arguments: by definition that is the operator on these pieces, in one kernel.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.utils import _pytree as pytree

from ..calls import Call, overload
from ..graph import TENSOR, Whole
from ..planning import Compute, Plan, Value
from ..planning import Entry as ScheduleEntry


@dataclass(frozen=True)
class Recomposed:
    """A call in the place of its parts: `inputs` are its tensors, `outputs` the results that are used, by place."""

    whole: Whole
    inputs: tuple[Value, ...]
    outputs: Mapping[Value, int]

    def __call__(self, tensors: Sequence[Any], retargeted: Callable[[Any], Any]) -> dict[Value, Any]:
        given = iter(tensors)
        leaves = [next(given) if leaf is TENSOR else retargeted(leaf) for leaf in self.whole.leaves]
        args, kwargs = pytree.tree_unflatten(leaves, self.whole.form)
        made = pytree.tree_leaves(Call(overload(self.whole.op), args, kwargs)())
        return {value: made[place] for value, place in self.outputs.items()}

    def __str__(self) -> str:
        made, used = ", ".join(map(str, self.outputs)), ", ".join(map(str, self.inputs))
        return f"{made} = {self.whole.op}({used})"


Entry = ScheduleEntry | Recomposed


def with_whole_calls(plan: Plan, entries: Sequence[ScheduleEntry], gives: Sequence[Value]) -> list[Entry]:
    """The entries of a part of the schedule, calls in the place of their parts where nothing is between these."""
    live = plan.graph.live
    found: list[Entry] = list(entries)
    if live is None or plan.graph.execution != "eager":
        return found
    for name, whole in live.wholes.items():
        parts = _Parts(plan, whole, [e for e in entries if isinstance(e, Compute) and e.node.part_of == name])
        call = parts.call(entries, gives)
        if call is not None:
            *inner, last = parts.replaced
            found = [call if e is last else e for e in found if not any(e is part for part in inner)]
    return found


class _Parts:
    """The parts of a call in one part of the schedule; `replaced` are all but the views of its arguments."""

    def __init__(self, plan: Plan, whole: Whole, members: list[Compute]) -> None:
        self.plan, self.whole, self.members = plan, whole, members
        self.replaced: list[Compute] = []
        made: set[Value] = set()
        for entry in members:
            if not entry.node.facts.view or made.intersection(entry.inputs):
                self.replaced.append(entry)
                made.update(entry.made)

    def call(self, entries: Sequence[ScheduleEntry], gives: Sequence[Value]) -> Recomposed | None:
        """The call that can stand for the parts, if there is one."""
        taken, outputs = self._taken(), self._outputs(entries, gives)
        if len(self.replaced) < 2 or taken is None or outputs is None:
            return None
        tensors = [place for place, leaf in enumerate(self.whole.leaves) if leaf is TENSOR]
        if any(place not in taken for place in tensors):
            return None
        return Recomposed(self.whole, tuple(taken[place] for place in tensors), outputs)

    def _taken(self) -> dict[int, Value] | None:
        """The value of each argument, if the parts use nothing else, and every argument in one layout."""
        made = {value for entry in self.members for value in entry.made}
        layouts, taken = self.plan.schedule.layouts, dict[int, Value]()
        for entry in self.members:
            if entry.choice.local is not None or entry.node.facts.random:
                return None
            for place, value in enumerate(entry.inputs):
                if value in made:
                    continue
                leaf = self.whole.takes.get((entry.node.name, place))
                if leaf is None or layouts[taken.setdefault(leaf, value)] != layouts[value]:
                    return None
        return taken

    def _outputs(self, entries: Sequence[ScheduleEntry], gives: Sequence[Value]) -> dict[Value, int] | None:
        """The results that others use, if they use nothing else of the parts, and that after the last part."""
        made = {value for entry in self.replaced for value in entry.made}
        used = set(made.intersection(gives))
        own, begun = {id(entry) for entry in self.replaced}, 0
        for entry in entries:
            begun += id(entry) in own
            if id(entry) not in own and (outside := made.intersection(entry.used)):
                if begun < len(own):
                    return None
                used |= outside
        places = {value: self.whole.gives.get((value.ref.name, value.ref.output)) for value in used}
        return None if None in places.values() else places  # type: ignore[return-value]
