"""Parameters with a home on this rank: copies that are held through a step, and gradients that are added up.

Copies are made when a step begins, which is at the first forward after the last backward of the step before; calls
without gradients between steps make their own. Every backward adds to the sums; that of a step's last pass reduces them
to the home's layout, so that autograd, and then the optimizer, gets them as ordinary gradients, and lets go of the
copies. So it is where gradients are added up in a wider dtype than the parameter's, to which they are cast then.
Nothing depends on when or how parameters are written between steps.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from ..dtensor import local_of, run_chain
from ..errors import UsageError
from ..graph import Input
from ..planning import OnceMove, Plan
from ._pieces import as_dtensor


class Held:
    """What one rank holds, beside the parameters themselves, for those that a plan gives a home."""

    def __init__(self, plan: Plan, device_mesh: DeviceMesh, rank: int) -> None:
        self.plan, self.device_mesh, self.rank = plan, device_mesh, rank
        self.names = plan.once.names
        self._gathers = {move.name: move for move in plan.once.gathers}
        graph = plan.graph
        values = {name: graph.gradients[self._parameter(name).target] for name in self.names}
        self._infos = {name: graph.tensor(value) for name, value in values.items() if value is not None}
        self._reductions = {move.name: move for move in plan.once.reductions}
        self._on_host = frozenset(plan.on_host)
        self._copies: dict[str, Tensor] = {}
        self._sums: dict[str, Tensor] = {}
        self._seen: list[Any] = []  # how the parameters were when the copies were made
        self._passes = 0  # whose gradients are in the sums

    def slots(self, parameters: Mapping[str, DTensor]) -> tuple[Tensor, ...]:
        """Tensors without memory of their own in the place of parameters: the gradients of a pass are given to them,
        since what a pass begins from and ends with may differ in shape."""
        return _Slots.apply(self, *(parameters[name] for name in self.names)) if self.names else ()

    @torch.no_grad()
    def locals(self, parameters: Mapping[str, DTensor], gradients: bool) -> dict[str, Tensor]:
        """What a pass begins from, by name in the graph; `gradients` says whether it is one of a step."""
        homes = {name: local_of(parameters[name]) for name in self.names}
        versions = [(id(parameters[name]), parameters[name]._version) for name in self.names]
        if not self._passes:
            self._copies.clear()
            self._copies = {name: self._moved(move, homes[name]) for name, move in self._gathers.items()}
        elif versions != self._seen:
            raise UsageError(
                f"parameters were changed after {self._passes} of the {self.plan.micro_batches} passes of a step: "
                "run the optimizer after the last, or after reduce_gradients()"
            )
        self._seen = versions
        held = {name: local.detach() for name, local in {**homes, **self._copies}.items()}
        if not self._passes and not gradients:
            self._copies.clear()
        return held

    def empty(self) -> tuple[Tensor, ...]:
        layouts, device = self.plan.once.accumulated, self.device_mesh.device_type
        return tuple(
            torch.empty((), dtype=info.dtype, device=device).expand(
                layouts[name].local_shape(info.shape, self.rank)
            )
            for name, info in self._infos.items()
        )

    def gradients(self, made: Sequence[Tensor | None]) -> list[DTensor | None]:
        """The gradients that parameters get from a pass whose own are these: none while they are added up."""
        self._passes += 1
        last = self._passes == self.plan.micro_batches
        found: list[DTensor | None] = []
        for name, gradient in zip(self.names, made, strict=True):
            if name in self._reductions:
                self._add(name, gradient)
                gradient = self._reduced(name) if last else None
            found.append(None if gradient is None else self._at_home(name, gradient))
        if last:
            self.reset()
        return found

    def reduced(self) -> dict[str, DTensor]:
        """The sums of the passes so far as gradients, after which a step begins anew."""
        found = {name: self._at_home(name, self._reduced(name)) for name in self.names if name in self._sums}
        self.reset()
        return found

    def reset(self) -> None:
        """Let go of the sums and the copies."""
        self._passes = 0
        self._sums.clear()
        self._copies.clear()

    def _add(self, name: str, gradient: Tensor | None) -> None:
        if gradient is None:
            return
        if name in self._sums:
            self._sums[name].add_(gradient)
        else:
            alone = self.plan.micro_batches == 1
            self._sums[name] = gradient if alone else gradient.clone()

    def _reduced(self, name: str) -> Tensor | None:
        return self._moved(self._reductions[name], self._sums.pop(name)) if name in self._sums else None

    def _moved(self, move: OnceMove, local: Tensor) -> Tensor:
        with torch.no_grad():
            local = local.to(self.device_mesh.device_type)
            return run_chain(local, move.change, self.device_mesh, move.tensor.shape).to(move.dtype)

    def _at_home(self, name: str, local: Tensor) -> DTensor:
        shape, on_host = self._parameter(name).tensor.shape, name in self._on_host
        return as_dtensor(local, self.plan.home(name), self.device_mesh, shape, on_host=on_host)

    def _parameter(self, name: str) -> Input:
        entry = self.plan.graph[name]
        assert isinstance(entry, Input)
        return entry


class _Slots(torch.autograd.Function):
    """Its backward turns the gradients of a pass into those of a step."""

    @staticmethod
    def forward(ctx: Any, held: Held, *homes: DTensor) -> tuple[Tensor, ...]:
        ctx.held = held
        ctx.set_materialize_grads(False)
        return held.empty()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        return None, *ctx.held.gradients(gradients)
