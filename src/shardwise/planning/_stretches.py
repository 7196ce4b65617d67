"""The stretches of parts of a graph with boundaries, each a graph of its own, whichever mesh it is planned on."""

from collections.abc import Hashable

import torch

from ..graph import Graph, Segments, with_reduced_gradients
from ._alike import signature


class Stretches:
    """`reduce` is the dtype in which gradients are reduced, where that is not their own, once they are `summed`."""

    def __init__(self, graph: Graph, reduce: torch.dtype | None = None, *, summed: bool = False) -> None:
        self.segments, self.reduce, self.summed = Segments(graph), reduce, summed
        self._graphs: dict[tuple[int, int], Graph] = {}
        self._signatures: dict[tuple[int, int], Hashable] = {}

    def __len__(self) -> int:
        """The number of parts."""
        return len(self.segments)

    def graph(self, begin: int, end: int) -> Graph:
        if (begin, end) not in self._graphs:
            stage = self.segments.stage(begin, end)
            self._graphs[begin, end] = with_reduced_gradients(stage, self.reduce, summed=self.summed)
        return self._graphs[begin, end]

    def signature(self, begin: int, end: int) -> Hashable:
        """The same for stretches that are alike but for names."""
        if (begin, end) not in self._signatures:
            self._signatures[begin, end] = hash(signature(self.graph(begin, end)))
        return self._signatures[begin, end]
