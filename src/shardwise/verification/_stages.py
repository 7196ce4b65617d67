"""Pipelines on simulated ranks: stage after stage of every micro-batch, and backward through them again.

A stage is run with what the stage before it gives; once all have run, from the last to the first with the gradients
that the stage after it returns. What crosses has to have the same layout on both sides.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..dtensor import Recorded
from ..errors import UsageError
from ..graph import Graph
from ..planning import Pipeline, Plan, peak_of_values
from ..progress import Progress, silent
from ..running import MakeOptimizer, Pieces, Simulated, Simulation, widened
from ._passes import of_pass
from ._reference import run_graph
from ._train import Trained, cast_to, copied_pieces, sum_of, written_back
from ._verdict import first_wrong_call


def train_stages(
    pipeline: Pipeline,
    whole: Graph,
    given: Mapping[str, Any],
    steps: int,
    optimizer: MakeOptimizer,
    seed: int = 0,
    wide: bool = False,
    progress: Progress = silent,
) -> Trained:
    """As `train`, of a pipeline; `given` are the inputs of the whole graph by name."""
    stages = [_Stage(plan, given, wide) for plan in pipeline.stages]
    owners = {name: stage for stage in reversed(stages) for name in stage.parameters}
    unique = {
        id(local): local
        for name, stage in owners.items()
        if stage.parameters[name].trainable
        for local in stage.inputs[stage.parameters[name].name].locals
    }
    for stage in stages:  # one tensor where several stages have a parameter
        for name, entry in stage.parameters.items():
            other = owners[name]
            stage.inputs[entry.name] = other.inputs[other.parameters[name].name]
    stepper = optimizer(list(unique.values())) if unique and steps else None
    arguments = {entry.name: given[entry.name] for entry in whole.with_role("user_input")}
    trained, passes = Trained(), pipeline.micro_batches
    total = max(steps, 1) * passes
    for step in range(max(steps, 1)):
        gradients: dict[str, Pieces | None] = {}
        loss, recorded = 0.0, [list[Recorded]() for _ in stages]
        for number in range(passes):
            progress("running the pipeline", step * passes + number, total)
            own = of_pass(arguments, number)
            ran = _passed(stages, own, seed + step * passes + number, wide)
            for stage, result, record in zip(stages, ran, recorded, strict=True):
                record += result.collectives
                before = [gradients.get(name) for name in stage.parameters]
                held = (
                    sum(pieces.locals[0].nbytes for pieces in before if pieces is not None) if number else 0
                )
                trained.peak = max(trained.peak or 0, result.peak + held)
                written_back(stage.plan, stage.inputs, result)
                for name, pieces in result.gradients.items():
                    if name in stage.parameters or name in arguments:
                        gradients[name] = sum_of(gradients.get(name), pieces, name in stage.parameters)
            trained.outputs = ran[-1].outputs
            loss += sum(
                float(pieces.whole().sum()) for pieces in ran[-1].outputs.values() if pieces is not None
            )
        trained.collectives.append([each for record in recorded for each in record])
        trained.gradients = trained.gradients or gradients
        trained.losses.append(loss)
        if stepper is not None:
            for name, stage in owners.items():
                gradient, entry = gradients.get(name), stage.parameters[name]
                if gradient is not None:
                    gradient = cast_to(gradient, stage.inputs[entry.name])
                for rank, local in enumerate(stage.inputs[entry.name].locals):
                    local.grad = None if gradient is None else gradient.locals[rank]
            stepper.step()
    trained.state = {name: pieces for stage in stages for name, pieces in stage.state().items()}
    return trained


class _Stage:
    """A stage with its state on all ranks."""

    def __init__(self, plan: Plan, given: Mapping[str, Any], wide: bool) -> None:
        if plan.homes:
            raise UsageError("simulated ranks do not run pipelines with zero: verify with backend='gloo'")
        self.plan, self.simulation = plan, Simulation(plan, wide)
        self.kept = [e for e in plan.graph.inputs if e.role in ("parameter", "buffer", "constant")]
        self.inputs = {
            entry.name: copied_pieces(Pieces.of(widened(given[entry.name], wide), plan.inputs[entry.name]))
            for entry in self.kept
        }
        self.parameters = {entry.target: entry for entry in self.kept if entry.role == "parameter"}

    def run(self, arguments: Mapping[str, Pieces], seed: int) -> Simulated:
        inputs = {e.name: self.inputs.get(e.name) or arguments[e.name] for e in self.plan.graph.inputs}
        return self.simulation.run(inputs, seed)

    def state(self) -> dict[str, Pieces]:
        return {e.target: self.inputs[e.name] for e in self.kept if e.role != "constant"}


def _passed(
    stages: Sequence[_Stage], arguments: Mapping[str, Tensor], seed: int, wide: bool
) -> list[Simulated]:
    """A micro-batch through all stages and back."""
    crossed: dict[str, Pieces | None] = {}
    given: list[dict[str, Pieces]] = []
    for stage in stages:
        plan, own = stage.plan, dict[str, Pieces]()
        for entry in plan.graph.with_role("user_input"):
            layout = plan.inputs[entry.name]
            if entry.target in crossed:
                own[entry.name] = _same(crossed[entry.target], layout, entry.target)
            else:
                own[entry.name] = Pieces.of(widened(arguments[entry.name], wide), layout)
        starts = plan is stages[-1].plan
        for entry in plan.graph.with_role("tangent"):
            value = torch.ones(entry.tensor.shape) if starts else torch.zeros(entry.tensor.shape)
            start = widened(value.to(entry.tensor.dtype), wide)
            own[entry.name] = Pieces.of(start, plan.inputs[entry.name])
        given.append(own)
        crossed = {} if starts else dict(stage.run(own, seed).outputs)
    results: list[Simulated] = []
    returned: Mapping[str, Pieces | None] = {}
    for stage, own in zip(reversed(stages), reversed(given), strict=True):
        for entry in stage.plan.graph.with_role("tangent"):
            if entry.target in returned:
                own[entry.name] = _same(returned[entry.target], stage.plan.inputs[entry.name], entry.target)
        results.append(stage.run(own, seed))
        returned = results[-1].gradients
    return results[::-1]


def _same(pieces: Pieces | None, layout: Any, name: str) -> Pieces:
    if pieces is None or pieces.layout != layout:
        found = "nothing" if pieces is None else str(pieces.layout)
        raise UsageError(f"{name} crosses between two stages as {found}, and is taken as {layout}")
    return pieces


def first_wrong_call_of_stages(
    pipeline: Pipeline, given: Mapping[str, Any], seed: int = 0, wide: bool = False
) -> str | None:
    """The first call of the first stage that makes something else on its ranks than on whole tensors, each stage given
    what it takes where all are whole."""
    for number, (plan, own) in enumerate(zip(pipeline.stages, _taken(pipeline, given, seed), strict=True)):
        if (first := first_wrong_call(plan, own, seed, wide)) is not None:
            return f"stage {number}: {first}"
    return None


def _taken(pipeline: Pipeline, given: Mapping[str, Any], seed: int) -> list[dict[str, Any]]:
    """The inputs of each stage in the first micro-batch, by name, where stages run on whole tensors."""
    taken: list[dict[str, Any]] = []
    crossed: dict[str, Any] = {}
    for plan in pipeline.stages:
        start = torch.ones if plan is pipeline.stages[-1] else torch.zeros
        own = {}
        for entry in plan.graph.inputs:
            if entry.role == "tangent":
                own[entry.name] = start(entry.tensor.shape, dtype=entry.tensor.dtype)
            elif entry.role == "user_input" and entry.target in crossed:
                own[entry.name] = crossed[entry.target]
            else:
                own[entry.name] = given[entry.name]
        taken.append(own)
        crossed = _made(plan, own, seed, "user_output")
    returned: dict[str, Any] = {}
    for plan, own in zip(reversed(pipeline.stages), reversed(taken), strict=True):
        for entry in plan.graph.with_role("tangent"):
            own[entry.name] = returned.get(entry.target, own[entry.name])
        returned = _made(plan, own, seed, "gradient")
    return taken


def _made(plan: Plan, own: Mapping[str, Any], seed: int, role: str) -> dict[str, Any]:
    """What a stage makes of whole inputs, by name."""
    values = run_graph(plan, own, seed, wide=False)
    return {
        output.target: values[output.value]
        for output in plan.graph.outputs
        if output.role == role and output.value is not None
    }


def predicted_peaks(pipeline: Pipeline) -> list[int]:
    """The peak bytes of the values of one pass of each stage, as the plan predicts them."""
    return [peak_of_values(replace(plan, in_flight=1)) for plan in pipeline.stages]
