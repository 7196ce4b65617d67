"""Device meshes, and the speed of devices and of the links between them."""

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
