"""`Pipelined`: a model run by a pipeline, on torch's own schedules.

Every stage of this rank is a module whose forward and backward are the two parts of its plan's program; torch's
`PipelineStage` sends what crosses to the next stage, piece by piece, and gradients back. Arguments are known on every
rank, so a stage takes those that it uses itself, by the number of the micro-batch.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.utils import _pytree as pytree

from ..dtensor import Action, run_schedule, torch_schedule
from ..errors import UsageError
from ..graph import Graph, arguments, call_arguments
from ..layout import Layout
from ..planning import AXIS, Pipeline, Plan
from ._agree import announced
from ._emit import RankProgram
from ._module import Holder, require_planned_autocast
from ._pieces import as_dtensor
from ._step import Step


class Pipelined(Holder):
    """A pipeline on this rank: an `nn.Module` with the parameters of its stages, as DTensors under their old names.

    `step` runs forward and backward of all micro-batches: an optimizer that has the parameters does the rest.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        whole: Graph,
        programs: Mapping[int, RankProgram],
        device_mesh: DeviceMesh,
        state: Mapping[str, Tensor],
        *,
        persistent: Callable[[str], bool] = lambda name: True,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.pipeline, self.device_mesh, self.seed, self.steps = pipeline, device_mesh, seed, 0
        self._whole, self._programs = whole, dict(programs)
        inner = inner_device_mesh(device_mesh)
        held: set[str] = set()
        for program in programs.values():
            for entry in program.plan.graph.inputs:
                if entry.role in ("parameter", "buffer") and entry.target not in held:
                    layout = program.plan.home(entry.name)
                    self.hold(entry, state[entry.target], layout, inner, persistent)
                    held.add(entry.target)
        self._group = device_mesh.get_group(AXIS)
        self._sharing = _Sharing(pipeline, device_mesh)
        self._stages = {
            number: _Stage(pipeline, number, Step(program, inner, self.place, local_outputs=True))
            for number, program in programs.items()
        }
        self._schedule: Any = None

    @property
    def plans(self) -> dict[int, Plan]:
        """The plans of this rank's stages, by their numbers."""
        return {number: program.plan for number, program in self._programs.items()}

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise UsageError(
            f"{self.pipeline.name} runs in stages, forward and backward of micro-batches in turns: "
            "call step(...) with the arguments of a whole step instead"
        )

    def step(self, *args: Any, **kwargs: Any) -> Tensor:
        """Run forward and backward of a step, and return the sum of its micro-batches' losses, on every rank.

        Each tensor among the arguments is that of all micro-batches, cut along its first dim, or that of one, which all
        of them get. Gradients are added up, as those of calls one after another are.
        """
        return self.step_of(micro_batches_of(self.pipeline, self._whole, args, kwargs))

    def step_of(
        self,
        batches: Sequence[tuple[Sequence[Any], Mapping[str, Any]]],
        record: list[Action] | None = None,
    ) -> Tensor:
        """The same for given arguments of each micro-batch; `record` gets what this rank computes, in order."""
        with announced() as call:
            require_planned_autocast(self._whole)
            if len(batches) != self.pipeline.micro_batches:
                raise UsageError(
                    f"{self.pipeline.name} was planned for {self.pipeline.micro_batches} micro-batches, "
                    f"and is given {len(batches)}"
                )
            given = [arguments(self._whole, *batch) for batch in batches]
        seed = self.seed + self.steps * self.pipeline.micro_batches
        self.steps += 1
        for stage in self._stages.values():
            stage.begin(call, given, seed, record)
        if self._schedule is None:
            stages = {number: (stage, stage.takes, stage.gives) for number, stage in self._stages.items()}
            dw = {number: stage.deferred for number, stage in self._stages.items()}
            self._schedule = torch_schedule(
                *(self.pipeline.schedule, stages, len(self.pipeline.stages), self.pipeline.micro_batches),
                group=self._group,
                device=self.device_mesh.device_type,
                deferred=dw if self.pipeline.splits_backward else None,
            )
        run_schedule(self._schedule, self.pipeline.micro_batches)
        self._sharing.sum_gradients(self)
        return self._loss()

    def _loss(self) -> Tensor:
        last = len(self.pipeline.stages) - 1
        total = self._stages[last].loss() if last in self._stages else torch.zeros((), dtype=torch.float64)
        total = total.to(self.device_mesh.device_type)
        source = dist.get_global_rank(self._group, self.pipeline.place_of_stage[last])
        dist.broadcast(total, source, group=self._group)
        return total

    def extra_repr(self) -> str:
        return f"stages {', '.join(map(str, self._stages))} of {self.pipeline!r}"


