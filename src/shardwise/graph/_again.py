"""Calls of forward that backward runs again instead of keeping what they make.

They are in the graph twice, so that they have rows, layouts and prices of their own, and what is planned is what is
run. A copy stands before the first call of backward that needs it; what it reads is kept, or computed again as well.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from ..calls import with_leaves
from ._graph import Graph, Live, Node, Ref
from ._whole import Whole


def run_again(graph: Graph, names: Collection[str]) -> Graph:
    """The graph whose backward runs the named calls of forward again, as far as it needs what they make."""
    place = {node.name: at for at, node in enumerate(graph.nodes)}
    first = _first_uses(graph, set(names), place)
    if not first:
        return graph
    copies = {name: copy_name(graph, name) for name in first}
    before: dict[int, list[str]] = {}
    for name, at in first.items():
        before.setdefault(at, []).append(name)
    nodes: list[Node] = []
    for at, node in enumerate(graph.nodes):
        # What a copy reads comes earlier in forward.
        nodes += [_copy(graph[name], copies) for name in sorted(before.get(at, ()), key=place.__getitem__)]  # type: ignore[arg-type]
        nodes.append(_reading(node, copies) if node.phase == "backward" else node)
    live = None if graph.live is None else _with_wholes(graph.live, copies)
    return replace(graph, nodes=tuple(nodes), live=live)


def copy_name(graph: Graph, name: str) -> str:
    """The name of the copy of a call."""
    found = f"{name}_again"
    while found in graph.makers:
        found += "_"
    return found


def chosen_again(graph: Graph, names: Collection[str]) -> Graph:
    """The graph whose backward runs again what a plan has chosen; it says so in `again`."""
    made = run_again(graph, names)
    chosen = (node.name for node in graph.nodes if node.name in names)
    return replace(made, again=tuple(name for name in chosen if copy_name(graph, name) in made.makers))


def chosen_copies(graph: Graph) -> frozenset[str]:
    """The names of the copies of what a plan has chosen."""
    found = set()
    for name in graph.again:
        copy = f"{name}_again"
        while f"{copy}_" in graph.makers:
            copy += "_"
        found.add(copy)
    return frozenset(found)


def _first_uses(graph: Graph, names: set[str], place: Mapping[str, int]) -> dict[str, int]:
    """For each of the calls that backward needs, the place of the call before which it runs again."""
    first: dict[str, int] = {}
    for node in reversed(graph.nodes):
        if node.name not in names or node.phase == "backward":
            continue
        uses = []
        for ref in node.results:
            for user in graph.users.get(ref, ()):
                if user.phase == "backward":
                    uses.append(place[user.name])
                elif user.name in first:
                    uses.append(first[user.name])
        if uses:
            first[node.name] = min(uses)
    return first


def _copy(node: Node, copies: Mapping[str, str]) -> Node:
    part_of = node.part_of and _again(node.part_of)
    again = _reading(node, copies)
    return replace(again, name=copies[node.name], phase="backward", part_of=part_of, autograd=None)


def _reading(node: Node, copies: Mapping[str, str]) -> Node:
    """The call with copies in the place of what was copied."""
    if not any(ref.name in copies for ref in node.inputs):
        return node

    def read(leaf: Any) -> Any:
        found = copies.get(leaf.name) if isinstance(leaf, Ref) else None
        return leaf if found is None else Ref(found, leaf.output)

    args, kwargs = with_leaves((node.args, dict(node.kwargs)), read)
    return replace(node, args=args, kwargs=kwargs)


def _with_wholes(live: Live, copies: Mapping[str, str]) -> Live:
    """Parts that run again are parts of another call: that which was decomposed, once more."""
    found = dict(live.wholes)
    for name, whole in live.wholes.items():
        takes = {(copies[part], at): leaf for (part, at), leaf in whole.takes.items() if part in copies}
        gives = {(copies[part], at): leaf for (part, at), leaf in whole.gives.items() if part in copies}
        if takes or gives:
            found[_again(name)] = Whole(whole.op, whole.leaves, whole.form, takes, gives)
    return replace(live, wholes=found)


def _again(part_of: str) -> str:
    return f"{part_of} again"
