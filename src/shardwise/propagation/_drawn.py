"""A graph with its propagated shardings, as text: every call with its rule, and what each of its tensors has."""

from typing import TYPE_CHECKING

from ..graph import Node

if TYPE_CHECKING:
    from ._captured import GraphPropagation


def table(outcome: "GraphPropagation", module: str = "") -> str:
    lines = []
    for node, operation in zip(outcome.captured.graph.nodes, outcome.program.nodes, strict=False):
        if not module or node.module == module or node.module.startswith(module + "."):
            rule = "no rule" if operation.rule is None else operation.rule.notation
            lines.append(f"{node.name} = {node.op}: {rule}{_where(node)}")
            names = [*operation.inputs, *operation.outputs]
            width = max(map(len, names), default=0)
            for place, name in enumerate(names):
                arrow = "->" if place >= len(operation.inputs) else "  "
                lines.append(f"  {arrow} {name:<{width}}  {outcome.shardings[name]}")
    return "\n".join(lines)


def _where(node: Node) -> str:
    return f" ({node.phase} in {node.module})" if node.module else f" ({node.phase})"
