"""Shardwise: how operators may be sharded, found by running them, and whole models sharded by it.

A room is imported when one of its names is first used, so that a command that needs no torch starts at once.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .auditing import audit
    from .dtensor import install, uninstall
    from .errors import UsageError
    from .experiments import Found, Policy, Verdict, adversarial, check, discover
    from .graph import Graph, capture
    from .layout import Sharding
    from .mesh import Cluster, Mesh
    from .placements import Row
    from .planning import Plan, plan
    from .propagation import propagate
    from .rules import Rule, rows, rule
    from .running import parallelize, shard_map, simulate, transfer
    from .solver import solve
    from .synthesis import synthesize
    from .verification import Report, verify

_ROOMS = {
    "auditing": ("audit",),
    "dtensor": ("install", "uninstall"),
    "errors": ("UsageError",),
    "experiments": ("Found", "Policy", "Verdict", "adversarial", "check", "discover"),
    "graph": ("Graph", "capture"),
    "layout": ("Sharding",),
    "mesh": ("Cluster", "Mesh"),
    "placements": ("Row",),
    "planning": ("Plan", "plan"),
    "propagation": ("propagate",),
    "rules": ("Rule", "rows", "rule"),
    "running": ("parallelize", "shard_map", "simulate", "transfer"),
    "solver": ("solve",),
    "synthesis": ("synthesize",),
    "verification": ("Report", "verify"),
}
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names}

__all__ = [
    "Cluster",
    "Found",
    "Graph",
    "Mesh",
    "Plan",
    "Policy",
    "Report",
    "Row",
    "Rule",
    "Sharding",
    "UsageError",
    "Verdict",
    "adversarial",
    "audit",
    "capture",
    "check",
    "discover",
    "install",
    "parallelize",
    "plan",
    "propagate",
    "rows",
    "rule",
    "shard_map",
    "simulate",
    "solve",
    "synthesize",
    "transfer",
    "uninstall",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _ROOM_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f".{_ROOM_OF[name]}", __name__), name)
    return value


def __dir__() -> list[str]:
    return __all__
