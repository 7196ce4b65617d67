"""Shardwise's search for the cheapest combination of rows compared with PyTorch's, under the same prices.

    python benchmarks/search.py [--cases 200] [--seed 0]

For `mm` on meshes of one to four axes, over all placements of the two inputs or a sample of them: the price
that each search finds, which must be the same, and the time that each takes. PyTorch's search is
`_dijkstra_expand_single_dim_strategy_to_mesh`; Shardwise's is `shardwise.expansion.cheapest`, with PyTorch's prices of
single steps and only the steps that PyTorch has. Nothing that depends on the inputs is cached between cases; the
graph of layouts of a mesh is, and the first case builds it (`first`).
"""

import argparse
import gc
import itertools
import logging
import random
import statistics
import time

import numpy as np
import torch
import torch.distributed as dist
from record import Record, takes_json
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor._collective_utils import MeshTopoInfo
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.distributed.tensor._op_schema import OpSchema, OpSpec, OpStrategy
from torch.distributed.tensor._ops._matrix_ops import mm_single_dim_strategy
from torch.distributed.tensor._ops.single_dim_strategy import (
    _dijkstra_expand_single_dim_strategy_to_mesh,
    _ShardingPlaceholder,
)
from torch.testing._internal.distributed.fake_pg import FakeStore

from shardwise import Cluster, Mesh, Row
from shardwise.expansion import cheapest
from shardwise.layout import Layout
from shardwise.mesh import Link
from shardwise.placements import AnyShard, is_partial, is_shard
from shardwise.redistribution import KINDS, Prices, Space

SHAPE = (1024, 1024)
PLACEMENTS = (Replicate(), Shard(0), Shard(1), Partial("sum"))
MESHES = ((4,), (2, 2), (2, 2, 2), (2, 2, 2, 2))


class TorchPrices(Prices):
    """PyTorch's prices: its links, no permutes, only left-to-right nesting, a penalty on every all-to-all,
    no way from a shard to a partial on the same axis, not even by way of replicate, and no shards on the way
    (`shards`) if no input has any.
    """

    shards = True

    def __init__(self, device_mesh):
        topology = MeshTopoInfo.build_from_mesh(device_mesh)
        names = [f"axis{axis}" for axis in range(device_mesh.ndim)]
        links = {
            name: Link(bandwidth * 1024**3, latency * 1e-6, 6.6e-6)
            for name, bandwidth, latency in zip(
                names, topology.mesh_dim_bandwidth, topology.mesh_dim_latency, strict=True
            )
        }
        super().__init__(Cluster.preset("laptop").with_axes(**links))
        self._left_to_right = {}
        self._costs = {}

    def from_source(self, where: Space, source: int, shape, itemsize):
        if where not in self._left_to_right:
            nested = [where.layout(index) for index in range(len(where))]
            plain = np.array(
                [all(tuple(sorted(x.axes(d))) == x.axes(d) for d in range(where.ndim)) for x in nested]
            )
            steps = where.steps
            allowed = plain[steps.source] & plain[steps.target] & (steps.kind != KINDS.index("permute"))
            penalty = np.where(steps.kind == KINDS.index("all_to_all"), 1e-6, 0.0)
            codes = np.array([state[0] for state in where.states.all])
            sharded = np.array([is_shard(p) for p in where.placements])[codes]
            partial = np.array([is_partial(p) for p in where.placements])[codes]
            self._left_to_right[where] = allowed, penalty, sharded, partial
        allowed, penalty, sharded, partial = self._left_to_right[where]
        banned = (sharded[source] & partial[where.steps.target]).any(axis=1)
        if not self.shards:
            banned |= sharded[where.steps.target].any(axis=1)
        costs = where.costs(shape, itemsize, self.cluster) + penalty
        return where.from_source(source, np.where(allowed & ~banned, costs, np.inf))


def rows_of_mm():
    """PyTorch's own rows for mm, as `Row`s."""
    rows = []
    for out, *inputs in mm_single_dim_strategy(torch.ops.aten.mm.default, (), {}):
        ours = [AnyShard(p.dim) if isinstance(p, _ShardingPlaceholder) else p for p in (out, *inputs)]
        rows.append(Row(tuple(ours[1:]), (ours[0],), shards="even"))
    return rows


def torch_search(device_mesh, placements):
    meta = TensorMeta(torch.Size(SHAPE), (SHAPE[1], 1), torch.float32)
    strategies = [OpStrategy([OpSpec(DTensorSpec(device_mesh, p, meta))]) for p in placements]
    schema = OpSchema(torch.ops.aten.mm.default, tuple(strategies), {})
    started = time.process_time()
    found = _dijkstra_expand_single_dim_strategy_to_mesh(device_mesh, schema, mm_single_dim_strategy, meta)
    seconds = time.process_time() - started
    return sum(itertools.chain(*found.strategies[0].redistribute_cost)) * 1e-6, seconds


def our_search(mesh, prices, rows, placements):
    started = time.process_time()
    layouts = [Layout(mesh, p) for p in placements]
    prices.shards = any(layout.sharded_dims for layout in layouts)
    best = cheapest(rows, mesh, layouts, [SHAPE, SHAPE], price=prices)
    return best.price, time.process_time() - started


def compare(shape, cases, seed):
    device_mesh = init_device_mesh("cpu", shape)
    mesh = Mesh.from_device_mesh(device_mesh)
    prices, rows = TorchPrices(device_mesh), rows_of_mm()
    every = list(itertools.product(itertools.product(PLACEMENTS, repeat=len(shape)), repeat=2))
    chosen = every if len(every) <= cases else random.Random(seed).sample(every, cases)
    first = our_search(mesh, prices, rows, ((PLACEMENTS[1],) * len(shape), (PLACEMENTS[2],) * len(shape)))[1]
    gc.disable()  # garbage collection would be charged to either search at random
    theirs = [torch_search(device_mesh, placements) for placements in chosen]
    gc.collect()
    ours = [our_search(mesh, prices, rows, placements) for placements in chosen]
    gc.enable()
    pairs = zip(theirs, ours, strict=True)
    differing = sum(abs(a - b) > 1e-9 * max(a, 1e-6) for (a, _), (b, _) in pairs)
    theirs, ours = ([seconds * 1e3 for _, seconds in times] for times in (theirs, ours))
    their_mean, our_mean = statistics.mean(theirs), statistics.mean(ours)
    name = "x".join(map(str, shape))
    times = (their_mean, max(theirs), our_mean, max(ours), first * 1e3, their_mean / our_mean)
    return name, len(chosen), differing, *times


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cases", type=int, default=400, help="the most cases per mesh")
    parser.add_argument("--seed", type=int, default=0)
    takes_json(parser)
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    columns = {"mesh": "", "cases": "{:,}", "differing": "{:d}", "torch, mean": "{:.3f}"}
    columns |= {"torch, max": "{:.3f}", "Shardwise, mean": "{:.3f}", "Shardwise, max": "{:.3f}"}
    columns |= {"Shardwise, first": "{:.2f}", "ratio of means": "{:.1f}x"}
    table = Record(__doc__, options.json).sheet("mm, milliseconds of CPU per search", columns)
    for shape in MESHES:
        dist.init_process_group("fake", rank=0, world_size=int(np.prod(shape)), store=FakeStore())
        table.add(*compare(shape, options.cases, options.seed))
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
