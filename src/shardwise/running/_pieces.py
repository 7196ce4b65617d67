"""A rank's piece of a tensor, and the DTensor of which it is the piece."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from ..dtensor import dtensor_on_host
from ..layout import Layout


def as_dtensor(
    local: Tensor, layout: Layout, device_mesh: DeviceMesh, shape: Sequence[int], *, on_host: bool = False
) -> DTensor:
    """The DTensor of which this is a piece; one `on_host` has its pieces in the memory of the host."""
    if on_host:
        return dtensor_on_host(local, layout, device_mesh, shape)
    strides = tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))
    return DTensor.from_local(
        local, device_mesh, layout.to_placements(), run_check=False, shape=torch.Size(shape), stride=strides
    )


def piece_of(tensor: Tensor, layout: Layout, rank: int) -> Tensor:
    """The rank's piece of a tensor; a copy if it is smaller than the tensor."""
    piece = layout.piece(tensor, rank)
    return piece if piece.shape == tensor.shape else piece.clone(memory_format=torch.contiguous_format)
