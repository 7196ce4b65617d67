"""Training steps on real ranks: a process per rank, connected by gloo, whose pieces are collected at the end."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..dtensor import Recorded, record_collectives
from ..graph import arguments, as_module
from ..planning import Plan
from ..running import MakeOptimizer, Pieces, Sharded, chosen_optimizer, parallelize, piece_of
from ._passes import of_pass
from ._spawn import on_ranks
from ._train import Trained, loss_of

Locals = dict[str, Tensor | None]


@dataclass(frozen=True)
class Sent:
    """A model sent to another process: itself, or how to build it and the values of its state."""

    whole: Callable[..., Any] | None
    build: Callable[[], Any] | None = None
    state: Mapping[str, Tensor] | None = None
    modes: tuple[bool, ...] = ()

    @classmethod
    def of(cls, model: Callable[..., Any], build: Callable[[], Any] | None) -> "Sent":
        if build is None:
            return cls(model)
        module = as_module(model)
        return cls(None, build, module.state_dict(), tuple(part.training for part in module.modules()))

    def model(self) -> Callable[..., Any]:
        if self.build is None:
            assert self.whole is not None
            return self.whole
        made = self.build()
        made = made[0] if isinstance(made, tuple) else made
        as_module(made).load_state_dict(self.state)
        for part, training in zip(as_module(made).modules(), self.modes, strict=True):
            part.training = training
        return made


def files_of(model: Callable[..., Any], build: Callable[[], Any] | None) -> dict[str, str]:
    """The source files of the model's classes, by the names of their modules."""
    makers = [*(type(part) for part in as_module(model).modules()), *([build] if build else [])]
    names = {maker.__module__ for maker in makers}
    found = {name: getattr(sys.modules.get(name), "__file__", None) for name in names}
    return {name: file for name, file in found.items() if file is not None and name != "__main__"}


def train_on_gloo(
    plan: Plan,
    model: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    steps: int,
    optimizer: str | MakeOptimizer,
    seed: int,
    build: Callable[[], Any] | None = None,
    loss_fn: Callable[..., Any] | None = None,
) -> Trained:
    """As `train`, on a process for each rank of the plan. The model is sent to them, or made there by `build`."""
    found = on_ranks(
        _train_here,
        *(plan.to_json(), Sent.of(model, build), tuple(args), dict(kwargs), steps, optimizer, seed, loss_fn),
        ranks=plan.mesh.ranks,
        files=files_of(model, build),
    )
    outputs = dict(zip(_targets(plan, "user_output"), _layouts(plan, "user_output"), strict=True))
    gradients = dict(zip(_targets(plan, "gradient"), _layouts(plan, "gradient"), strict=True))
    gradients |= {e.target: plan.homes[e.name] for e in plan.graph.inputs if e.name in plan.homes}
    inputs = {e.target: plan.home(e.name) for e in plan.graph.inputs if e.role in ("parameter", "buffer")}
    shapes = {e.target: e.tensor.shape for e in plan.graph.inputs if e.role != "tangent"}
    given = {o.target: plan.graph.tensor(o.value).shape for o in plan.graph.outputs if o.value is not None}

    def gathered(kind: int, layouts: Mapping[str, Any], sizes: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: None
            if layout is None or found[0][kind][name] is None
            else Pieces(layout, sizes[name], tuple(rank[kind][name] for rank in found))
            for name, layout in layouts.items()
        }

    trained = Trained(
        gathered(0, outputs, given),
        gathered(1, gradients, shapes),
        gathered(2, inputs, shapes),
        [found[0][3]],
    )
    for step in range(len(found[0][4])):
        at_step = {
            name: Pieces(outputs[name], given[name], tuple(rank[4][step][name] for rank in found))
            for name in found[0][4][step]
        }
        trained.losses.append(loss_of(plan, at_step))
    return trained


def _targets(plan: Plan, role: str) -> list[str]:
    return [output.target for output in plan.graph.outputs if output.role == role]


def _layouts(plan: Plan, role: str) -> list[Any]:
    pairs = zip(plan.graph.outputs, plan.outputs, strict=True)
    return [layout for output, layout in pairs if output.role == role]


def _train_here(
    document: dict[str, Any],
    sent: Sent,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    steps: int,
    optimizer: str | MakeOptimizer,
    seed: int,
    loss_fn: Callable[..., Any] | None,
) -> tuple[Locals, Locals, Locals, list[Recorded], list[Locals]]:
    """The pieces of this rank at the end: outputs, gradients of the first step, state; the collectives of the last
    step; and the losses of every step."""
    plan, model = Plan.from_json(document), sent.model()
    sharded = parallelize(model, args, kwargs, plan=plan, loss_fn=loss_fn, seed=seed, local_outputs=True)
    graph = sharded.plan.graph
    losses = {entry.target for entry in graph.with_role("tangent")}
    trained = [parameter for parameter in sharded.parameters() if parameter.requires_grad]
    stepper = chosen_optimizer(optimizer)(trained) if trained and steps else None
    gradients: Locals = {}
    steps_losses: list[Locals] = []
    for step in range(max(steps, 1)):
        total: Locals = {}
        with record_collectives() as seen:
            for number in range(plan.micro_batches):
                given, given_kwargs = _local_arguments(sharded, *of_pass((args, kwargs), number))
                with torch.set_grad_enabled(graph.training):
                    result = sharded(*given, **given_kwargs)
                outputs: Locals = dict(
                    zip(_targets(plan, "user_output"), pytree.tree_leaves(result), strict=True)
                )
                if graph.training:
                    starts = [t for name, t in outputs.items() if name in losses and t is not None]
                    torch.autograd.backward(starts, [torch.ones_like(tensor) for tensor in starts])
                for name in losses:
                    if (found := outputs.get(name)) is not None:
                        before = total.get(name)
                        total[name] = found.detach() if before is None else before + found.detach()
        if graph.training:
            steps_losses.append(total)
        if step == 0 and graph.training:
            named = arguments(graph, given, given_kwargs)
            inputs = {e.target: named[e.name] for e in graph.with_role("user_input")}
            gradients = {name: _gradient(sharded, inputs, name) for name in _targets(plan, "gradient")}
        if stepper is not None:
            stepper.step()
            stepper.zero_grad()
    state = {
        entry.target: sharded.local(entry.target).detach()
        for entry in graph.inputs
        if entry.role in ("parameter", "buffer")
    }
    outputs = {name: leaf.detach() if isinstance(leaf, Tensor) else None for name, leaf in outputs.items()}
    return outputs, gradients, state, seen.collectives, steps_losses


def _gradient(sharded: Sharded, inputs: Mapping[str, Any], name: str) -> Tensor | None:
    if name in inputs:
        return inputs[name].grad
    gradient = sharded.get_parameter(name).grad
    return None if gradient is None else gradient.to_local().clone()


def _local_arguments(
    sharded: Sharded, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with every tensor replaced by this rank's piece."""
    plan = sharded.plan
    leaves, form = pytree.tree_flatten((args, kwargs))
    places = arguments(plan.graph, *pytree.tree_unflatten(range(len(leaves)), form))
    for entry in plan.graph.with_role("user_input"):
        place = places[entry.name]
        piece = piece_of(leaves[place].detach(), plan.inputs[entry.name], sharded.program.rank)
        leaves[place] = piece.clone().requires_grad_(leaves[place].requires_grad)
    return pytree.tree_unflatten(leaves, form)
