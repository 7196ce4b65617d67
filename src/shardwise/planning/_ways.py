"""What people call a choice: data parallel, model parallel, and so on, where it is that."""

from ..expansion import Choice
from ..graph import Graph, Node
from ..placements import Row, is_partial, is_shard


def ways(graph: Graph, node: Node, choice: Choice) -> str:
    """The common names of what a call does on each axis; empty where it is replicated or has none.

    Of a product, rows of the first operand are data and columns of the second belong to the model; what both have in
    common is contracted. Another call is data parallel if the first dim of its first input is sharded.
    """
    named = (
        (axis, _way(graph, node, row))
        for axis, size, row in zip(choice.mesh.names, choice.mesh.shape, choice.rows, strict=True)
        if size > 1
    )
    return ", ".join(f"{way} on {axis}" for axis, way in named if way)


def _way(graph: Graph, node: Node, row: Row) -> str:
    sharded = [position for position, placement in enumerate(row.inputs) if is_shard(placement)]
    partial = any(p is not None and is_partial(p) for p in row.outputs)
    if not sharded:
        return ""
    if node.facts.kernel == "matmul" and len(row.inputs) > 1:
        first, second = len(row.inputs) - 2, len(row.inputs) - 1
        both = first in sharded and second in sharded
        if both and partial:
            return "model parallel (contracted dim split, partial sums)"
        if both:
            return "batch parallel"
        return "data parallel (rows split)" if first in sharded else "model parallel (columns split)"
    if partial:
        return "a reduction split, partial results"
    dim = row.inputs[sharded[0]].dim
    largest = max(len(graph.tensor(ref).shape) for ref in node.inputs)
    return "data parallel" if dim == 0 and len(graph.tensor(node.inputs[sharded[0]]).shape) == largest else ""
