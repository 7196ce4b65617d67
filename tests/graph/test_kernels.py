"""Which calls share a kernel, by how the program is executed, and what crosses its border."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from shardwise.errors import UsageError
from shardwise.graph import Graph, Kernels, Ref, capture


def captured(function, *args, execution="compiled", training=False) -> Graph:
    return capture(function, args, training=training, execution=execution)


def groups(graph: Graph) -> list[list[str]]:
    """The calls of each kernel that has several, by the short names of their operators."""
    found: dict[int, list[str]] = {}
    for node in graph.nodes:
        if node.name in graph.kernels.number:
            found.setdefault(graph.kernels.number[node.name], []).append(node.op.split(".")[1])
    return [calls for calls in found.values() if len(calls) > 1]


def traffic(graph: Graph) -> float:
    """The bytes that all kernels with borders read and write."""
    moved = 0.0
    for name, border in graph.kernels.borders.items():
        node = graph[name]
        moved += sum(graph.tensor(node.inputs[place]).stored_bytes * times for place, times in border.reads)
        moved += sum(node.outputs[place].bytes for place in border.writes)
    return moved


x = torch.empty(64, 32)


def test_eager_calls_are_kernels_of_their_own():
    graph = captured(lambda x: (x * 2).relu().sum(-1), x, execution="eager")
    assert graph.kernels == Kernels()


def test_what_torch_runs_as_one_kernel_is_one_though_it_was_decomposed():
    graph = captured(lambda x: x.log_softmax(-1).neg(), x, execution="eager")
    [calls] = groups(graph)
    assert "exp" in calls and "neg" not in calls
    assert traffic(graph) == 2 * x.nbytes
    assert sum(border.starts for border in graph.kernels.borders.values()) == 1


def test_the_loss_is_four_eager_kernels():
    graph = captured(
        F.cross_entropy,
        x.clone().requires_grad_(),
        torch.zeros(64, dtype=torch.int64),
        execution="eager",
        training=True,
    )
    assert {node.part_of.split("#")[0] for node in graph.nodes if node.part_of} == {
        "aten._log_softmax.default",
        "aten.nll_loss_forward.default",
        "aten.nll_loss_backward.default",
        "aten._log_softmax_backward_data.default",
    }
    assert sum(border.starts for border in graph.kernels.borders.values()) == 4


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: (x * 2).relu() + 1, [["mul", "relu", "add"]]),
        (lambda x: (x.t() * 2).t() + 1, [["mul", "add"]]),  # views in between are free
        (
            lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6),
            [["pow", "mean", "add", "rsqrt", "mul"]],
        ),
        (lambda x: (x * 2).sum(0), [["mul", "sum"]]),
        (lambda x: ((x * 2) @ x.t()).relu() + 1, [["relu", "add"]]),  # products are kernels of their own
        (lambda x: torch.cat([-x[:, 16:], x[:, :16]], -1) * x, [["neg", "cat", "mul"]]),
        (lambda x: [x * 2, x + 3], [["mul", "add"]]),  # both read x
    ],
    ids=["pointwise", "views", "norm", "reduction", "product", "cat", "siblings"],
)
def test_compiled_calls_are_grouped(function, expected):
    assert groups(captured(function, x)) == expected


def test_a_kernel_does_not_wait_for_itself():
    def function(x):
        y = x * 2
        return y + (y @ torch.ones(32, 32)).relu()

    graph = captured(function, x)
    assert all("mul" not in calls for calls in groups(graph))


def test_a_loop_over_columns_is_not_the_loop_over_rows():
    graph = captured(lambda x: [(x * 2).sum(0), (x * 2).sum(1)], x)
    assert len({graph.kernels.number[node.name] for node in graph.nodes if "sum" in node.op}) == 2


def test_forward_and_backward_are_compiled_apart():
    graph = captured(lambda x: x.sin().sum(), x.clone().requires_grad_(), training=True)
    phases = {
        graph.kernels.number[node.name]: node.phase
        for node in graph.nodes
        if node.name in graph.kernels.number
    }
    kernels = {(graph.kernels.number[n.name], n.phase) for n in graph.nodes if n.name in graph.kernels.number}
    assert kernels == set(phases.items())


def test_only_what_crosses_the_border_is_moved_and_stored():
    graph = captured(lambda x: (x * 2).relu() + 1, x)
    assert traffic(graph) == 2 * x.nbytes
    assert graph.kernels.inner == {Ref("mul"), Ref("relu")}


def test_a_tensor_is_read_once_by_a_kernel():
    graph = captured(lambda x: x * 2 + x * 3 + x.view(-1).view(64, 32), x)
    assert traffic(graph) == 2 * x.nbytes


def test_a_cheap_value_is_computed_again_by_another_kernel():
    def function(x):
        wide = x.to(torch.float32)
        return wide.sum(0), wide.sum(1)

    half = x.bfloat16()
    graph = captured(function, half)
    assert Ref("_to_copy") in graph.kernels.inner
    assert traffic(graph) == 2 * half.nbytes + 32 * 4 + 64 * 4


def test_the_program_is_the_same_however_it_is_grouped():
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    one, two = (capture(model, (torch.empty(4, 8),), execution=how) for how in ("eager", "compiled"))
    assert [node.op for node in one.nodes] == [node.op for node in two.nodes]
    assert Graph.from_json(two.to_json()) == two != one


def test_unknown_executions_are_refused():
    with pytest.raises(UsageError, match="execution is 'fast': use 'eager', 'compiled' or 'regional'"):
        captured(torch.relu, x, execution="fast")


def test_gradients_of_weights_of_norms_wait_for_others_that_read_the_same():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.RMSNorm(32), nn.RMSNorm(32)
            self.up = nn.Linear(32, 32, bias=False)

        def forward(self, x):
            x = x + self.up(self.first(x))
            return x + self.second(x)

    graph = captured(Block(), x.clone().requires_grad_(), training=True)
    waits = {graph.ends[name] for name in graph.kernels.waiting}
    assert len(waits) == 1
    assert {graph.kernels.number[name] for name in graph.kernels.waiting} > {
        graph.kernels.number[waits.pop()]
    }


def test_regional_compiles_each_block_and_leaves_the_rest():
    class Blocks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Sequential(nn.RMSNorm(8), nn.SiLU()) for _ in range(2))
            self.norm = nn.RMSNorm(8)

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return self.norm(x).mul(2).exp().sum()

    graph = capture(Blocks(), (torch.rand(4, 8),), execution="regional")
    regions = {node.name: graph.region(node) for node in graph.nodes}
    assert set(regions.values()) == {None, "layers.0", "layers.1"}
    kernels = {}
    for name, number in graph.kernels.number.items():
        kernels.setdefault(number, set()).add((regions[name], graph[name].phase))
    assert all(len(places) == 1 for places in kernels.values())  # none spans two blocks
    outside = [node.op for node in graph.nodes if regions[node.name] is None and node.phase == "forward"]
    assert outside[:3] == ["shardwise.rms_norm.default", "aten.mul.Tensor", "aten.exp.default"]
    assert not {node.name for node in graph.nodes if regions[node.name] is None} & set(graph.kernels.number)
    assert Graph.from_json(graph.to_json()).kernels == graph.kernels
