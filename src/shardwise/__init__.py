"""Shardwise: sharding rules of operators, found by experiment, and sharding plans for whole models.

A room is imported when it, or one of its public names, is first used, so `import shardwise` is fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import UsageError

if TYPE_CHECKING:
    from .auditing import audit
    from .dtensor import install, redistribute, uninstall
    from .experiments import Found, Verdict, adversarial, check, discover
    from .forms import communicating
    from .graph import Graph, capture, linear_cross_entropy
    from .layout import Layout, Sharding
    from .mesh import Cluster, Mesh
    from .placements import Row
    from .planning import Elsewhere, Front, Pipeline, Plan, Price, doctor, front, plan, price
    from .propagation import propagate
    from .rules import Rule, hand, rows, rule
    from .running import parallelize, save_checkpoint, shard_map, simulate, transfer
    from .solver import solve
    from .synthesis import Policy, synthesize
    from .verification import Report, verify

__all__ = [
    "Cluster",
    "Elsewhere",
    "Found",
    "Front",
    "Graph",
    "Layout",
    "Mesh",
    "Pipeline",
    "Plan",
    "Policy",
    "Price",
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
    "communicating",
    "discover",
    "doctor",
    "front",
    "hand",
    "install",
    "linear_cross_entropy",
    "parallelize",
    "plan",
    "price",
    "propagate",
    "redistribute",
    "rows",
    "rule",
    "save_checkpoint",
    "shard_map",
    "simulate",
    "solve",
    "synthesize",
    "transfer",
    "uninstall",
    "verify",
]

# Every room, with its names that are public in this package.
_ROOMS: dict[str, tuple[str, ...]] = {
    "display": (),
    "placements": ("Row",),
    "mesh": ("Cluster", "Mesh"),
    "layout": ("Layout", "Sharding"),
    "calls": (),
    "rules": ("Rule", "hand", "rows", "rule"),
    "factors": (),
    "forms": ("communicating",),
    "redistribution": (),
    "expansion": (),
    "experiments": ("Found", "Verdict", "adversarial", "check", "discover"),
    "synthesis": ("Policy", "synthesize"),
    "emission": (),
    "dtensor": ("install", "redistribute", "uninstall"),
    "auditing": ("audit",),
    "graph": ("Graph", "capture", "linear_cross_entropy"),
    "propagation": ("propagate",),
    "solver": ("solve",),
    "planning": ("Elsewhere", "Front", "Pipeline", "Plan", "Price", "doctor", "front", "plan", "price"),
    "running": ("parallelize", "save_checkpoint", "shard_map", "simulate", "transfer"),
    "verification": ("Report", "verify"),
    "book": (),
    "report": (),
    "cli": (),
}
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name in _ROOM_OF:
            found = getattr(import_module(f"{__name__}.{_ROOM_OF[name]}"), name)
        elif name in _ROOMS:
            found = import_module(f"{__name__}.{name}")
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = found
        return found

    def __dir__() -> list[str]:
        rooms = (room for room in _ROOMS if "." not in room)
        return sorted({*globals(), *rooms, *__all__})
