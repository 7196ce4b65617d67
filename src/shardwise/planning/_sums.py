"""Where sums over ranks are left as they are, so that gradients are reduced in the dtype that a graph says."""

from ..graph import Graph, Ref
from ..placements import Row, is_partial
from ._offers import Offers


def narrow_sums(graph: Graph, offers: Offers) -> frozenset[Ref]:
    """The tensors of a narrower dtype than that in which gradients are reduced of which nothing but gradients of
    parameters is made, by calls that carry sums on: views, casts, additions, scaling, but no products."""
    if graph.reduce is None:
        return frozenset()
    parameters = {entry.target for entry in graph.with_role("parameter")}
    gradients, others = set[Ref](), set[Ref]()
    for output in graph.outputs:
        if output.value is not None:
            of_parameter = output.role == "gradient" and output.target in parameters
            (gradients if of_parameter else others).add(output.value)
    carried: dict[Ref, bool] = {}  # by tensor, whether all of its users carry it on to gradients alone
    found = set[Ref]()
    for node in reversed(graph.nodes):
        used = [ref for ref in node.results if ref in gradients or ref in carried]
        alone = [ref for ref in used if ref not in others and carried.get(ref, True)]
        found |= {ref for ref in alone if graph.tensor(ref).dtype.itemsize < graph.reduce.itemsize}
        on = bool(used) and alone == used and node.facts.kernel != "matmul"
        for place, ref in enumerate(node.inputs):
            # What is cast back is reduced before, in the wider dtype.
            carries = on and (node.facts.cast or any(_carries(row, place) for row in offers.of(node).rows))
            carried[ref] = carried.get(ref, True) and carries
    return frozenset(found)


def _carries(row: Row, place: int) -> bool:
    """Whether by a row a sum over ranks becomes sums over them."""
    return is_partial(row.inputs[place]) and all(made is None or is_partial(made) for made in row.outputs)
