"""Proof that a plan computes what the unsharded model computes, on simulated and on real ranks."""

from ._report import Report
from ._spawn import on_ranks
from ._verify import priced_collectives, verify

__all__ = ["Report", "on_ranks", "priced_collectives", "verify"]
