"""The mesh of devices a program runs on, and what its links and devices can do."""

from ._mesh import Mesh

__all__ = ["Mesh"]
