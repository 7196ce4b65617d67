"""The choices of each kind of call with what they cost: worked out once for all problems of a graph on a mesh, those of
the search and those of baselines."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..expansion import Combinations
from ..graph import Graph, Node, TensorInfo
from ..mesh import Cluster
from ..solver import FORBIDDEN
from ._call_prices import CallPrices
from ._choices import Choices, Layouts, choices_of
from ._offers import Offers

UNIT = 1e-13  # seconds that one unit of cost stands for; costs are rounded down, so bounds stay bounds


class Kinds:
    """Choices, costs and scratch memory by kind of call."""

    def __init__(self, graph: Graph, layouts: Layouts, cluster: Cluster) -> None:
        self.graph, self.layouts = graph, layouts
        self._pricing = CallPrices(layouts.mesh, cluster)
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
            prices = []
            for c in range(len(choices)):
                local = [
                    self.layouts.local(int(column[c]), info)
                    for column, info in zip(choices.inputs, inputs, strict=True)
                ]
                made_here = tuple(
                    None if info is None or column is None else self.layouts.local(int(column[c]), info)
                    for column, info in zip(choices.outputs, node.outputs, strict=True)
                )
                prices.append(self._pricing.of(node, call, choices.rows_of(c), local, made_here, border))
            seconds = np.array([price.seconds for price in prices], float)
            scratch = np.array([price.scratch for price in prices], np.int64)
            self._costs[key] = choices, units(seconds), scratch
        return self._costs[key]


def units(seconds: np.ndarray) -> np.ndarray:
    return np.where(
        np.isfinite(seconds), np.floor(np.where(np.isfinite(seconds), seconds, 0) / UNIT), FORBIDDEN
    ).astype(np.int64)
