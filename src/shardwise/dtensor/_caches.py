"""DTensor's caches of answers, emptied whenever what answers changes."""

import torch
from torch.distributed.tensor import DTensor


def clear_caches() -> None:
    """As `torch.distributed.tensor.debug` does it, which would load torch's compiler."""
    DTensor._op_dispatcher.sharding_propagator.propagate_op_sharding.cache_clear()
    torch._C._clear_DTensor_sharding_propagator_cache()
