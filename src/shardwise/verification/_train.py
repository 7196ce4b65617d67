"""Training steps on simulated ranks: every rank's optimizer steps the rank's own pieces."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ..dtensor import Recorded
from ..planning import Plan
from ..progress import Progress, silent
from ..running import (
    MakeOptimizer,
    Pieces,
    Simulated,
    Simulation,
    moved,
    plan_pieces,
    require_same_layout,
    widened,
)
from ._passes import of_pass


@dataclass
class Trained:
    """Pieces by name: outputs of the last step, gradients of the first, state after all steps; of every step its
    collectives and its loss. Parameters and gradients are as the optimizer sees them."""

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
            inputs[entry.name] = copied_pieces(inputs[entry.name])
    once, recorded = plan.once, list[Recorded]()
    homes = {n: copied_pieces(Pieces.of(widened(given[n], wide), home)) for n, home in plan.homes.items()}
    inputs |= homes
    # Homes of copies are there besides, unless they are on the host.
    copied = sum(homes[m.name].locals[0].nbytes for m in once.gathers if m.name not in plan.on_host)
    parameters = {e.target: inputs[e.name] for e in graph.inputs if e.role == "parameter" and e.trainable}
    targets = {entry.name: entry.target for entry in graph.with_role("parameter")}
    # Replicas are one tensor here, and an optimizer must step it once.
    unique = {id(local): local for pieces in parameters.values() for local in pieces.locals}
    stepper = optimizer(list(unique.values())) if unique and steps else None
    passes = plan.micro_batches
    rounds, entries = max(steps, 1) * passes, len(plan.schedule.entries)
    arguments = {entry.name: given[entry.name] for entry in graph.with_role("user_input")}
    for step in range(max(steps, 1)):
        gradients: dict[str, Pieces | None] = {}
        loss, held, recorded = 0.0, copied, []
        inputs |= {move.name: moved(move.change, homes[move.name], recorded) for move in once.gathers}
        for number in range(step * passes, (step + 1) * passes):

            def tell(done: int, before: int = number * entries) -> None:
                progress("running the plan", before + done, rounds * entries)

            if passes > 1:
                own = of_pass(arguments, number % passes)
                inputs |= {n: Pieces.of(widened(own[n], wide), plan.inputs[n]) for n in own}
            ran = simulation.run(inputs, seed + number, progress=tell)
            trained.outputs = ran.outputs
            recorded += ran.collectives
            loss += loss_of(plan, ran.outputs)
            trained.peak = max(trained.peak or 0, ran.peak + held)
            written_back(plan, inputs, ran)
            gradients = {n: sum_of(gradients.get(n), p, n in parameters) for n, p in ran.gradients.items()}
            left = ran.left + held
            held = copied + sum(
                p.locals[0].nbytes for n, p in gradients.items() if p is not None and n in parameters
            )
        for move in once.reductions:
            summed = gradients[targets[move.name]]
            assert summed is not None
            if move.change.steps:
                reduced = moved(move.change, summed, recorded)
                trained.peak = max(trained.peak or 0, left + reduced.locals[0].nbytes)
                left += reduced.locals[0].nbytes - summed.locals[0].nbytes
                summed = reduced
            given_back = gradients[targets[move.name]] = cast_to(summed, inputs[move.name])
            if given_back is not summed:
                trained.peak = max(trained.peak or 0, left + given_back.locals[0].nbytes)
                left += given_back.locals[0].nbytes - summed.locals[0].nbytes
            if move.name in plan.on_host:
                left -= given_back.locals[0].nbytes
        trained.collectives.append(recorded)
        trained.gradients = trained.gradients or gradients
        trained.losses.append(loss)
        if stepper is not None:
            for name, pieces in parameters.items():
                gradient = gradients.get(name)
                for rank, local in enumerate(pieces.locals):
                    local.grad = None if gradient is None else gradient.locals[rank]
            stepper.step()
    inputs |= homes
    trained.state = {e.target: inputs[e.name] for e in graph.inputs if e.role in ("parameter", "buffer")}
    return trained


def sum_of(before: Pieces | None, now: Pieces | None, accumulated: bool) -> Pieces | None:
    """The gradient after another pass: that of a parameter is added up."""
    if before is None or now is None or not accumulated:
        return now
    pairs = zip(before.locals, now.locals, strict=True)
    return Pieces(now.layout, now.shape, tuple(old + new for old, new in pairs))


def cast_to(gradient: Pieces, parameter: Pieces) -> Pieces:
    """A gradient in the dtype of its parameter."""
    dtype = parameter.locals[0].dtype
    if gradient.locals[0].dtype == dtype:
        return gradient
    return replace(gradient, locals=tuple(local.to(dtype) for local in gradient.locals))


def loss_of(plan: Plan, outputs: Mapping[str, Pieces | None]) -> float:
    """The sum of all outputs that backward starts from."""
    starts = [outputs[entry.target] for entry in plan.graph.with_role("tangent") if entry.target in outputs]
    return sum(float(pieces.whole().sum()) for pieces in starts if pieces is not None)


def written_back(plan: Plan, inputs: dict[str, Pieces], ran: Simulated) -> None:
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


def copied_pieces(pieces: Pieces) -> Pieces:
    copies = {id(local): local.detach().clone(memory_format=torch.preserve_format) for local in pieces.locals}
    return Pieces(pieces.layout, pieces.shape, tuple(copies[id(local)] for local in pieces.locals))
