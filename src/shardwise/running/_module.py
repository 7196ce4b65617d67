"""`Sharded`: a model run by its plan, an `nn.Module` whose parameters are DTensors under their old names."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from ..errors import UsageError
from ..graph import Graph, Input, active_autocast
from ..layout import Layout
from ..planning import Plan
from ._agree import announced
from ._emit import RankProgram
from ._pieces import as_dtensor
from ._shapes import Shapes
from ._step import Place, Step


class Holder(nn.Module):
    """A module that has parameters and buffers of plans as DTensors, under their old names."""

    def hold(
        self,
        entry: Input,
        local: Tensor,
        layout: Layout,
        device_mesh: DeviceMesh,
        persistent: Callable[[str], bool],
        on_host: bool = False,
    ) -> None:
        """Take this rank's piece of a parameter or buffer; one `on_host` is kept in the memory of the host."""
        tensor = as_dtensor(local, layout, device_mesh, entry.tensor.shape, on_host=on_host)
        held: Tensor = (
            nn.Parameter(tensor, requires_grad=entry.trainable) if entry.role == "parameter" else tensor
        )
        for name in (entry.target, *entry.aliases):
            *path, last = name.split(".")
            owner: nn.Module = self
            for part in path:
                if part not in owner._modules:
                    owner.add_module(part, nn.Module())
                owner = owner._modules[part]
            if isinstance(held, nn.Parameter):
                owner.register_parameter(last, held)
            else:
                owner.register_buffer(last, held, persistent=persistent(name))

    def place(self, name: str) -> Place:
        """Where a parameter or buffer is kept."""
        owner, _, last = name.rpartition(".")
        module = self.get_submodule(owner)
        return (module._parameters if last in module._parameters else module._buffers), last

    def local(self, name: str) -> Tensor:
        """This rank's piece of a parameter or buffer."""
        tensors, last = self.place(name)
        return tensors[last].to_local()


class Sharded(Holder):
    """A planned model on this rank.

    It is called like the model. An argument may be a DTensor, the whole tensor (each rank takes its piece of it), or
    this rank's piece; with several shapes, a DTensor or the whole tensor. Results are DTensors in the planned layouts,
    or with `local_outputs` this rank's pieces.
    """

    def __init__(
        self,
        program: RankProgram,
        device_mesh: DeviceMesh,
        state: Mapping[str, Tensor],
        *,
        persistent: Callable[[str], bool] = lambda name: True,
        local_outputs: bool = False,
        compile: bool | str = False,
        seed: int = 0,
        shapes: Shapes | None = None,
    ) -> None:
        super().__init__()
        self.plan, self.program, self.device_mesh = program.plan, program, device_mesh
        self.local_outputs, self.seed, self.steps = local_outputs, seed, 0
        for entry in self.plan.graph.inputs:
            if entry.role in ("parameter", "buffer"):
                layout = self.plan.home(entry.name)
                on_host = entry.name in self.plan.on_host
                self.hold(entry, state[entry.target], layout, device_mesh, persistent, on_host)

        def step(program: RankProgram) -> Step:
            return Step(program, device_mesh, self.place, local_outputs=local_outputs, compile=compile)

        self._step = step(program)
        self._shapes = shapes
        if shapes is not None:
            shapes.begin(self._step, step)

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans of all shapes that were met so far."""
        return (self.plan,) if self._shapes is None else self._shapes.plans

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with announced() as call:
            require_planned_autocast(self.plan.graph)
            step = self._step if self._shapes is None else self._shapes.step(call, args, kwargs)
            inputs = step.inputs(args, kwargs)
        seed = self.seed + self.steps
        self.steps += 1
        return step.run(call, inputs, seed)

    def reduce_gradients(self) -> None:
        """Give parameters the gradients of the passes so far, where they are reduced once per step and there were
        fewer passes than planned; all ranks call it. After all planned passes it does nothing."""
        named = {entry.name: entry.target for entry in self.plan.graph.with_role("parameter")}
        for name, gradient in self._step.held.reduced().items():
            parameter = self.get_parameter(named[name])
            parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As for any module; gradients that are still added up are dropped, too."""
        self._step.held.reset()
        super().zero_grad(set_to_none)

    def extra_repr(self) -> str:
        return f"plan of {self.plan.graph.name} on {self.plan.mesh}, rank {self.program.rank}"


def require_planned_autocast(graph: Graph) -> None:
    planned, active = graph.autocast, active_autocast()
    if planned != active:
        raise UsageError(
            f"{graph.name} was planned {_autocast_text(planned)}, but is called "
            f"{_autocast_text(active)}: call parallelize under the autocast that it is called under"
        )


def _autocast_text(dtype: torch.dtype | None) -> str:
    return "without autocast" if dtype is None else f"under autocast to {str(dtype)[6:]}"
