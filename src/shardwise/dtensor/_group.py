"""The collectives of communicating forms on real ranks, by PyTorch's functional collectives."""

from collections.abc import Callable, Sequence

import torch.distributed._functional_collectives as funcol
from torch import Tensor, fx
from torch.distributed.device_mesh import DeviceMesh
from torch.utils._python_dispatch import _disable_current_modes

from ..forms import Request
from ._steps import WAIT
from ._versions import all_gather_single, reduce_scatter_single


def begin_along(device_mesh: DeviceMesh, axes: Sequence[int]) -> Callable[[Request], None]:
    """How the ranks along an axis of a mesh, or along several together, begin a collective of a form."""
    group = _group(device_mesh, axes)

    def begin(request: Request) -> None:
        sent = request.sent.contiguous()  # torch 2.11 takes no others
        if request.kind == "all_gather":
            request.arriving = all_gather_single(sent.unsqueeze(0), 0, group)
        elif request.kind == "reduce_scatter":
            request.arriving = reduce_scatter_single(sent, request.reduction, 0, group)
        elif request.kind == "all_reduce":
            request.arriving = funcol.all_reduce(sent.view(-1), request.reduction, group)
        else:
            outgoing, incoming = map(list, request.counts)
            request.arriving = funcol.all_to_all_single(sent, incoming, outgoing, group)

    return begin


def _group(device_mesh: DeviceMesh, axes: Sequence[int]) -> tuple[DeviceMesh, int]:
    if len(axes) == 1:
        return device_mesh, axes[0]
    names = device_mesh.mesh_dim_names
    assert names is not None
    with _disable_current_modes():  # that of a trace, in which the ranks of a mesh are no part
        return device_mesh[tuple(names[axis] for axis in axes)]._flatten(), 0


def arrived(request: Request) -> Tensor:
    """What has arrived of a collective that was begun, once it is waited for."""
    tensor = request.arriving
    if isinstance(tensor, funcol.AsyncCollectiveTensor):
        tensor = tensor.wait()
    return tensor.view(request.arriving_shape)


def with_late_waits(nodes: Sequence[fx.Node]) -> list[fx.Node]:
    """Traced nodes in the order in which they shall run: a collective is waited for just before its first user. (While
    it is traced, torch waits at once.)"""
    waits = {node for node in nodes if node.target is WAIT}
    ordered: list[fx.Node] = []
    for node in nodes:
        if node not in waits:
            needed = [given for given in node.all_input_nodes if given in waits]
            ordered += needed
            waits.difference_update(needed)
            ordered.append(node)
    return [*ordered, *(node for node in nodes if node in waits)]
