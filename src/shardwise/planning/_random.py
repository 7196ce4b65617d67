"""Random plans: every node takes rows at random, valid for its sizes. A plan need not be good to be right."""

import random
from collections.abc import Sequence
from dataclasses import replace

from torch.distributed.device_mesh import DeviceMesh

from ..expansion import Choice
from ..graph import Graph, Node, autocast_to
from ..layout import Layout
from ..mesh import DEFAULT_CLUSTER, Cluster, Mesh
from ..placements import parse_placement, shard
from ._homes import homed
from ._offers import Offers
from ._plan import Plan


@autocast_to(None)
def random_plan(
    graph: Graph,
    *,
    mesh: Mesh | DeviceMesh | str,
    seed: int = 0,
    offers: Offers | None = None,
    cluster: Cluster | str = DEFAULT_CLUSTER,
    replicated: float = 0.1,
    micro_batches: int = 1,
    zero: bool = False,
    offload: bool = False,
) -> Plan:
    """A plan with rows at random for every node (with probability `replicated`, the replicated one), and random
    layouts for what the graph is given and gives back. A gradient has its parameter's layout, unless with `zero`
    parameters have homes: then each axis may be gathered once per step, and its sums reduced once. With `offload` some
    homes are on the host."""
    rng, mesh, offers = random.Random(seed), Mesh.of(mesh), offers or Offers(graph)
    inputs = {entry.name: _random_layout(rng, mesh, entry.tensor.shape) for entry in graph.inputs}
    choices = {node.name: _random_choice(rng, node, mesh, offers, replicated) for node in graph.nodes}
    by_target = {entry.target: inputs[entry.name] for entry in graph.inputs if entry.role != "tangent"}
    outputs: list[Layout | None] = []
    for output in graph.outputs:
        if output.value is None:
            outputs.append(None)
        elif output.role == "user_output":
            outputs.append(_random_layout(rng, mesh, graph.tensor(output.value).shape))
        else:
            outputs.append(by_target[output.target])
    made = Plan(graph, mesh, Cluster.of(cluster), inputs, choices, (), tuple(outputs))
    made = replace(made, micro_batches=micro_batches)
    return _with_random_homes(rng, made, offload) if zero or offload else made


def _with_random_homes(rng: random.Random, plan: Plan, offload: bool) -> Plan:
    homes = {
        entry.name: plan.inputs[entry.name] for entry in plan.graph.inputs if entry.name in homed(plan.graph)
    }
    held = {name: _some_axes(rng, home, "R") for name, home in homes.items()}
    outputs = list(plan.outputs)
    by_target = {entry.target: entry.name for entry in plan.graph.inputs if entry.name in homes}
    for position, output in enumerate(plan.graph.outputs):
        if output.role == "gradient" and output.target in by_target and plan.micro_batches > 1:
            outputs[position] = _some_axes(rng, homes[by_target[output.target]], "P(sum)")
    on_host = tuple(name for name in homes if offload and rng.random() < 0.5)
    made = replace(plan, inputs={**plan.inputs, **held}, outputs=tuple(outputs), homes=homes, on_host=on_host)
    return replace(made, homes={name: home for name, home in homes.items() if made.once.differs(name)})


def _some_axes(rng: random.Random, layout: Layout, text: str) -> Layout:
    """The layout with another placement on some axes."""
    other = parse_placement(text)
    return Layout(layout.mesh, tuple(other if rng.random() < 0.5 else own for own in layout.placements))


def _random_layout(rng: random.Random, mesh: Mesh, shape: Sequence[int]) -> Layout:
    kinds = [parse_placement("R"), *(shard(dim) for dim in range(len(shape)))]
    return Layout(mesh, tuple(rng.choice(kinds) for _ in mesh.shape))


def _random_choice(rng: random.Random, node: Node, mesh: Mesh, offers: Offers, replicated: float) -> Choice:
    rows, combinations = offers.of(node).rows, offers.combinations(node, mesh)
    plain = next(number for number, row in enumerate(rows) if row.is_replicated)
    found = [number for number, row in enumerate(rows) if not row.is_replicated]
    for _ in range(8):
        if not found or rng.random() < replicated:
            break
        chosen = [rng.choice([*found, plain]) for _ in mesh.shape]
        if combinations.holds(chosen):
            return Choice(mesh, tuple(rows[number] for number in chosen))
    return Choice(mesh, (rows[plain],) * mesh.ndim, "replicated")
