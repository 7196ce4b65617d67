"""The plan that shards as much as it can: what the cheapest plan of a small model leaves untried, this one tries."""

from collections.abc import Sequence

import numpy as np
from torch.distributed.device_mesh import DeviceMesh

from ..expansion import Choice
from ..graph import Graph, Node, TensorInfo
from ..layout import Layout
from ..mesh import DEFAULT_CLUSTER, Cluster, Mesh
from ._choices import Layouts, choices_of
from ._offers import Offers
from ._plan import Plan


def most_sharded_plan(
    graph: Graph,
    *,
    mesh: Mesh | DeviceMesh | str,
    offers: Offers | None = None,
    cluster: Cluster | str = DEFAULT_CLUSTER,
) -> Plan:
    """A plan in which every call is sharded on as many axes as its rows allow, and so is what the graph is given.

    Where several choices shard as much, calls take them in turn, so that equal calls are sharded in different ways.
    """
    mesh, offers = Mesh.of(mesh), offers or Offers(graph)
    layouts = Layouts(mesh)
    inputs = {entry.name: _layout(layouts, entry.tensor, turn) for turn, entry in enumerate(graph.inputs)}
    choices = {
        node.name: _choice(graph, node, layouts, offers, turn) for turn, node in enumerate(graph.nodes)
    }
    by_target = {entry.target: inputs[entry.name] for entry in graph.inputs if entry.role != "tangent"}
    outputs: list[Layout | None] = []
    for turn, output in enumerate(graph.outputs):
        if output.value is None:
            outputs.append(None)
        elif output.role == "user_output":
            outputs.append(_layout(layouts, graph.tensor(output.value), turn))
        else:
            outputs.append(by_target[output.target])
    return Plan(graph, mesh, Cluster.of(cluster), inputs, choices, (), tuple(outputs))


def _layout(layouts: Layouts, tensor: TensorInfo, turn: int) -> Layout:
    options = [layouts.all[number] for number in layouts.without_partials(tensor.shape)]
    sharded = [sum(len(layout.axes(dim)) for dim in layout.sharded_dims) for layout in options]
    return options[_in_turn(sharded, turn)]


def _choice(graph: Graph, node: Node, layouts: Layouts, offers: Offers, turn: int) -> Choice:
    offer = offers.of(node)
    combinations = offers.combinations(node, layouts.mesh)
    choices = choices_of(combinations, [graph.tensor(ref) for ref in node.inputs], node.outputs, layouts)
    shards = np.array([not row.is_replicated for row in offer.rows])
    chosen = _in_turn(shards[choices.per_axis].sum(axis=1).tolist(), turn)
    return Choice(layouts.mesh, choices.rows_of(chosen), offer.source)


def _in_turn(amounts: Sequence[int], turn: int) -> int:
    """The place of one of the largest amounts: the first, the second and so on, turn by turn."""
    largest = [place for place, amount in enumerate(amounts) if amount == max(amounts)]
    return largest[turn % len(largest)]
