"""Device meshes, and the speed of devices and of the links between them."""

from ._calibrate import Calibration, calibrate, fit_file, host_of
from ._cluster import DEFAULT_CLUSTER, Cluster, Level
from ._collectives import Timing, Timings, fit_collectives, fit_curve, read_nccl_tests
from ._device import Device
from ._links import COLLECTIVES, Collective, Curve, Link, Piece, Span
from ._matmul import Matmul, Tile
from ._measure import MeasuredBlock, Start, starts, worked_head
from ._mesh import Mesh
from ._picture import cluster_blocks, cluster_numbers

__all__ = [
    "COLLECTIVES",
    "DEFAULT_CLUSTER",
    "Calibration",
    "Cluster",
    "Collective",
    "Curve",
    "Device",
    "Level",
    "Link",
    "Matmul",
    "MeasuredBlock",
    "Mesh",
    "Piece",
    "Span",
    "Start",
    "Tile",
    "Timing",
    "Timings",
    "calibrate",
    "cluster_blocks",
    "cluster_numbers",
    "fit_collectives",
    "fit_curve",
    "fit_file",
    "host_of",
    "read_nccl_tests",
    "starts",
    "worked_head",
]
