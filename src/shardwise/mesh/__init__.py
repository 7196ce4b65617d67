"""The mesh of devices a program runs on, and what its links and devices can do."""

from ._cluster import COLLECTIVES, Cluster, Collective, Device, Level, Link
from ._mesh import Mesh

__all__ = ["COLLECTIVES", "Cluster", "Collective", "Device", "Level", "Link", "Mesh"]
