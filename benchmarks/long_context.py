"""Long context: plans of Llama 3 8B with and without rows that communicate along the sequence.

    python benchmarks/long_context.py [--positions 131072,1048576] [--mesh dp=8,cp=8] [--layers 32] [--json FILE]

A step has 1,048,576 tokens, in one sequence or several; every block is recomputed in backward. `all` are plans from all
rows; `without` have no ring attention, so that attention is sharded by heads or gathers keys and values; `gathered` may
not shard it by heads either. `attention` are the rows of its forward call on each axis.
"""

import argparse
import resource

import torch
from blocks import Model, Shape
from record import Record, takes_json

from shardwise.calls import Call
from shardwise.errors import UsageError
from shardwise.forms import is_communicating
from shardwise.graph import Graph, capture
from shardwise.mesh import Cluster, Mesh
from shardwise.placements import Row
from shardwise.planning import Offers, Plan, Planner
from shardwise.rules import offered_rows

TOKENS = 1 << 20
OFFERED = ("all", "without", "gathered")


def llama(layers: int, positions: int) -> tuple[Model, tuple[torch.Tensor, torch.Tensor]]:
    shape = Shape("llama3", TOKENS // positions, positions, 4096, 32, 8, 14336)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("meta"):
            model = Model(shape, layers, 128256)
            for layer in model.layers:  # which have one table of angles together
                layer.cos, layer.sin = (t.bfloat16() for t in (model.layers[0].cos, model.layers[0].sin))
            tokens = torch.empty(shape.batch, positions, dtype=torch.int64)
    finally:
        torch.set_default_dtype(before)
    return model, (tokens, tokens)


def offered(which: str):
    """The rows of a call, of attention's those that may be used."""

    def rows(call: Call) -> list[Row] | None:
        found = offered_rows(call)
        if found is None or "attention" not in call.name or which == "all":
            return found
        kept = [row for row in found if not is_communicating(row.local)]
        return [row for row in kept if which != "gathered" or "S(1)" not in str(row)]

    return rows


def planned(graph: Graph, mesh: Mesh, cluster: Cluster, which: str, limit: float) -> Plan:
    planner = Planner(graph, mesh, cluster)
    planner.offers = Offers(graph, known=offered(which))
    return planner.plan({}, compare=False, confirm=which == "all", time_limit=limit)


def attention(plan: Plan) -> str:
    node = next(node for node in plan.graph.nodes if node.op == "shardwise.attention.default")
    choice = plan.choices[node.name]
    rows = (f"{axis}: {row.text}" for axis, row in zip(choice.mesh.names, choice.rows, strict=True))
    return "; ".join(rows)


def cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--positions", default="131072,1048576")
    parser.add_argument("--mesh", default="dp=8,cp=8")
    parser.add_argument("--cluster", default="h100")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--recompute", default="full")
    parser.add_argument("--offered", default=",".join(OFFERED))
    parser.add_argument("--time-limit", type=float, default=60.0)
    takes_json(parser)
    options = parser.parse_args()
    record = Record(__doc__, options.json)
    columns = {
        "positions": "{:,}",
        "rows": "",
        "step": "{:.3f} s",
        "compute": "{:.3f} s",
        "gap": "{:.1%}",
        "peak": "{:.1f} GB",
        "planning": "{:.0f} s",
        "attention": "",
    }
    table = record.sheet(f"{options.mesh}, {options.cluster}, {options.layers} layers", columns)
    mesh, cluster = Mesh.parse(options.mesh), Cluster.of(options.cluster)
    for positions in map(int, options.positions.split(",")):
        graph = capture(*llama(options.layers, positions), recompute=options.recompute)
        for which in options.offered.split(","):
            begun = cpu_seconds()
            try:
                plan = planned(graph, mesh, cluster, which, options.time_limit)
            except UsageError as error:
                table.add(positions, which, None, None, None, None, cpu_seconds() - begun, str(error)[:200])
                continue
            cost = plan.cost
            gap = 1 - (plan.bound or 0.0) / cost.seconds
            table.add(
                *(positions, which, cost.seconds, cost.compute, gap, cost.peak / 1e9),
                *(cpu_seconds() - begun, attention(plan)),
            )


if __name__ == "__main__":
    main()
