"""Shardwise: how operators may be sharded, found by running them, and whole models sharded by it."""

from .discover import Found, Policy, Verdict, adversarial, check, discover
from .errors import UsageError
from .mesh import Mesh
from .placements import Row

__all__ = ["Found", "Mesh", "Policy", "Row", "UsageError", "Verdict", "adversarial", "check", "discover"]
