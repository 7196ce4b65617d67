"""The order of calls in a step whose collectives run beside them: what only gradients of parameters need comes later.

Backward first computes what the layers before wait for. A product whose result is a parameter's gradient can wait, and
what it waits for is a collective that nothing else could run beside: that of the gradient which goes on to the layers
before. Two large calls later is late enough for what follows a call to be under way, and early enough to hold little.
"""

from collections.abc import Iterator
from dataclasses import replace

from ..graph import Graph, Node
from ._schedule import hides

LATE = 2  # large calls that a product for a parameter's gradient lets go before it


def with_late_gradients(graph: Graph) -> Graph:
    """The graph with each large call of backward that no other large one follows from, and all that does, moved behind
    the next ones."""
    return replace(graph, nodes=tuple(_ordered(graph)))


def _ordered(graph: Graph) -> Iterator[Node]:
    last = _last_large(graph)
    waiting: list[tuple[Node, int]] = []  # what was moved, and how many large calls had been before it
    moved: set[str] = set()
    passed = 0
    for node in graph.nodes:
        if node.name in last or any(ref.name in moved for ref in node.inputs):
            waiting.append((node, passed))
            moved.add(node.name)
            continue
        yield node
        if node.phase == "backward" and hides(node):
            passed += 1
            while waiting and waiting[0][1] + LATE <= passed:
                ready, _ = waiting.pop(0)
                moved.remove(ready.name)
                yield ready
    yield from (node for node, _ in waiting)


def _last_large(graph: Graph) -> set[str]:
    """The large calls of backward from which no other large call follows."""
    leads: set[str] = set()  # to a large call
    found: set[str] = set()
    for node in reversed(graph.nodes):
        if node.name not in leads and node.phase == "backward" and hides(node):
            found.add(node.name)
        if node.name in leads or hides(node):
            leads.update(ref.name for ref in node.inputs)
    return found
