"""Calls of which autograd keeps no record need not pass through it: a tenth of what a host needs to start a call, and
half of what it needs for a collective, whose autograd is written in Python."""

from contextlib import AbstractContextManager

import torch


def below_autograd() -> AbstractContextManager[None]:
    """Within, calls go to their kernels directly, and nothing that they return has a gradient."""
    return torch._C._AutoDispatchBelowAutograd()
