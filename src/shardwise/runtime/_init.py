"""The weights of a sharded model: each rank's pieces of real ones, or of ones that are drawn only now.

A model on the meta device has no weights. Its modules are filled one at a time, as they would have filled themselves,
from a seed that all ranks share; each rank keeps its pieces and drops the rest before the next module.
"""

import copy
from collections.abc import Callable, Iterator
from typing import Any
from zlib import crc32

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..errors import UsageError
from ..plan import Plan
from ._module import piece_of

Init = Callable[[nn.Module], Any]


def local_state(
    plan: Plan, module: nn.Module, rank: int, device: str, init: Init | str | None, seed: int
) -> dict[str, Tensor]:
    """This rank's piece of every parameter and buffer, by name. Real weights are those of the first rank."""
    entries = {e.target: e for e in plan.graph.inputs if e.role in ("parameter", "buffer")}
    local: dict[str, Tensor] = {}
    for name, tensor in _drawn(module, device, init, seed):
        if name in entries:
            local[name] = piece_of(tensor, plan.inputs[entries[name].name], rank)
    for name, tensor in sorted({**dict(module.named_parameters()), **dict(module.named_buffers())}.items()):
        if name in entries and not tensor.is_meta:
            whole = tensor.detach().to(device, copy=True)
            dist.broadcast(whole, src=0)
            local[name] = piece_of(whole, plan.inputs[entries[name].name], rank)
    missing = sorted(set(entries) - set(local))
    if missing and init == "empty":
        for name in missing:
            layout, info = plan.inputs[entries[name].name], entries[name].tensor
            local[name] = torch.empty(layout.local_shape(info.shape, rank), dtype=info.dtype, device=device)
        missing = []
    if missing:
        raise UsageError(
            f"{', '.join(missing[:3])} {'has' if len(missing) == 1 else 'have'} no values: the model is on the meta "
            "device; give `init`, a function that fills a module, or init='empty' and load a checkpoint"
        )
    return local


def _drawn(
    module: nn.Module, device: str, init: Init | str | None, seed: int
) -> Iterator[tuple[str, Tensor]]:
    """Weights of modules on the meta device, one module at a time."""
    if init == "empty":
        return
    for path, part in module.named_modules():
        names = [
            n for n, t in (*part._parameters.items(), *part._buffers.items()) if t is not None and t.is_meta
        ]
        if not names:
            continue
        filled = _filled(module, part, device, init, seed ^ crc32(path.encode()))
        for name in names:
            tensor = getattr(filled, name).detach()
            if not (tensor.is_floating_point() and bool(tensor.isnan().any())):
                yield f"{path}.{name}" if path else name, tensor


def _filled(model: nn.Module, part: nn.Module, device: str, init: Init | str | None, seed: int) -> nn.Module:
    """A copy of a module alone with real memory, filled by itself or by `init`. What nobody fills stays NaN."""
    twin = copy.copy(part)
    twin._parameters = {
        n: None if t is None else nn.Parameter(_unset(t, device), t.requires_grad)
        for n, t in part._parameters.items()
    }
    twin._buffers = {n: None if t is None else _unset(t, device) for n, t in part._buffers.items()}
    own = getattr(model, "_init_weights", None)
    with torch.random.fork_rng(), torch.no_grad(), torch.device(device):
        torch.manual_seed(seed)
        if callable(init):
            init(twin)
        elif callable(own):
            own(twin)
        elif hasattr(twin, "reset_parameters"):
            twin.reset_parameters()
    return twin


def _unset(tensor: Tensor, device: str) -> Tensor:
    if not tensor.is_meta:
        return tensor.detach().to(device)
    if tensor.is_floating_point():
        return torch.full(tensor.shape, torch.nan, dtype=tensor.dtype, device=device)
    return torch.zeros(tensor.shape, dtype=tensor.dtype, device=device)
