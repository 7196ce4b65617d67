"""Gradients of parameters in a wider dtype than their own, in which ranks add them up.

Before ranks add up what they have of a gradient it is cast, and cast back afterwards, as by `reduce_dtype` of FSDP2.
The casts are calls of the graph, so that they are planned and run like any other: a partial sum passes the first and
not the second, which would round what is still to be added. Where gradients of several passes are added up, that is
done in the wider dtype, too: the graph gives them as they are summed, and they are cast back once per step.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from ..calls import Call
from ..errors import UsageError
from ._flops import cost
from ._graph import Graph, Input, Node, Ref, TensorInfo

REDUCED = {"float32": torch.float32}


def reduced_dtype(name: str | None) -> torch.dtype | None:
    """The dtype in which gradients are to be reduced; None for their own."""
    if name is None:
        return None
    if name not in REDUCED:
        raise UsageError(
            f"reduce is {name!r}: give 'float32', or leave it out and gradients are reduced in their own dtype"
        )
    return REDUCED[name]


def with_reduced_gradients(graph: Graph, dtype: torch.dtype | None, *, summed: bool) -> Graph:
    """The graph whose gradients of parameters are reduced in a dtype where their own is narrower; if they are `summed`
    over passes, it gives them in that dtype."""
    if dtype is None or not graph.training or graph.reduce is not None:
        return graph
    parameters = {entry.target: entry.tensor for entry in graph.with_role("parameter")}
    casts: dict[Ref, list[Node]] = {}
    outputs = list(graph.outputs)
    for at, output in enumerate(outputs):
        if output.role != "gradient" or output.target not in parameters or output.value is None:
            continue
        own = graph.tensor(output.value)
        if not own.dtype.is_floating_point or own.dtype.itemsize >= dtype.itemsize:
            continue
        if output.value not in casts:
            casts[output.value] = list(_casts(graph, output.value, own, [dtype, own.dtype]))
        wide, back = casts[output.value]
        outputs[at] = replace(output, value=Ref((wide if summed else back).name))
    nodes = list(graph.nodes)
    for value, made in sorted(casts.items(), key=lambda pair: _place(graph, pair[0]), reverse=True):
        at = _place(graph, value)
        nodes[at:at] = made[:1] if summed else made
    return replace(graph, nodes=tuple(nodes), outputs=tuple(outputs), reduce=dtype)


def _casts(graph: Graph, value: Ref, own: TensorInfo, dtypes: Sequence[torch.dtype]) -> Iterator[Node]:
    """Casts of a value, one after another."""
    maker = graph[value.name]
    source = maker if isinstance(maker, Node) else graph.nodes[-1]
    stem = value.name + (f"_{value.output}" if value.output else "")
    for dtype in dtypes:
        call = Call(torch.ops.aten._to_copy.default, (own,), {"dtype": dtype})
        made = replace(own, dtype=dtype)
        flops, bytes_ = cost(call, (made,))
        name = _free_name(graph, f"{stem}_as_{str(dtype)[6:]}")
        yield Node(
            name,
            str(call.op),
            (value,),
            {"dtype": dtype},
            (made,),
            source.module,
            "backward",
            source.source,
            flops,
            bytes_,
        )
        value, own = Ref(name), made


def _free_name(graph: Graph, name: str) -> str:
    while name in graph.makers:
        name += "_"
    return name


def _place(graph: Graph, value: Ref) -> int:
    """Where a gradient is cast: once it is made, with all parts of the call that makes it, and in backward."""
    maker = graph[value.name]
    if isinstance(maker, Input) or maker.phase != "backward":
        return len(graph.nodes)
    parts = {maker.part_of} - {""}
    return 1 + max(at for at, node in enumerate(graph.nodes) if node is maker or node.part_of in parts)
