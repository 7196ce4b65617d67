"""The choices of each kind of call with what they cost: worked out once for all problems of a graph on a mesh, those of
the search and those of baselines."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..expansion import Combinations
from ..graph import Graph, Node, TensorInfo
from ..mesh import Cluster
from ..solver import FORBIDDEN
from ._choices import Choices, Layouts, choices_of
from ._offers import Offers
from ._prices import compute_seconds, kernel_kind, scratch_bytes

UNIT = 1e-13  # seconds that one unit of cost stands for; costs are rounded down, so bounds stay bounds


class Kinds:
    """Choices, costs and scratch memory by kind of call."""

    def __init__(self, graph: Graph, layouts: Layouts, cluster: Cluster) -> None:
        self.graph, self.layouts, self.cluster = graph, layouts, cluster
        self._choices: dict[Any, tuple[Combinations, Choices]] = {}  # of all calls with the same arguments
        self._costs: dict[Any, tuple[Choices, np.ndarray, np.ndarray]] = {}  # with the same border, too

    def of(self, node: Node, offers: Offers) -> tuple[Choices, np.ndarray, np.ndarray]:
        """Choices, costs and scratch memory of a call; worked out again once some of its rows are excluded."""
        call, border = self.graph.call(node), self.graph.kernels.borders.get(node.name)
        combinations = offers.combinations(node, self.layouts.mesh)
        known = self._choices.get(call.signature)
        if known is None or known[0] is not combinations:
            made = choices_of(combinations, call.tensors, node.outputs, self.layouts)
            known = self._choices[call.signature] = combinations, made
        choices = known[1]
        key = call.signature, border
        if key not in self._costs or self._costs[key][0] is not choices:
            inputs: Sequence[TensorInfo] = call.tensors
            kernel = kernel_kind(node.overload, inputs, node.outputs)
            seconds, scratch = [], []
            for c in range(len(choices)):
                local = [
                    self.layouts.local(int(column[c]), info)
                    for column, info in zip(choices.inputs, inputs, strict=True)
                ]
                made_here = tuple(
                    None if info is None or column is None else self.layouts.local(int(column[c]), info)
                    for column, info in zip(choices.outputs, node.outputs, strict=True)
                )
                local_call = call.with_tensors(local)
                seconds.append(compute_seconds(self.cluster.device, kernel, local_call, made_here, border))
                scratch.append(scratch_bytes(local_call))
            self._costs[key] = choices, units(np.array(seconds, float)), np.array(scratch, np.int64)
        return self._costs[key]


def units(seconds: np.ndarray) -> np.ndarray:
    return np.where(
        np.isfinite(seconds), np.floor(np.where(np.isfinite(seconds), seconds, 0) / UNIT), FORBIDDEN
    ).astype(np.int64)
