"""From a graph to the cheapest plan: choices per node, prices, the problem, and its solution explained."""

from ._evaluate import Cost
from ._make import Planner, plan
from ._plan import Choice, Copy, Plan
from ._schedule import Call, Move, Schedule, Value

__all__ = [
    "Call",
    "Choice",
    "Copy",
    "Cost",
    "Move",
    "Plan",
    "Planner",
    "Schedule",
    "Value",
    "plan",
]
