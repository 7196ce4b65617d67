"""The mesh of devices a program runs on, and what its links and devices can do."""

from ._calibrate import Calibration, calibrate, fit_file
from ._cluster import COLLECTIVES, DEFAULT_CLUSTER, Cluster, Collective, Device, Level, Link
from ._measure import worked_head
from ._mesh import Mesh

__all__ = [
    "COLLECTIVES",
    "DEFAULT_CLUSTER",
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
