"""Shardwise: how operators may be sharded, found by running them, and whole models sharded by it."""

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
