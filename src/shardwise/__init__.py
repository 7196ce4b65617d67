"""Shardwise: how operators may be sharded, found by running them, and whole models sharded by it."""

from .discover import Found, Policy, Verdict, adversarial, check, discover
from .errors import UsageError
from .layout import Sharding
from .mesh import Cluster, Mesh
from .placements import Row
from .propagate import propagate
from .solve import solve

__all__ = [
    "Cluster",
    "Found",
    "Mesh",
    "Policy",
    "Row",
    "Sharding",
    "UsageError",
    "Verdict",
    "adversarial",
    "check",
    "discover",
    "propagate",
    "solve",
]
