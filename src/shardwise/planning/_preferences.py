"""What decides between plans that take equally long: less memory over the step, then fewer redistributions.

Both are added to the cost of choices, in amounts that together are too small to matter beside time. So the solver needs
no second search, and what they add at most is taken off its bounds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isclose
from typing import TYPE_CHECKING

import numpy as np

from ..solver import FORBIDDEN
from ._items import Item, Tie
from ._memory import Memory

if TYPE_CHECKING:
    from ._plan import Plan

SHARE = 1e-7  # of the time of the cheapest kernels, which all preferences together do not exceed
SAME = 1e-6  # relative difference of times up to which plans take equally long


@dataclass(frozen=True, eq=False)
class Preferences:
    """Units of cost by item and choice (none for items that hold nothing), and the most that a plan can have."""

    of_item: dict[int, np.ndarray]
    most: int


def preferences(items: Sequence[Item], ties: Sequence[Tie], held: Memory) -> Preferences:
    """What each choice of an item holds on average over the step, as units of cost."""
    areas = {
        place: sum(holding.usage * float(holding.end - holding.begin) for holding in holdings)
        for place, holdings in held.held.items()
    }
    largest = sum(float(np.max(area)) for area in areas.values())
    floor = sum(int(item.cost.min()) for item in items if item.cost.min() < FORBIDDEN)
    weight = SHARE * floor / largest if largest else 0.0
    units = {place: np.floor(area * weight).astype(np.int64) for place, area in areas.items()}
    return Preferences(units, sum(int(each.max()) for each in units.values()) + len(ties))


def preferred(plan: "Plan", other: "Plan") -> "Plan":
    """The faster of two plans; where they take equally long the smaller, then the one with fewer collectives."""
    if not isclose(plan.cost.seconds, other.cost.seconds, rel_tol=SAME):
        return min(plan, other, key=lambda each: each.cost.seconds)
    return min(plan, other, key=lambda each: (each.cost.peak, _collectives(each)))


def _collectives(plan: "Plan") -> int:
    return sum(len(move.change.collectives) for move in plan.schedule.moves)