class _Stage(nn.Module):
    """One stage as torch's schedules call it: with what crossed from the stage before, and the micro-batch's number."""

    def __init__(self, pipeline: Pipeline, number: int, step: Step) -> None:
        super().__init__()
        plan = step.plan
        self._step_of_plan, self.last = step, number + 1 == len(pipeline.stages)
        before = pipeline.stages[number - 1] if number else None
        crossing = (
            [] if before is None else [o.target for o in before.graph.outputs if o.role == "user_output"]
        )
        entries = {entry.target: entry for entry in plan.graph.with_role("user_input")}
        self._incoming = [entries[name] for name in crossing]
        self._own = [entry for entry in entries.values() if entry.target not in crossing]
        pairs = zip(plan.graph.outputs, plan.outputs, strict=True)
        self._outgoing = [(output, layout) for output, layout in pairs if output.role == "user_output"]
        self._call, self._seed, self._number = "", 0, number
        self._record: list[Action] | None = None
        self._given: Sequence[Mapping[str, Any]] = ()
        self._losses: list[list[Tensor]] = []

    @property
    def takes(self) -> tuple[Tensor, ...]:
        """Examples of what it is given."""
        return tuple(
            self._example(self._step_of_plan.plan.inputs[entry.name], entry.tensor, entry.trainable)
            for entry in self._incoming
        )

    @property
    def gives(self) -> tuple[Tensor, ...]:
        """Examples of what it returns."""
        if self.last:
            return (torch.zeros(1, device="meta", requires_grad=True),)
        graph = self._step_of_plan.plan.graph
        trained = {entry.target for entry in graph.with_role("tangent")}
        return tuple(
            self._example(layout, graph.tensor(output.value), output.target in trained)
            for output, layout in self._outgoing
            if layout is not None and output.value is not None
        )

    def _example(self, layout: Layout, info: Any, trained: bool) -> Tensor:
        rank = self._step_of_plan.program.rank
        local = torch.empty(layout.local_shape(info.shape, rank), dtype=info.dtype, device="meta")
        return local.requires_grad_(trained)

    def begin(
        self, call: str, given: Sequence[Mapping[str, Any]], seed: int, record: list[Action] | None
    ) -> None:
        """Take the arguments of a step's micro-batches."""
        self._call, self._given, self._seed, self._record = call, given, seed, record
        self._losses.clear()

    def deferred(self) -> Callable[[], None]:
        """The second part of the backward that ran last."""
        return self._step_of_plan.deferred.pop()

    def forward(self, *crossed: Tensor, micro_batch: Tensor) -> Any:
        number, step = int(micro_batch), self._step_of_plan
        arrived = map(_Dense.apply, crossed)
        given = {entry.name: tensor for entry, tensor in zip(self._incoming, arrived, strict=True)}
        given |= {entry.name: self._given[number][entry.name] for entry in self._own}
        note = None if self._record is None else partial(self._computed, number)
        if note is not None:
            note("forward")
        results = step.results(self._call, step.pieces(given), self._seed + number, note)
        made = [results[output.target] for output, _ in self._outgoing]
        if not self.last:
            return tuple(map(_Dense.apply, made))
        self._losses.append([tensor.detach() for tensor in made])
        return torch.stack([tensor.float().sum() for tensor in made]).sum(0, keepdim=True)

    def _computed(self, micro_batch: int, kind: Any) -> None:
        assert self._record is not None
        self._record.append(Action(self._number, kind, micro_batch))

    def loss(self) -> Tensor:
        """The sum of the losses of the step, as whole tensors."""
        step = self._step_of_plan
        total = torch.zeros((), dtype=torch.float64)
        for tensors in self._losses:
            for tensor, (output, layout) in zip(tensors, self._outgoing, strict=True):
                assert layout is not None and output.value is not None
                shape = step.plan.graph.tensor(output.value).shape
                whole = as_dtensor(tensor, layout, step.device_mesh, shape).full_tensor()
                total += whole.double().sum().cpu()
        return total


