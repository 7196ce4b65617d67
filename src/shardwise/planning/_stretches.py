"""The stretches of parts of a graph with boundaries, each a graph of its own, whichever mesh it is planned on."""

from collections.abc import Hashable

from ..graph import Graph, Segments
from ._alike import signature


class Stretches:
    def __init__(self, graph: Graph) -> None:
        self.segments = Segments(graph)
        self._graphs: dict[tuple[int, int], Graph] = {}
        self._signatures: dict[tuple[int, int], Hashable] = {}

    def __len__(self) -> int:
        """The number of parts."""
        return len(self.segments)

    def graph(self, begin: int, end: int) -> Graph:
        if (begin, end) not in self._graphs:
            self._graphs[begin, end] = self.segments.stage(begin, end)
        return self._graphs[begin, end]

    def signature(self, begin: int, end: int) -> Hashable:
        """The same for stretches that are alike but for names."""
        if (begin, end) not in self._signatures:
            self._signatures[begin, end] = hash(signature(self.graph(begin, end)))
        return self._signatures[begin, end]
