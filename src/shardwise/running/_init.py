"""The weights of a sharded model: each rank's pieces of existing weights, of a checkpoint, or of weights that are
initialised here.

A model on the meta device has no weights. Its modules are initialised one at a time, by their own initialisation,
from a seed that all ranks share; each rank keeps its pieces and drops the rest before the next module.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Set
from typing import Any
from zlib import crc32

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..errors import UsageError
from ..graph import Input
from ..layout import Layout
from ._agree import agreed, from_first
from ._pieces import piece_of

Init = Callable[[nn.Module], Any]


def local_state(
    entries: Mapping[str, Input],
    homes: Mapping[str, Layout],
    module: nn.Module,
    rank: int,
    device: str,
    init: Init | str | None,
    seed: int,
    loaded: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    """This rank's piece of every parameter and buffer of which it has one (`homes`), by name: those that are loaded,
    and of others, where a tensor has values on the first rank, these. `entries` are all, the same on every rank."""
    held = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    real = from_first(
        [name for name in sorted(entries) if name in held and not held[name].is_meta and name not in loaded]
    )

    def drawn() -> dict[str, Tensor]:
        wanted = homes.keys() - set(real) - loaded.keys()
        layouts = {name: homes[name] for name in wanted}
        if init == "empty":
            infos = {name: entries[name].tensor for name in wanted}
            shapes = {name: layouts[name].local_shape(info.shape, rank) for name, info in infos.items()}
            return {n: torch.empty(shapes[n], dtype=infos[n].dtype, device=device) for n in wanted}
        filled = _drawn(module, device, init, seed)
        made = {name: piece_of(tensor, layouts[name], rank) for name, tensor in filled if name in wanted}
        _require_all(wanted - made.keys())
        return made

    local = agreed("initialising the weights", drawn)
    for name in real:
        own = held[name].detach()
        whole = torch.empty_like(own, device=device) if own.is_meta else own.to(device, copy=True)
        dist.broadcast(whole, src=0)
        if name in homes:
            local[name] = piece_of(whole, homes[name], rank)
    return local | dict(loaded)


def _require_all(missing: Set[str]) -> None:
    if missing:
        raise UsageError(
            f"{', '.join(sorted(missing)[:3])} {'has' if len(missing) == 1 else 'have'} no values: the model is on the "
            "meta device; give `init`, a function that initialises a module, or init='empty' and load a checkpoint"
        )


def _drawn(
    module: nn.Module, device: str, init: Init | str | None, seed: int
) -> Iterator[tuple[str, Tensor]]:
    """Weights of modules on the meta device, one module at a time; tensors that nothing initialises are left out."""
    for path, part in module.named_modules():
        names = [
            n for n, t in (*part._parameters.items(), *part._buffers.items()) if t is not None and t.is_meta
        ]
        if not names:
            continue
        twin = _with_memory(part, device)
        unset = {name: getattr(twin, name) for name in names}
        _fill(twin, module, device, init, seed ^ crc32(path.encode()))
        for name in names:
            tensor = getattr(twin, name)
            if tensor is not unset[name] or _is_set(tensor):
                yield f"{path}.{name}" if path else name, tensor.detach()


def _with_memory(part: nn.Module, device: str) -> nn.Module:
    """A copy of a module, without its children, whose tensors have uninitialised memory of their own."""
    twin = copy.copy(part)
    twin._parameters = {
        n: None if t is None else nn.Parameter(_unset(t, device), t.requires_grad)
        for n, t in part._parameters.items()
    }
    twin._buffers = {n: None if t is None else _unset(t, device) for n, t in part._buffers.items()}
    return twin


def _fill(twin: nn.Module, model: nn.Module, device: str, init: Init | str | None, seed: int) -> None:
    """Initialise a module: by `init`, by the model's own way of initialising its parts, or by its own method."""
    own = getattr(model, "_init_weights", None)
    with torch.random.fork_rng(), torch.no_grad(), torch.device(device):
        torch.manual_seed(seed)
        if callable(init):
            init(twin)
        elif callable(own):
            own(twin)
        elif hasattr(twin, "reset_parameters"):
            twin.reset_parameters()


def _unset(tensor: Tensor, device: str) -> Tensor:
    """Memory for a tensor that has none, marked as uninitialised: by NaN where the dtype has it."""
    if not tensor.is_meta:
        return tensor.detach().to(device)
    if tensor.is_floating_point() or tensor.is_complex():
        return torch.full(tensor.shape, torch.nan, dtype=tensor.dtype, device=device)
    return torch.zeros(tensor.shape, dtype=tensor.dtype, device=device)


def _is_set(tensor: Tensor) -> bool:
    """Whether memory from `_unset` was initialised. Integers have no NaN: for them, whether they were written to."""
    if tensor.is_floating_point() or tensor.is_complex():
        return not bool(tensor.isnan().any())
    return tensor._version > 0
