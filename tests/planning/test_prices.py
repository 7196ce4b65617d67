"""What limits a kernel follows from how its tensors lie in memory."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from shardwise import Cluster
from shardwise.calls import Call, declare, overload
from shardwise.graph import Border, TensorInfo, capture, cost
from shardwise.mesh import Device, MeasuredBlock
from shardwise.planning import plan_graph
from shardwise.planning._prices import compute_seconds, host_seconds, kernel_kind, scratch_bytes

BF16, F32 = torch.bfloat16, torch.float32
PLAIN = TensorInfo((4, 8, 16), BF16)
TURNED = TensorInfo((4, 8, 16), BF16, (128, 1, 8))


@pytest.mark.parametrize(
    ("op", "inputs", "output", "kind"),
    [
        ("aten.mul.Tensor", [PLAIN, PLAIN], PLAIN, "memory"),
        ("aten.mul.Tensor", [TURNED, TURNED], TURNED, "memory"),
        ("aten.mul.Tensor", [PLAIN, TURNED], PLAIN, "strided"),
        ("aten.mul.Tensor", [PLAIN, TensorInfo((16,), BF16)], PLAIN, "strided"),
        ("aten.mul.Tensor", [PLAIN, TensorInfo((), BF16)], PLAIN, "memory"),
        ("aten._to_copy.default", [PLAIN], TensorInfo((4, 8, 16), F32), "strided"),
        ("aten._to_copy.default", [TensorInfo((4, 8, 16), F32)], PLAIN, "memory"),
        ("aten.cat.default", [PLAIN, PLAIN], TensorInfo((8, 8, 16), BF16), "memory"),
        ("aten.cat.default", [TURNED, TURNED], TensorInfo((8, 8, 16), BF16), "strided"),
        ("aten.sum.dim_IntList", [PLAIN], TensorInfo((8, 16), BF16), "reduction"),
        ("aten._softmax.default", [PLAIN], PLAIN, "reduction"),
        ("aten.native_layer_norm.default", [PLAIN], PLAIN, "reduction"),
        ("aten.mm.default", [TensorInfo((4, 8), BF16), TensorInfo((8, 4), BF16)], None, "matmul"),
    ],
)
def test_kinds_of_kernels(op, inputs, output, kind):
    assert kernel_kind(overload(op), inputs, (output,)) == kind


def test_a_strided_kernel_takes_longer_than_its_bytes_do():
    device = Cluster.preset("h200").device
    tensor = TensorInfo((4096, 4096), BF16)
    call = Call.of(overload("aten.neg.default"), tensor)
    slow, quick = (compute_seconds(device, kind, call, [tensor]) for kind in ("strided", "memory"))
    assert slow > 2 * quick


def test_a_call_inside_a_kernel_pays_for_what_crosses_its_border():
    device = Cluster.preset("h200").device
    tensor = TensorInfo((4096, 4096), BF16)
    call = Call.of(overload("aten.add.Tensor"), tensor, tensor)

    def seconds(reads, writes, starts=False):
        border = Border(reads, writes, starts, "fused")
        return compute_seconds(device, "memory", call, [tensor], border)

    assert seconds((), ()) == 0.0
    assert seconds((), (), starts=True) == device.launch
    assert seconds(((0, 1.0),), (0,)) == pytest.approx(2 * seconds(((1, 1.0),), ()))
    assert seconds(((0, 3.0),), ()) == pytest.approx(3 * seconds((), (0,)))


def test_a_compiled_program_costs_less_and_a_decomposed_operator_what_it_does():
    def cost_of(function, *args, **options):
        graph = capture(function, args, training=False, **options)
        return plan_graph(graph, mesh="d=1", cluster="h200", compare=False).cost

    x = torch.empty(4096, 4096, device="meta")
    chain = [cost_of(lambda x: (x * 2).exp() + x.sin(), x, execution=how) for how in ("eager", "compiled")]
    assert chain[1].compute < 0.4 * chain[0].compute and chain[1].peak < chain[0].peak
    whole, parts = cost_of(lambda x: x.softmax(1), x), cost_of(lambda x: x.log_softmax(1), x)
    assert parts.compute == pytest.approx(whole.compute) and parts.peak == whole.peak


def one_layer(cluster, rows, **options):
    with torch.device("meta"):
        graph = capture(torch.nn.Linear(64, 64), (torch.empty(rows, 64),), **options)
        return plan_graph(graph, mesh="d=1", cluster=cluster, compare=False), graph


@pytest.mark.parametrize("execution", MeasuredBlock.CALLS)
def test_calls_of_the_block_that_hosts_are_measured_with_are_counted_as_those_of_plans(execution):
    each = Device("d", {"float32": 1.0}, 1.0, 1.0, host={execution: (0.0, 1.0)})
    counts = []
    for layers in (1, 3):
        with torch.device("meta"):
            module = nn.Sequential(*(MeasuredBlock() for _ in range(layers))).bfloat16()
            x = torch.empty(1, 128, 512, dtype=BF16, requires_grad=True)
        counts.append(host_seconds(capture(module, (x,), execution=execution), each))
    assert counts[1] - counts[0] == 2 * MeasuredBlock.CALLS[execution]


@pytest.mark.parametrize("execution", ["eager", "compiled"])
def test_a_step_takes_no_less_than_the_host_needs_to_start_it(execution):
    cluster = Cluster.preset("h200")
    small, graph = one_layer(cluster, 8, execution=execution)
    step, each = cluster.device.host[execution]
    started = [node for node in graph.nodes if execution == "eager" or not node.facts.view]
    assert small.cost.seconds == pytest.approx(step + each * len(started)) == pytest.approx(small.bound)
    assert "waiting for the host" in small.summary()
    large, _ = one_layer(cluster, 2**24, execution=execution)
    assert large.cost.waiting == 0 and large.cost.seconds > small.cost.seconds


@pytest.mark.parametrize("training", [False, True])
def test_libraries_keep_a_workspace_for_forward_and_one_for_backward(training):
    cluster = Cluster.preset("h200")
    without = replace(cluster, device=replace(cluster.device, workspace=0))
    peaks = [one_layer(each, 8, training=training)[0].cost.peak for each in (cluster, without)]
    assert peaks[0] - peaks[1] == cluster.device.workspace * (1 + training)


def test_a_causal_kernel_waits_for_its_longest_tile():
    def seconds(heads, causal):
        query = TensorInfo((1, heads, 8192, 128), BF16)
        op = overload("shardwise.attention.default")
        call = Call.of(op, query, query, query, None, None, causal, 1.0, 0.0)
        made = (query, TensorInfo((1, heads, 8192), torch.float32))
        return compute_seconds(Cluster.preset("h200").device, "attention", call, made)

    assert seconds(64, False) / seconds(4, False) == pytest.approx(16, rel=0.02)
    assert seconds(64, True) / seconds(4, True) < 13


def test_small_heads_of_attention_take_a_gpu_as_long_as_larger_ones():
    def seconds(cluster, size):
        query = TensorInfo((1, 16, 8192, size), BF16)
        op = overload("shardwise.attention.default")
        call = Call.of(op, query, query, query, None, None, True, 1.0, 0.0)
        made = (query, TensorInfo((1, 16, 8192), torch.float32))
        device = replace(Cluster.preset(cluster).device, exposed={})
        return compute_seconds(device, "attention", call, made) - device.launch

    assert seconds("h200", 32) == seconds("h200", 64) == pytest.approx(seconds("h200", 128) * 96 / 128)
    assert seconds("h200", 80) == seconds("h200", 128)
    assert seconds("laptop", 64) == pytest.approx(seconds("laptop", 128) / 2)


def test_backward_of_fused_attention_sums_in_float32():
    def tensor(heads, dtype=BF16):
        return TensorInfo((2, heads, 256, 64), dtype)

    def scratch(query, keys):
        args = (query, query, keys, keys, query, query, None, None, True, 1.0, 0.0)
        return scratch_bytes(Call(overload("shardwise.attention_backward.default"), args))

    alone = scratch(tensor(8), tensor(8))
    assert alone == 2 * 8 * 256 * (64 + 1) * 4
    assert scratch(tensor(8), tensor(2)) == alone + 2 * tensor(8).bytes
    assert scratch(tensor(8, F32), tensor(8, F32)) == 0
    assert scratch_bytes(Call.of(overload("aten.neg.default"), tensor(8))) == 0


@torch.library.custom_op("prices::outer", mutates_args=())
def outer(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x[:, None] * y


def test_an_operator_declares_its_kernel_its_operations_and_its_memory():
    op = overload("prices.outer.default")
    x, y, result = TensorInfo((64,), F32), TensorInfo((32,), F32), TensorInfo((64, 32), F32)
    call = Call.of(op, x, y)
    assert kernel_kind(op, [x, y], (result,)) == "memory"
    assert cost(call, (result,))[0] == 64 * 32
    declare(
        outer,
        kernel="matmul",
        flops=lambda x, y: 2 * x.numel * y.numel,
        scratch=lambda x, y: x.bytes,
    )
    assert kernel_kind(op, [x, y], (result,)) == "matmul"
    assert cost(call, (result,))[0] == 2 * 64 * 32
    assert scratch_bytes(call) == 64 * 4


def measured_experts():
    """What benchmarks/experts_on_gpu.py measured: sizes, direction, milliseconds and MiB."""
    kept = Path(__file__).parents[2] / "benchmarks" / "results" / "experts_on_gpu.json"
    (sheet,) = json.loads(kept.read_text())["sheets"]
    place = list(sheet["columns"]).index
    return [(row[:5], row[5], row[place("measured")], row[place("peak measured")]) for row in sheet["rows"]]


@pytest.mark.parametrize(("sizes", "way", "milliseconds", "mebibytes"), measured_experts())
def test_mixtures_of_experts_cost_what_was_measured(sizes, way, milliseconds, mebibytes):
    tokens, slots, width, features, experts = sizes
    shapes = {"input": (tokens, width), "index": (tokens, slots), "weight": (tokens, slots)}
    shapes |= {"up": (experts, width, 2, features), "down": (experts, features, width)}
    given = {
        name: TensorInfo(shape, torch.int64 if name == "index" else BF16) for name, shape in shapes.items()
    }
    rest = {"up_bias": None, "down_bias": None, "gate": "silu_gated", "experts": experts}
    made, op = [given["input"]], "shardwise.experts.default"
    if way == "backward":
        made, op = [given[n] for n in ("input", "weight", "up", "down")], "shardwise.experts_backward.default"
        rest["grad"] = given["input"]
    call = Call.named(overload(op), {**given, **rest})
    device = Cluster.preset("h200").device
    assert compute_seconds(device, "matmul", call, made) * 1e3 == pytest.approx(milliseconds, rel=0.06)
    held = scratch_bytes(call) + sum(tensor.bytes for tensor in made)
    assert held / 2**20 == pytest.approx(mebibytes, rel=0.01)
