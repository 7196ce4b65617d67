"""Running a plan: simulated ranks, real ranks, and the proof that both equal the unsharded model."""

from ._report import Report
from ._simulate import Pieces, Simulated, Simulation, simulate
from ._verify import verify

__all__ = ["Pieces", "Report", "Simulated", "Simulation", "simulate", "verify"]
