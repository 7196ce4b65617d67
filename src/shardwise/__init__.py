"""Shardwise: how operators may be sharded, found by running them, and whole models sharded by it."""

from .discover import Found, Policy, Verdict, adversarial, check, discover, synthesize
from .dtensor import audit, install, uninstall
from .errors import UsageError
from .graph import Graph, capture
from .layout import Sharding
from .mesh import Cluster, Mesh
from .placements import Row
from .plan import Plan, plan
from .propagate import propagate
from .rules import Rule, rows, rule
from .runtime import Report, parallelize, shard_map, simulate, transfer, verify
from .solve import solve

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