class _Dense(torch.autograd.Function):
    """What crosses to another stage, and its gradient that returns: gloo sends contiguous tensors alone."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return tensor.contiguous()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.contiguous()


class _Sharing:
    """Parameters that stages at several places have: their gradients are those of all of them, added up."""

    def __init__(self, pipeline: Pipeline, device_mesh: DeviceMesh) -> None:
        places: dict[str, set[int]] = {}
        for number, plan in enumerate(pipeline.stages):
            for entry in plan.graph.with_role("parameter"):
                places.setdefault(entry.target, set()).add(pipeline.place_of_stage[number])
        self.names = {name: tuple(sorted(found)) for name, found in places.items() if len(found) > 1}
        self.groups: dict[tuple[int, ...], Any] = {}
        axis = list(device_mesh.mesh_dim_names or ()).index(AXIS)
        columns = device_mesh.mesh.movedim(axis, 0).flatten(1).T.tolist()
        for found in sorted(set(self.names.values())):
            for column in columns:  # every process makes every group
                ranks = [column[place] for place in found]
                group = dist.new_group(ranks)
                if dist.get_rank() in ranks:
                    self.groups[found] = group

    def sum_gradients(self, module: nn.Module) -> None:
        held = dict(module.named_parameters(remove_duplicate=False))
        for name, found in self.names.items():
            if found in self.groups and name in held:
                parameter = held[name]
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                dist.all_reduce(parameter.grad.to_local(), group=self.groups[found])


def inner_device_mesh(device_mesh: DeviceMesh) -> DeviceMesh:
    """The devices of the stage that this rank is in."""
    names = tuple(name for name in device_mesh.mesh_dim_names or () if name != AXIS)
    return device_mesh[names[0] if len(names) == 1 else names]


def micro_batches_of(
    pipeline: Pipeline, whole: Graph, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """The arguments of each micro-batch, from those of a step."""
    number = pipeline.micro_batches
    given = call_arguments(args, kwargs)
    planned = {entry.name: entry for entry in whole.with_role("user_input")}
    places = arguments(whole, *pytree.tree_unflatten(range(len(pytree.tree_leaves(given))), _form(given)))
    entry_of = {place: planned[name] for name, place in places.items() if name in planned}

    def cut(place: int, leaf: Any) -> list[Any]:
        if place not in entry_of or not isinstance(leaf, Tensor):
            return [leaf] * number
        entry = entry_of[place]
        shape = entry.tensor.shape
        if tuple(leaf.shape) == shape:
            return [leaf] * number
        if shape and tuple(leaf.shape) == (number * shape[0], *shape[1:]):
            return list(leaf.chunk(number))
        raise UsageError(
            f"argument {entry.target!r} has the shape {list(leaf.shape)}: give that of {number} micro-batches, "
            f"{[number * shape[0], *shape[1:]] if shape else []}, or of one, {list(shape)}"
        )

    columns = [cut(place, leaf) for place, leaf in enumerate(pytree.tree_leaves(given))]
    form = _form(given)
    return [pytree.tree_unflatten([column[at] for column in columns], form) for at in range(number)]


def _form(given: Any) -> Any:
    return pytree.tree_flatten(given)[1]
