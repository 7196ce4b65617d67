"""The loss of a large vocabulary: plans of Llama 3 8B with and without classes that are sharded, and with it in chunks.

    python benchmarks/vocabulary.py [--tokens 8192,65536] [--mesh tp=8] [--layers 32] [--json FILE]

In plans `whole` no call between the head and the loss is sharded by classes, so that ranks have all logits of their
tokens, or of all tokens; in those `by classes` they may be, as in all plans of Shardwise; `in chunks` the model calls
`shardwise.linear_cross_entropy`. Blocks are computed again in backward. `logits` is the largest tensor of logits that a
rank has, also inside of a call, and its share of all logits in float32; `at the loss` is what a rank holds at most
while it has logits.
"""

import argparse
import math
import resource

import torch
from blocks import Model, Shape
from record import Record, takes_json
from torch import Tensor

import shardwise as sw
from shardwise.calls import Call
from shardwise.forms import chunk_size
from shardwise.graph import Graph, capture
from shardwise.mesh import Cluster, Mesh
from shardwise.placements import Row, is_shard
from shardwise.planning import Compute, Offers, Plan, Planner, Value
from shardwise.rules import offered_rows

VOCABULARY = 128256


class InChunks(Model):
    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return sw.linear_cross_entropy(self.norm(x), self.head.weight, targets)


def captured(layers: int, tokens: int, chunks: bool) -> Graph:
    positions = 8192
    shape = Shape("llama3", tokens // positions, positions, 4096, 32, 8, 14336)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("meta"):
            model = (InChunks if chunks else Model)(shape, layers, VOCABULARY)
            ids = torch.empty(shape.batch, positions, dtype=torch.int64)
    finally:
        torch.set_default_dtype(before)
    return capture(model, (ids, ids), recompute="full")


def without_classes(call: Call) -> list[Row] | None:
    """The rows of a call, but for those that cut logits by classes; products make and take them so."""
    rows = offered_rows(call)
    if rows is None or call.packet in ("aten.mm", "aten.embedding", "aten.embedding_dense_backward"):
        return rows

    def cuts(row: Row) -> bool:
        given = zip((*call.shapes, *call.outputs), (*row.inputs, *row.outputs), strict=True)
        return any(
            shape
            and placed is not None
            and is_shard(placed)
            and len(shape) > 1
            and shape[placed.dim] == VOCABULARY
            for shape, placed in given
        )

    return [row for row in rows if not cuts(row)]


def planned(graph: Graph, mesh: Mesh, cluster: Cluster, without: bool, limit: float) -> Plan:
    planner = Planner(graph, mesh, cluster)
    if without:
        planner.offers = Offers(graph, known=without_classes)
    return planner.plan({}, compare=False, confirm=not without, time_limit=limit)


def is_logits(plan: Plan, value: Value) -> bool:
    tensor = plan.graph.tensor(value.ref)
    return VOCABULARY in tensor.shape and tensor.numel > VOCABULARY * 4096


def at_the_loss(plan: Plan) -> tuple[int, int]:
    """Bytes of the largest tensor of logits on a rank, and of all that it holds while there are logits."""
    largest = held = 0
    for entry, now in zip(plan.schedule.entries, plan.cost.held, strict=True):
        sizes = [_bytes(plan, value) for value in (*entry.used, *entry.made) if is_logits(plan, value)]
        if isinstance(entry, Compute) and "cross_entropy" in entry.node.op:
            call = plan.graph.call(entry.node)
            pieces = entry.choice.held(call, call.shapes, call.outputs, 0)
            (*tokens, width), classes = pieces["input"].local, pieces["weight"].local[0]
            sizes.append(4 * chunk_size(math.prod(tokens), width, classes) * classes)
        if sizes:
            largest, held = max(largest, *sizes), max(held, now)
    return largest, held


def _bytes(plan: Plan, value: Value) -> int:
    tensor = plan.graph.tensor(value.ref)
    return math.prod(plan.schedule.layouts[value].local_shape(tensor.shape)) * tensor.dtype.itemsize


def cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", default="8192,65536")
    parser.add_argument("--mesh", default="tp=8")
    parser.add_argument("--cluster", default="h100")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--time-limit", type=float, default=60.0)
    takes_json(parser)
    options = parser.parse_args()
    record = Record(__doc__, options.json)
    columns = {
        "tokens": "{:,}",
        "loss": "",
        "step": "{:.3f} s",
        "gap": "{:.1%}",
        "peak": "{:.2f} GB",
        "at the loss": "{:.2f} GB",
        "logits": "{:.0f} MB",
        "share": "1 / {:.1f}",
        "planning": "{:.0f} s",
    }
    table = record.sheet(f"{options.mesh}, {options.cluster}, {options.layers} layers", columns)
    mesh, cluster = Mesh.parse(options.mesh), Cluster.of(options.cluster)
    for tokens in map(int, options.tokens.split(",")):
        for name, without, chunks in (
            ("whole", True, False),
            ("by classes", False, False),
            ("in chunks", False, True),
        ):
            begun = cpu_seconds()
            graph = captured(options.layers, tokens, chunks)
            plan = planned(graph, mesh, cluster, without, options.time_limit)
            cost, (largest, held) = plan.cost, at_the_loss(plan)
            table.add(
                *(tokens, name, cost.seconds, 1 - (plan.bound or 0.0) / cost.seconds),
                *(
                    cost.peak / 1e9,
                    held / 1e9,
                    largest / 1e6,
                    4 * tokens * VOCABULARY / largest,
                    cpu_seconds() - begun,
                ),
            )


if __name__ == "__main__":
    main()
