"""The order of calls in a step whose collectives run beside them: what only gradients of parameters need comes later.

Backward first computes what the layers before wait for. A product whose result is a parameter's gradient can wait, and
what it waits for is a collective that nothing else could run beside: that of the gradient which goes on to the layers
before. Two large calls later is late enough for what follows a call to be under way, and early enough to hold little.

A gradient that is reduced in a wider dtype is cast back to its own afterwards. Were that done at once, calls would wait
for every reduction: it is done some large calls later.
"""

from collections.abc import Iterator
from dataclasses import replace
from heapq import heappop, heappush

from ..graph import Graph, Node, TensorInfo
from ._schedule import hides

LATE = 2  # large calls that a product for a parameter's gradient lets go before it
CASTS_LATE = 16  # large calls that the last cast of a gradient lets go before it: about those of a layer


def with_late_gradients(graph: Graph) -> Graph:
    """The graph with each large call of backward that no other large one follows from, and all that does, moved behind
    the next ones, and casts of finished gradients behind more."""
    return replace(graph, nodes=tuple(_ordered(graph)))


def _ordered(graph: Graph) -> Iterator[Node]:
    large, casts = _last_large(graph), _last_casts(graph)
    waiting: list[
        tuple[int, int, Node]
    ] = []  # by the large calls that are before it, in the order of the graph
    due: dict[str, int] = {}
    passed = 0
    for at, node in enumerate(graph.nodes):
        after = [due[ref.name] for ref in node.inputs if ref.name in due]
        if after or node.name in large or node.name in casts:
            later = max([passed + (LATE if node.name in large else 0), *after])
            due[node.name] = later + (CASTS_LATE if node.name in casts else 0)
            heappush(waiting, (due[node.name], at, node))
            continue
        yield node
        if node.phase == "backward" and hides(node):
            passed += 1
            while waiting and waiting[0][0] <= passed:
                ready = heappop(waiting)[2]
                del due[ready.name]
                yield ready
    yield from (node for _, _, node in sorted(waiting))


def _last_casts(graph: Graph) -> set[str]:
    """The casts of backward to a narrower dtype whose results are only given back."""
    return {
        node.name
        for node in graph.nodes
        if node.phase == "backward"
        and node.facts.cast
        and not any(graph.users.get(ref) for ref in node.results)
        if all(
            _itemsize(node.outputs[ref.output]) < graph.tensor(node.inputs[0]).dtype.itemsize
            for ref in node.results
        )
    }


def _itemsize(tensor: TensorInfo | None) -> int:
    return 0 if tensor is None else tensor.dtype.itemsize


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
