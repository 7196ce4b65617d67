"""Where in a step each redistribution can run: between the making of a tensor and its first use.

Places are those of calls that take time, in the order of the graph. Views take none: they are done as soon as they can
be, and those of redistributed tensors when they are needed. A redistribution runs beside the calls of its window if
there is a large one among them, and otherwise while all calls wait. Forward and backward are programs of their own, so
nothing runs from one into the other. Places at corresponding calls of equal layers are of one kind.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..graph import Graph, Node, Output, Ref, pattern
from ._schedule import hides


@dataclass(frozen=True)
class Window:
    """From before call `first` to before call `last`: `beside` these calls, or only between them."""

    first: int
    last: int
    beside: bool

    @property
    def calls(self) -> slice:
        return slice(self.first, self.last)

    @property
    def gaps(self) -> slice:
        return slice(self.first, self.last + 1)


class Windows:
    """The windows of a graph. `copies` are calls that may be left out, and of which calls they are copies: what they
    make may be there since those."""

    def __init__(self, graph: Graph, copies: Mapping[str, str] | None = None) -> None:
        self.graph, self.copies = graph, copies or {}
        self.calls = [node for node in graph.nodes if not node.facts.view]
        self.end = len(self.calls)
        self.at: dict[str, int] = {}  # of a view the place of the call that follows
        place = 0
        for node in graph.nodes:
            self.at[node.name] = place
            place += not node.facts.view
        self.large = np.concatenate([[0], np.cumsum([hides(node) for node in self.calls])])
        phases = [node.phase for node in self.calls]
        self.turn = phases.index("backward") if "backward" in phases else self.end
        self.back = max((at + 1 for at, phase in enumerate(phases) if phase == "forward"), default=0)
        self.needed = self._needed()
        self._of_uses: dict[tuple[object, ...], Window] = {}

    @cached_property
    def kind(self) -> np.ndarray:
        """The kind of each call: a number, the same for corresponding calls of equal layers."""
        kinds: dict[object, int] = {}
        return np.array(
            [kinds.setdefault(self.alike[node.name], len(kinds)) for node in self.calls], np.int64
        )

    @cached_property
    def gap(self) -> np.ndarray:
        """The kind of the place before each call, and after the last one."""
        pairs = np.stack([np.append(-1, self.kind), np.append(self.kind, -1)])
        return np.unique(pairs, axis=1, return_inverse=True)[1].reshape(-1)

    @cached_property
    def alike(self) -> Mapping[str, object]:
        """By name of a node what is equal for corresponding nodes of equal layers."""
        return dict(self._alike())

    def _alike(self) -> Iterator[tuple[str, object]]:
        seen: Counter[object] = Counter()
        for node in self.graph.nodes:
            own = node.module, node.phase, node.op
            yield node.name, (pattern(node.module), node.phase, node.op, seen[own])
            seen[own] += 1

    def of_uses(self, ref: Ref, users: Sequence[Node]) -> Window:
        """Of a tensor, for the calls that share one redistribution of it."""
        key = (ref, *(node.name for node in users))
        if key not in self._of_uses:
            backward = users[0].phase == "backward"
            self._of_uses[key] = self._window(ref, self._first(users), backward)
        return self._of_uses[key]

    def of_output(self, output: Output) -> Window:
        """Of a result of the graph."""
        assert output.value is not None
        gradient = output.role == "gradient"
        return self._window(output.value, self.end if gradient else self.turn, gradient)

    def _window(self, ref: Ref, need: int, backward: bool) -> Window:
        base = self.graph.base(ref).name
        base = self.copies.get(base, base)
        made = self.at[base] + 1 if base in self.at else 0
        first = max(made, self.back if backward else 0)
        last = max(first, need)
        return Window(first, last, bool(self.large[first] < self.large[last]))

    def _needed(self) -> dict[Ref, int]:
        """The place of the first call that needs each tensor, itself or as a view."""
        self.needed = found = dict[Ref, int]()
        for output in self.graph.outputs:
            if output.value is not None:
                last = self.end if output.role == "gradient" else self.turn
                found[output.value] = min(found.get(output.value, last), last)
        users: dict[Ref, list[Node]] = {}
        for node in reversed(self.graph.nodes):
            for ref in node.results:
                if ref in users:
                    found[ref] = min(found.get(ref, self.end), self._first(users[ref]))
            for ref in node.inputs:
                users.setdefault(ref, []).append(node)
        return found

    def _first(self, users: Sequence[Node]) -> int:
        """Where the first of some users needs a tensor; of those that may be left out the last may be the first."""
        certain = [self._need(node) for node in users if node.name not in self.copies]
        return min(certain) if certain else max(map(self._need, users))

    def _need(self, node: Node) -> int:
        if not node.facts.view:
            return self.at[node.name]
        made = (Ref(node.name, output) for output in range(len(node.outputs)))
        last = self.turn if node.phase == "forward" else self.end
        return min([last, *(self.needed[ref] for ref in made if ref in self.needed)])
