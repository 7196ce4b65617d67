"""The mesh of devices a program runs on, and what its links and devices can do."""

from ._calibrate import Calibration, calibrate, fit_file
from ._cluster import COLLECTIVES, Cluster, Collective, Device, Level, Link
from ._measure import worked_head
from ._mesh import Mesh

__all__ = [
    "COLLECTIVES",
    "Calibration",
    "Cluster",
    "Collective",
    "Device",
    "Level",
    "Link",
    "Mesh",
    "calibrate",
    "fit_file",
    "worked_head",
]
