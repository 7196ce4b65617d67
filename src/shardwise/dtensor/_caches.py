"""DTensor's caches of sharding decisions, emptied whenever its rules change."""

import torch
from torch.distributed.tensor import DTensor


def clear_caches() -> None:
    """Like that of `torch.distributed.tensor.debug`, importing which would load torch's compiler."""
    DTensor._op_dispatcher.sharding_propagator.propagate_op_sharding.cache_clear()
    torch._C._clear_DTensor_sharding_propagator_cache()
