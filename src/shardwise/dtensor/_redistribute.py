"""Changing the layout of a DTensor by the cheapest chain of steps, and reading the layouts of DTensors."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec
from torch.distributed.tensor.placement_types import Placement, _StridedShard

from ..errors import UsageError, require
from ..layout import Layout
from ..mesh import DEFAULT_CLUSTER, Cluster, Mesh
from ..placements import is_partial
from ..redistribution import Chain, Prices
from ._steps import run_step

_KNOWN = (Replicate, Shard, _StridedShard, Partial)


def layout_of(tensor: DTensor) -> Layout:
    """The layout of a DTensor, its nesting order included."""
    return layout_of_spec(tensor._spec)


def layout_of_spec(spec: DTensorSpec) -> Layout:
    mesh = Mesh.from_device_mesh(spec.mesh)
    if spec.use_strided_shard_as_shard_order:
        return Layout(mesh, spec.placements)
    order = tuple(axis for entry in spec.shard_order for axis in entry.mesh_dims)
    return Layout(mesh, spec.placements, order)


def is_plain(spec: DTensorSpec) -> bool:
    """True if a layout can represent the spec: known placements and plain integers for sizes.

    A masked partial, for example, holds data that a layout does not have.
    """
    meta = spec.tensor_meta
    return (
        all(is_plain_placement(p) for p in spec.placements)
        and meta is not None
        and all(isinstance(size, int) for size in meta.shape)
    )


def is_plain_placement(placement: Placement) -> bool:
    return type(placement) in _KNOWN


def redistribute(
    tensor: DTensor,
    placements: Layout | Sequence[Placement] | str,
    *,
    cluster: Cluster | str = DEFAULT_CLUSTER,
) -> DTensor:
    """The tensor redistributed on its mesh to `placements`, by the steps that are cheapest on the cluster.

    Unlike `DTensor.redistribute` this runs an all-to-all on gloo too, exchanges whole pieces between ranks
    where that is enough, and makes integers partial exactly. Gradients do not pass through it; inside
    `use_search()` DTensor's own `redistribute` runs the same steps and has gradients.
    """
    require(tensor, DTensor, "tensor", "a DTensor")
    target = Layout.of(placements, Mesh.from_device_mesh(tensor.device_mesh))
    if not is_plain(tensor._spec):
        raise UsageError(f"{tensor._spec} cannot be redistributed: it has placements other than R, S and P")
    prices = Prices(cluster)
    chain = prices.chain(layout_of(tensor), target, tuple(tensor.shape), tensor.dtype.itemsize)
    local = run_chain(tensor._local_tensor, chain, tensor.device_mesh, tensor.shape)
    return DTensor.from_local(
        local,
        tensor.device_mesh,
        target.to_placements(),
        run_check=False,
        shape=tensor.shape,
        stride=tensor.stride(),
    )


def local_of(tensor: DTensor) -> Tensor:
    """This rank's local tensor of a DTensor; without gradients no view is made of it."""
    return _Local.apply(tensor) if torch.is_grad_enabled() else tensor._local_tensor


class _Local(torch.autograd.Function):
    """What `DTensor.to_local` is, with gradients that have the strides of the tensor.

    Torch's own have strides that follow from the local ones as if shards were even. Of uneven ones autograd then keeps
    a copy, and in torch 2.11 one that is gathered on every rank."""

    @staticmethod
    def forward(ctx: Any, tensor: DTensor) -> Tensor:
        local = tensor._local_tensor
        ctx.spec, ctx.strides = tensor._spec, local.stride()
        return local.view_as(local)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> DTensor:
        spec = ctx.spec
        if gradient.stride() != ctx.strides:
            gradient = gradient.contiguous()
        if not any(map(is_partial, spec.placements)):
            return DTensor(gradient, spec, requires_grad=False)
        placements = [Replicate() if is_partial(placement) else placement for placement in spec.placements]
        return DTensor.from_local(
            gradient, spec.device_mesh, placements, run_check=False, shape=spec.shape, stride=spec.stride
        )


def run_chain(local: Tensor, chain: Chain, device_mesh: Any, shape: Sequence[int]) -> Tensor:
    """This rank's part in all steps of a chain."""
    for step in chain.steps:
        local = run_step(local, step, device_mesh, shape)
    return local
