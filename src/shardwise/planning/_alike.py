"""Graphs that are alike but for names, such as equal layers: what is planned for one is planned for all."""

from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import Any

from ..calls import with_leaves
from ..graph import Graph, Node, Ref, chosen_again, chosen_copies
from ._plan import Copy, Plan


def signature(graph: Graph) -> Hashable:
    """The same for graphs that are alike: names are replaced by places."""
    places = {name: number for number, name in enumerate(_names(graph))}
    groups: dict[Any, int] = {}

    def placed(leaf: Any) -> Any:
        return f"%{places[leaf.name]}.{leaf.output}" if isinstance(leaf, Ref) else leaf

    def of_node(node: Node) -> Hashable:
        # Calls of one kernel, or of one node of autograd, are done together.
        together = ("autograd", node.autograd), ("whole", node.part_of or None)
        numbers = tuple(key[1] and groups.setdefault(key, len(groups)) for key in together)
        args = repr(with_leaves((node.args, dict(node.kwargs)), placed))
        return node.op, args, node.outputs, node.phase, numbers, graph.region(node) is None

    return (
        tuple((entry.role, entry.tensor, entry.trainable) for entry in graph.inputs),
        tuple(map(of_node, graph.nodes)),
        tuple((output.role, placed(output.value)) for output in graph.outputs),
    )


def moved_to(plan: Plan, graph: Graph, pins: Mapping[str, Any]) -> Plan:
    """The plan of a graph for one that is alike; `pins` are its own."""
    copies = chosen_copies(plan.graph)
    originals = [node.name for node in plan.graph.nodes if node.name not in copies]
    same = dict(zip(originals, (node.name for node in graph.nodes), strict=True))
    if plan.graph.again:
        graph = chosen_again(graph, [same[name] for name in plan.graph.again])
    names = dict(zip(_names(plan.graph), _names(graph), strict=True))
    return replace(
        plan,
        graph=graph,
        inputs={names[name]: layout for name, layout in plan.inputs.items()},
        choices={names[name]: choice for name, choice in plan.choices.items()},
        copies=tuple(
            Copy(Ref(names[copy.ref.name], copy.ref.output), copy.layout, tuple(names[u] for u in copy.users))
            for copy in plan.copies
        ),
        homes={names[name]: layout for name, layout in plan.homes.items()},
        on_host=tuple(names[name] for name in plan.on_host),
        pins=pins,
    )


def _names(graph: Graph) -> list[str]:
    return [*(entry.name for entry in graph.inputs), *(node.name for node in graph.nodes)]
