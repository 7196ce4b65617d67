"""Shardwise: how operators may be sharded, found by running them, and whole models sharded by it."""

from .errors import UsageError
from .mesh import Cluster, Mesh
from .placements import Row

__all__ = ["Cluster", "Mesh", "Row", "UsageError"]
