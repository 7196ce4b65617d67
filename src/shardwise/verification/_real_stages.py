"""Pipelines on real ranks: a process per rank, connected by gloo, whose stages' pieces are collected at the end."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor

from ..dtensor import Action, Recorded, record_collectives
from ..planning import AXIS, Pipeline
from ..running import MakeOptimizer, Pieces, Pipelined, chosen_optimizer, parallelize
from ._passes import of_pass
from ._real import Sent, files_of
from ._spawn import on_ranks
from ._train import Trained


@dataclass
class _Here:
    """What a rank has at the end: pieces by name, what it computed in order, its collectives, and the losses."""

    gradients: dict[str, Tensor | None] = field(default_factory=dict)
    state: dict[str, Tensor] = field(default_factory=dict)
    actions: list[Action] = field(default_factory=list)
    collectives: list[Recorded] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)


def train_stages_on_gloo(
    pipeline: Pipeline,
    model: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    steps: int,
    optimizer: str | MakeOptimizer,
    seed: int,
    build: Callable[[], Any] | None = None,
    loss_fn: Callable[..., Any] | None = None,
) -> Trained:
    """As `train_stages`, on a process for each rank of the mesh."""
    given = (tuple(args), dict(kwargs), steps, optimizer, seed, loss_fn)
    found: list[_Here] = on_ranks(
        *(_train_here, pipeline.to_json(), Sent.of(model, build), *given),
        ranks=pipeline.mesh.ranks,
        files=files_of(model, build),
    )
    mesh, axis = pipeline.mesh, pipeline.mesh.index(AXIS)
    at_place: dict[int, list[_Here]] = {place: [] for place in range(pipeline.places)}
    for rank, here in enumerate(found):
        at_place[mesh.coordinate(rank)[axis]].append(here)
    trained = Trained(losses=found[0].losses)
    collectives: list[Recorded] = []
    for place, ranks in at_place.items():
        _require_order(pipeline, place, ranks)
        collectives += ranks[0].collectives
        for number in pipeline.stages_at(place):
            plan = pipeline.stages[number]
            for entry in plan.graph.inputs:
                if entry.role not in ("parameter", "buffer"):
                    continue
                layout, shape, name = plan.home(entry.name), entry.tensor.shape, entry.target
                trained.state[name] = Pieces(layout, shape, tuple(here.state[name] for here in ranks))
                gradients = [here.gradients.get(name) for here in ranks]
                if all(gradient is not None for gradient in gradients):
                    trained.gradients[name] = Pieces(
                        layout, shape, tuple(g for g in gradients if g is not None)
                    )
    trained.collectives.append(collectives)
    return trained


def _require_order(pipeline: Pipeline, place: int, ranks: Sequence[_Here]) -> None:
    """Every rank ran the actions that were simulated, in their order."""
    planned = list(pipeline.actions[place])
    if pipeline.splits_backward:  # a backward that is not split runs as both parts of it
        planned = [
            replace(action, kind=kind)
            for action in planned
            for kind in (("input", "weight") if action.kind == "backward" else (action.kind,))
        ]
    for here in ranks:
        same = sum(
            1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(here.actions, planned, strict=False))
        )
        if not same == len(planned) == len(here.actions):
            ran, right = here.actions[same : same + 1], planned[same : same + 1]
            raise AssertionError(f"{AXIS}={place} ran {ran} where {right} was simulated")


def _train_here(
    document: dict[str, Any],
    sent: Sent,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    steps: int,
    optimizer: str | MakeOptimizer,
    seed: int,
    loss_fn: Callable[..., Any] | None,
) -> _Here:
    pipeline = Pipeline.from_json(document)
    sharded = parallelize(sent.model(), args, kwargs, plan=pipeline, loss_fn=loss_fn, seed=seed)
    assert isinstance(sharded, Pipelined)
    trained = [parameter for parameter in sharded.parameters() if parameter.requires_grad]
    stepper = chosen_optimizer(optimizer)(trained) if trained and steps else None
    here = _Here()
    batches = [of_pass((args, kwargs), number) for number in range(pipeline.micro_batches)]
    for step in range(max(steps, 1)):
        with record_collectives() as seen:
            here.losses.append(float(sharded.step_of(batches, here.actions if step == 0 else None)))
        here.collectives = seen.collectives
        if step == 0:
            parameters = dict(sharded.named_parameters(remove_duplicate=False))
            here.gradients = {
                name: None if p.grad is None else p.grad.to_local().clone() for name, p in parameters.items()
            }
        if stepper is not None:
            stepper.step()
            stepper.zero_grad()
    with torch.no_grad():
        here.state = {
            entry.target: sharded.local(entry.target).detach()
            for plan in sharded.plans.values()
            for entry in plan.graph.inputs
            if entry.role in ("parameter", "buffer")
        }
    return here
