"""The choices of each kind of call with what they cost: worked out once for all problems of a graph on a mesh, those of
the search and those of baselines."""

from typing import Any

import numpy as np

from ..calls import Call
from ..expansion import Combinations
from ..graph import Border, Graph, Node, TensorInfo
from ..mesh import Cluster
from ..solver import FORBIDDEN
from ._call_prices import CallPrice, CallPrices
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
            prices = self._priced(node, call, choices, border)
            seconds = np.array([price.seconds for price in prices], float)
            scratch = np.array([price.scratch for price in prices], np.int64)
            self._costs[key] = choices, units(seconds), scratch
        return self._costs[key]

    def _priced(self, node: Node, call: Call, choices: Choices, border: Border | None) -> list[CallPrice]:
        """The price of each choice. Calls of the operator itself on pieces of the same sizes cost the same."""
        known: dict[Any, CallPrice] = {}
        formed = np.array([row.local is not None for row in choices.rows])[choices.per_axis].any(axis=1)
        inputs = [
            self._pieces(*each, len(choices)) for each in zip(call.tensors, choices.inputs, strict=True)
        ]
        outputs = [
            self._pieces(*each, len(choices)) for each in zip(node.outputs, choices.outputs, strict=True)
        ]
        prices = []
        for c in range(len(choices)):
            read, made = [pieces[c] for pieces in inputs], [pieces[c] for pieces in outputs]
            key = c if formed[c] else (*read, *made)
            if key not in known:
                known[key] = self._pricing.of(node, call, choices.rows_of(c), read, made, border)
            prices.append(known[key])
        return prices

    def _pieces(self, tensor: TensorInfo | None, column: np.ndarray | None, count: int) -> list[Any]:
        """What a rank holds of a tensor, by choice."""
        if tensor is None or column is None:
            return [None] * count
        numbers = column.tolist()
        local = {number: self.layouts.local(number, tensor) for number in set(numbers)}
        return [local[number] for number in numbers]


def units(seconds: np.ndarray) -> np.ndarray:
    return np.where(
        np.isfinite(seconds), np.floor(np.where(np.isfinite(seconds), seconds, 0) / UNIT), FORBIDDEN
    ).astype(np.int64)
