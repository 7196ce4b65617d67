"""DTensors whose pieces are in the memory of the host, whatever the device of their mesh is.

`DTensor.from_local` moves a piece to the device of the mesh. Parameters that FSDP2 offloads are made as here.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

from ..layout import Layout


def dtensor_on_host(local: Tensor, layout: Layout, device_mesh: DeviceMesh, shape: Sequence[int]) -> DTensor:
    """The DTensor with this rank's piece on the host, in memory that a GPU copies at the rate of its link."""
    piece = local.detach()
    if device_mesh.device_type == "cuda":  # which copies from and to pinned memory several times as fast
        piece = torch.empty_like(piece, device="cpu", pin_memory=True).copy_(piece)
    else:
        piece = piece.cpu()
    strides = tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))
    meta = TensorMeta(torch.Size(shape), strides, piece.dtype)
    spec = DTensorSpec(device_mesh, tuple(layout.to_placements()), tensor_meta=meta)
    return DTensor(piece, spec, requires_grad=False)
