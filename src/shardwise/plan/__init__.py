"""From a graph to the cheapest plan: choices per node, prices, the problem, and its solution explained."""

from ._plan import Choice, Copy, Plan
from ._schedule import Call, Move, Schedule, Value

__all__ = ["Call", "Choice", "Copy", "Move", "Plan", "Schedule", "Value"]
