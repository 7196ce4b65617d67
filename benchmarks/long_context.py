"""Long context: plans of Llama 3 8B with and without rows that communicate along the sequence.

    python benchmarks/long_context.py [--positions 131072,1048576,8388608] [--mesh dp=8,cp=8] [--json FILE]

A step has 1,048,576 tokens, in one sequence or several, or one longer sequence. Every block is recomputed in backward,
the loss is in chunks, and parameters are sharded among all devices. `all` are plans from all rows; `without` have no
ring attention, so that attention is sharded by heads or gathers keys and values; `gathered` may not shard it by heads
either; in `whole` no row of attention shards the sequence, it may be sharded by heads. Where no plan fits, `peak` is
what every plan needs at least, if that is known. `attention` are the rows of its forward call on each axis.
"""

import argparse
import resource

import torch
from blocks import Model, Shape
from record import Record, takes_json

import shardwise as sw
from shardwise.calls import Call
from shardwise.forms import is_communicating
from shardwise.graph import Graph, capture
from shardwise.mesh import Cluster, Mesh
from shardwise.placements import Row, is_shard
from shardwise.planning import DoesNotFit, Offers, Plan, Planner
from shardwise.rules import offered_rows

TOKENS = 1 << 20
OFFERED = ("all", "without", "gathered", "whole")


class InChunks(Model):
    """The same with a loss whose logits are never whole."""

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return sw.linear_cross_entropy(self.norm(x), self.head.weight, targets)


def llama(layers: int, positions: int) -> tuple[Model, tuple[torch.Tensor, torch.Tensor]]:
    shape = Shape("llama3", max(TOKENS // positions, 1), positions, 4096, 32, 8, 14336)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("meta"):
            model = InChunks(shape, layers, 128256)
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
        if which == "whole":
            return [row for row in kept if not any(is_shard(p) and p.dim == 2 for p in row.inputs)]
        return [row for row in kept if which != "gathered" or "S(1)" not in str(row)]

    return rows


def planned(graph: Graph, mesh: Mesh, cluster: Cluster, which: str, limit: float) -> Plan:
    planner = Planner(graph, mesh, cluster)
    planner.offers = Offers(graph, known=offered(which))
    sharded = {"*weight": ", ".join(["S(0)"] * mesh.ndim)}
    return planner.plan(sharded, compare=False, confirm=which == "all", time_limit=limit)


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
    parser.add_argument("--positions", default="131072,1048576,8388608")
    parser.add_argument("--mesh", default="dp=8,cp=8")
    parser.add_argument("--cluster", default="h100")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--recompute", default="full")
    parser.add_argument("--offered", default=",".join(OFFERED))
    parser.add_argument("--time-limit", type=float, default=600.0)
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
            except DoesNotFit as error:
                proven = error.at_least > cluster.device.memory
                least, why = (error.at_least / 1e9, "no plan fits") if proven else (None, "none was found")
                table.add(positions, which, None, None, None, least, cpu_seconds() - begun, why)
                continue
            cost = plan.cost
            gap = 1 - (plan.bound or 0.0) / cost.seconds
            table.add(
                *(positions, which, cost.seconds, cost.compute, gap, cost.peak / 1e9),
                *(cpu_seconds() - begun, attention(plan)),
            )


if __name__ == "__main__":
    main()
