"""What each of four real gloo ranks does in tests/dtensor/test_gloo.py: run every check; rank 0 prints what it saw.

python gloo_ranks.py RANK STORE_FILE
"""

import json
import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from shardwise import Mesh
from shardwise.dtensor import install, layout_of, record_collectives, uninstall, use_search
from shardwise.layout import Layout
from shardwise.redistribution import cheapest_chain

MESH = Mesh.parse("dp=2,tp=2")
LAYOUTS = [
    *("S(0), S(1)", "S(1), S(0)", "S(0), S(0)", "S(0)[1], S(0)[0]", "S(0), R", "R, S(1)", "R, R"),
    *("P(sum), S(0)", "P(max), P(max)", "P(min), R", "P(avg), S(1)", "R, S(0, sf=3)"),
]


def place(device_mesh, text, tensor):
    layout = Layout.parse(text, MESH)
    return DTensor.from_local(
        layout.split(tensor)[dist.get_rank()],
        device_mesh,
        layout.to_placements(),
        run_check=False,
        shape=tensor.shape,
        stride=tensor.stride(),
    )


def redistribute(device_mesh):
    """Every change between the layouts above, even and uneven: right tensors by the priced collectives."""
    changes = 0
    for shape in [(8, 12), (7, 5)]:
        tensor = torch.arange(1.0, 1 + shape[0] * shape[1]).reshape(shape)
        for source in LAYOUTS:
            for target in LAYOUTS:
                if "P" in target:
                    continue
                wanted = Layout.parse(target, MESH)
                moved = place(device_mesh, source, tensor)
                with record_collectives() as seen:
                    moved = moved.redistribute(placements=wanted.to_placements())
                assert layout_of(moved) == wanted
                piece = wanted.split(tensor)[dist.get_rank()]
                torch.testing.assert_close(moved.to_local(), piece, msg=f"{source} -> {target} of {shape}")
                steps = cheapest_chain(
                    Layout.parse(source, MESH), wanted, shape, cluster="laptop"
                ).collectives
                kinds = ["all_to_all" if step.kind == "permute" else step.kind for step in steps]
                assert [c.kind for c in seen.collectives] == kinds, (source, target, kinds, seen.collectives)
                if dist.get_rank() == 0:
                    assert [c.size for c in seen.collectives] == [step.size for step in steps]
                changes += 1
    target = Layout.parse("S(1), R", MESH).to_placements()
    with record_collectives() as seen:
        place(device_mesh, "S(0), R", torch.randn(8, 12)).redistribute(placements=target)
    return {"changes": changes, "shard to shard": [c.kind for c in seen.collectives]}


def operators(device_mesh):
    """PyTorch's own operators, with PyTorch's choice of placements and then with ours."""
    torch.manual_seed(0)
    a, b, c = torch.randn(8, 12), torch.randn(12, 4), torch.randn(8, 12)
    x, y = torch.randn(4, 8, 6), torch.randn(4, 6, 2)
    calls = {
        "mm": (torch.mm, (a, b)),
        "bmm": (torch.bmm, (x, y)),
        "pointwise": (lambda p, q: torch.relu(p * q + p), (a, c)),
        "cat": (lambda p, q: torch.cat([p, q], 1), (a, c)),
    }
    placements = ["S(0), S(1)", "S(1), R", "P(sum), S(0)", "S(0), S(0)"]
    seen_by_name = {}
    for name, (function, tensors) in calls.items():
        expected = function(*tensors)
        collectives, size = 0, 0
        for left in placements:
            for right in placements:
                inputs = [place(device_mesh, text, t) for text, t in zip((left, right), tensors, strict=True)]
                with record_collectives() as seen:
                    result = function(*inputs)
                torch.testing.assert_close(result.full_tensor(), expected, msg=f"{name}: {left}; {right}")
                collectives += len(seen.collectives)
                size += seen.total()
        seen_by_name[name] = [collectives, size]
    return seen_by_name


def grouped(device_mesh):
    """Products of runs of rows by the rows of the book, rows and groups sharded on two axes, and what that sends."""
    rows = torch.randint(-2, 3, (24, 16)).bfloat16()
    matrices, ends = torch.randint(-2, 3, (5, 16, 8)).bfloat16(), torch.tensor([3, 3, 11, 20, 24]).int()
    product = torch.ops.aten._grouped_mm.default
    expected, sent = product(rows, matrices, ends), {}
    install()
    for layouts in (
        ("S(0), S(0)", "R, R"),
        ("S(0), R", "R, S(0)"),
        ("R, S(1)", "R, S(1)"),
        ("S(0), S(0)", "S(0), R"),
    ):
        given = [
            place(device_mesh, text, t)
            for text, t in zip((*layouts, "R, R"), (rows, matrices, ends), strict=True)
        ]
        with record_collectives() as seen:
            result = product(*given)
        torch.testing.assert_close(result.full_tensor(), expected, msg=f"{layouts}")
        sent["; ".join(layouts)] = seen.total()
    uninstall()
    return sent


def main(rank, store):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=int(rank), world_size=4, timeout=timedelta(seconds=60)
    )
    try:
        device_mesh = init_device_mesh("cpu", MESH.shape, mesh_dim_names=MESH.names)
        result = {"theirs": operators(device_mesh)}
        with use_search(cluster="laptop"):
            result["ours"] = operators(device_mesh)
            result["redistribute"] = redistribute(device_mesh)
        result["grouped"] = grouped(device_mesh)
        dist.barrier()
    finally:
        dist.destroy_process_group()
    if rank == "0":
        print(json.dumps(result), flush=True)
    os._exit(0)  # gloo's threads may still release tensors, which aborts a process that ends as Python does


if __name__ == "__main__":
    main(*sys.argv[1:])
