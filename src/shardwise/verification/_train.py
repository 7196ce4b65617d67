"""Training steps on simulated ranks: every rank's optimizer steps the rank's own pieces."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ..dtensor import Recorded
from ..planning import Plan
from ..progress import Progress, silent
from ..running import MakeOptimizer, Pieces, Simulated, Simulation, plan_pieces, require_same_layout


@dataclass
class Trained:
    """Pieces by name: outputs of the last step, gradients of the first, state after all steps; of every step its
    collectives and its loss."""

    outputs: dict[str, Pieces | None] = field(default_factory=dict)
    gradients: dict[str, Pieces | None] = field(default_factory=dict)
    state: dict[str, Pieces] = field(default_factory=dict)
    collectives: list[list[Recorded]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    peak: int | None = None


def train(
    plan: Plan,
    given: Mapping[str, Any],
    steps: int,
    optimizer: MakeOptimizer,
    seed: int = 0,
    wide: bool = False,
    progress: Progress = silent,
) -> Trained:
    graph, simulation, trained = plan.graph, Simulation(plan, wide), Trained()
    inputs = plan_pieces(plan, given, wide)
    for entry in graph.inputs:
        if entry.role in ("parameter", "buffer"):
            inputs[entry.name] = _copied(inputs[entry.name])
    parameters = {e.target: inputs[e.name] for e in graph.inputs if e.role == "parameter" and e.trainable}
    # Replicas are one tensor here, and an optimizer must step it once.
    unique = {id(local): local for pieces in parameters.values() for local in pieces.locals}
    stepper = optimizer(list(unique.values())) if unique and steps else None
    rounds, entries = max(steps, 1), len(plan.schedule.entries)
    for step in range(rounds):

        def tell(done: int, before: int = step * entries) -> None:
            progress("running the plan", before + done, rounds * entries)

        ran = simulation.run(inputs, seed + step, progress=tell)
        trained.outputs = ran.outputs
        trained.gradients = trained.gradients or ran.gradients
        trained.collectives.append(ran.collectives)
        trained.losses.append(loss_of(plan, ran.outputs))
        trained.peak = max(trained.peak or 0, ran.peak)
        _write_back(plan, inputs, ran)
        if stepper is not None:
            for name, pieces in parameters.items():
                gradient = ran.gradients.get(name)
                for rank, local in enumerate(pieces.locals):
                    local.grad = None if gradient is None else gradient.locals[rank]
            stepper.step()
    trained.state = {e.target: inputs[e.name] for e in graph.inputs if e.role in ("parameter", "buffer")}
    return trained


def loss_of(plan: Plan, outputs: Mapping[str, Pieces | None]) -> float:
    """The sum of all outputs that backward starts from."""
    starts = [outputs[entry.target] for entry in plan.graph.with_role("tangent") if entry.target in outputs]
    return sum(float(pieces.whole().sum()) for pieces in starts if pieces is not None)


def _write_back(plan: Plan, inputs: dict[str, Pieces], ran: Simulated) -> None:
    """New values of buffers and parameters, for the next step; a parameter stays the tensor that is optimized."""
    held = {e.target: e for e in plan.graph.inputs if e.role in ("parameter", "buffer")}
    for target, pieces in ran.mutations.items():
        if target not in held:
            continue
        require_same_layout(plan, target, pieces.layout)
        if held[target].role == "buffer":
            inputs[held[target].name] = pieces
            continue
        for local, new in zip(inputs[held[target].name].locals, pieces.locals, strict=True):
            local.copy_(new)


def _copied(pieces: Pieces) -> Pieces:
    copies = {id(local): local.detach().clone(memory_format=torch.preserve_format) for local in pieces.locals}
    return Pieces(pieces.layout, pieces.shape, tuple(copies[id(local)] for local in pieces.locals))
