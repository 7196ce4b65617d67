"""What a second counts in the problem of a plan whose collectives run beside calls, so that its bound is one of theirs.

A step takes at least as long as its calls and the collectives that nothing runs beside, and at least as long as any
link is used. What runs beside calls slows them, unless it runs while they wait for another link. Let C be the seconds
of calls, E and H those of collectives that cannot and that can run beside them, E(l) and H(l) those on link l, and g
what a second beside calls costs them. Then a step takes at least C + (1 - g) E + g (E(l) + H(l)), and at least
E(l) + H(l), for every link l. Any weighted mean of these is a sum over choices, so the solver solves it as it is, and
what it proves is true of every schedule. The first alone bounds best where calls take long; of plans for which both
count the timeline often finds a faster one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..graph import Graph, Node, Output, Ref
from ._prices import SLOWDOWN
from ._schedule import hides

BESIDE = SLOWDOWN / (1 + SLOWDOWN)  # what a second beside calls costs them


@dataclass(frozen=True)
class Weights:
    """`calls` is the weight of the sum with calls, the rest is that of the other; each is the mean over all links.

    `links` are the names of the links of a mesh's axes.
    """

    links: tuple[str, ...]
    calls: float

    @classmethod
    def tried(cls, links: tuple[str, ...]) -> "Iterator[Weights]":
        """Those for which a plan is searched."""
        yield cls(links, 1.0)
        yield cls(links, 0.5)

    @property
    def exposed(self) -> tuple[float, ...]:
        """What a second of a collective counts that nothing runs beside, by its axis."""
        return tuple((1 - BESIDE) * self.calls + beside for beside in self.beside)

    @property
    def beside(self) -> tuple[float, ...]:
        """What a second of a collective counts that can run beside calls."""
        return ((BESIDE * self.calls + 1 - self.calls) / len(set(self.links)),) * len(self.links)


class Beside:
    """Which redistributions can run beside calls: those with large calls between the making of a tensor and its use."""

    def __init__(self, graph: Graph) -> None:
        self.at = {node.name: place for place, node in enumerate(graph.nodes)}
        self.before = [0]  # how many large calls there are before a node
        for node in graph.nodes:
            self.before.append(self.before[-1] + hides(node))
        self.end = len(graph.nodes)
        self.turn = min(_places(graph.nodes, "backward"), default=self.end)
        self.back = max(_places(graph.nodes, "forward"), default=-1) + 1

    def of_use(self, ref: Ref, user: Node) -> bool:
        """Of a tensor, for a call."""
        return self._between(ref, self.at[user.name], self.back if user.phase == "backward" else 0)

    def of_output(self, output: Output) -> bool:
        """Of a result of the graph."""
        assert output.value is not None
        if output.role == "gradient":
            return self._between(output.value, self.end, self.back)
        return self._between(output.value, self.turn, 0)

    def _between(self, ref: Ref, need: int, first: int) -> bool:
        release = max(first, self.at.get(ref.name, -1) + 1)
        return release < need and self.before[release] < self.before[need]


def _places(nodes: Sequence[Node], phase: str) -> list[int]:
    return [place for place, node in enumerate(nodes) if node.phase == phase]
