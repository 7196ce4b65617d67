"""The runs of one verification: the user's model and plans of it, from the same weights and arguments."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..graph import Graph
from ..planning import Plan
from ..progress import Progress
from ..running import MakeOptimizer, Pieces
from ._compare import Check, compare, tolerance
from ._reference import Run, run_model
from ._train import Trained, train


@dataclass(frozen=True)
class Runs:
    """How to run the model and plans of it; `wide` in double precision."""

    target: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    given: Mapping[str, Any]
    steps: int
    optimizer: MakeOptimizer
    seed: int
    progress: Progress
    passes: int = 1

    def model(self, graph: Graph, wide: bool = False) -> Run:
        self.progress("running the model")
        return run_model(
            *(graph, self.target, self.args, self.kwargs, self.steps, self.optimizer),
            seed=self.seed,
            wide=wide,
            passes=self.passes,
        )

    def plan(self, plan: Plan, wide: bool = False) -> Trained:
        return train(plan, self.given, self.steps, self.optimizer, self.seed, wide, self.progress)


@dataclass(frozen=True)
class Joined:
    """The results of a plan as whole tensors, and the largest difference between ranks that should hold the same."""

    run: Run
    apart: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @classmethod
    def of(cls, graph: Graph, trained: Trained) -> "Joined":
        constants = {output.target: output.constant for output in graph.outputs}
        groups: dict[str, Mapping[str, Pieces | None]] = {
            "outputs": trained.outputs,
            "gradients": trained.gradients,
            "state": trained.state,
        }
        whole: dict[str, dict[str, Any]] = {
            kind: {name: constants.get(name) if p is None else p.whole() for name, p in pieces.items()}
            for kind, pieces in groups.items()
        }
        apart = {
            kind: {name: p.disagreement() for name, p in pieces.items() if p is not None}
            for kind, pieces in groups.items()
        }
        return cls(Run(**whole, losses=trained.losses), apart)


def checks(graph: Graph, expected: Run, found: Joined, wide: bool = False) -> list[Check]:
    """Every tensor that both runs have, compared."""
    least = coarsest(graph, wide)
    parameters = {entry.target for entry in graph.with_role("parameter")}

    def of_state(run: Run, trained: bool) -> dict[str, Tensor]:
        return {name: value for name, value in run.state.items() if (name in parameters) is trained}

    made = found.run
    groups: list[tuple[str, str, Mapping[str, Any], Mapping[str, Any]]] = [
        ("output", "outputs", expected.outputs, made.outputs),
        ("gradient", "gradients", expected.gradients, made.gradients),
        ("parameter", "state", of_state(expected, True), made.state),
        ("buffer", "state", of_state(expected, False), made.state),
    ]
    compared = []
    if graph.training:
        starts = [expected.outputs.get(entry.target) for entry in graph.with_role("tangent")]
        compared += compare("loss", _losses(expected), _losses(made), {}, least, starts)
    for kind, group, whole, others in groups:
        whole = {name: value for name, value in whole.items() if name in others}
        compared += compare(kind, whole, others, found.apart.get(group, {}), least)
    return compared


def coarsest(graph: Graph, wide: bool = False) -> torch.dtype | None:
    """The least precise float dtype that the graph computes in."""
    if wide:
        return torch.float64
    dtypes = {info.dtype for node in graph.nodes for info in node.outputs if info is not None}
    return max((dtype for dtype in dtypes if dtype.is_floating_point), key=tolerance, default=None)


def _losses(run: Run) -> dict[str, Tensor]:
    return {f"step {n + 1}": torch.tensor(loss, dtype=torch.float64) for n, loss in enumerate(run.losses)}
