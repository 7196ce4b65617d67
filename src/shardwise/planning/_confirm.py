"""Plans confirmed before they are returned: each distinct call with the rows chosen on all axes is run at a small size.

A choice that an experiment refutes is excluded, and the plan is solved again without it. What no experiment can decide
(a call that does not run at a small size, a random operator) is counted.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..calls import Call
from ..expansion import Choice
from ..experiments import Confirmations
from ..progress import Progress
from ._offers import Offers

if TYPE_CHECKING:
    from ._plan import Plan

# Choices of one call that may be refuted before it is replicated.
_PATIENCE = 4


@dataclass(frozen=True)
class RefutedChoice:
    """A choice that rows allow and an experiment refutes: the call, the choice and what was wrong, as text."""

    call: str
    choice: str
    reason: str

    def __str__(self) -> str:
        return f"{self.call} by {self.choice}: {self.reason}"


@dataclass(frozen=True)
class Confirmation:
    """What experiments said about the calls of a plan: how many distinct ones were confirmed, how many could not be
    decided, and which choices were excluded on the way."""

    confirmed: int
    undecided: int
    refuted: tuple[RefutedChoice, ...] = ()


def confirmed_plan(
    offers: Offers,
    solve: Callable[[], "Plan"],
    progress: Progress,
    confirmations: Confirmations,
) -> "Plan":
    """The plan that `solve` makes, solved again without what experiments refute, until they refute nothing."""
    refuted: list[RefutedChoice] = []
    while True:
        made = solve()
        items = list(_distinct(made))
        outcomes = confirmations.of(items, progress)
        wrong = [
            (item, tried) for item, tried in zip(items, outcomes, strict=True) if tried.outcome == "refuted"
        ]
        if not wrong:
            undecided = sum(tried.outcome == "undecided" for tried in outcomes)
            found = Confirmation(len(items) - undecided, undecided, tuple(refuted))
            return made.noted(confirmation=found)
        for (call, choice), tried in wrong:
            refuted.append(RefutedChoice(str(call), str(choice), tried.reason))
            offers.exclude(call, choice.rows, all_sharded=_times(refuted, str(call)) >= _PATIENCE)


def _times(refuted: list[RefutedChoice], call: str) -> int:
    return sum(found.call == call for found in refuted)


def _distinct(made: "Plan") -> Iterator[tuple[Call, Choice]]:
    """Each kind of call with each choice of it, once."""
    seen: set[Any] = set()
    for node in made.graph.nodes:
        call, choice = made.graph.call(node), made.choices[node.name]
        key = call.signature, choice.rows
        if key not in seen:
            seen.add(key)
            if not all(row.is_replicated for row in choice.rows):
                yield call, choice
