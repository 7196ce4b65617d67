import functools
import sys
from collections import OrderedDict

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from shardwise.errors import UsageError
from shardwise.graph import Graph, Input, capture, run


def targets(graph, role):
    return [entry.target for entry in graph.inputs if entry.role == role]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.second = nn.Linear(8, 6)

    def forward(self, x, *, scale=1.0, shift=None):
        y = self.second(self.first(x).relu()) * scale
        return y if shift is None else y + shift


# --- what is captured -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["real", "meta", "fake"])
def test_real_meta_and_fake_modules_give_the_same_graph(where):
    place = {"real": torch.device("cpu"), "meta": torch.device("meta"), "fake": FakeTensorMode()}[where]
    with place:
        net, x = Net(), torch.zeros(3, 6)
    graph = capture(net, (x,))
    assert graph == capture(Net(), (torch.randn(3, 6),))
    assert all(ref is not None for ref in graph.gradients.values())


@pytest.mark.parametrize("fails", [False, True])
def test_the_model_is_left_as_it_was(fails):
    net = nn.Sequential(Net(), nn.Dropout(), nn.BatchNorm1d(6))
    net[1].eval()
    net.constant = torch.ones(2)
    state = {**dict(net.named_parameters()), **dict(net.named_buffers())}
    held = net.constant
    x = torch.randn(3, 5 if fails else 6)
    if fails:
        with pytest.raises(UsageError):
            capture(net, (x,), training=False)
    else:
        capture(net, (x,), training=False)
    after = {**dict(net.named_parameters()), **dict(net.named_buffers())}
    assert all(after[name] is tensor for name, tensor in state.items())
    assert list(after) == list(state)
    assert [m.training for m in net] == [True, False, True]
    assert net.constant is held
    assert net[2].num_batches_tracked == 0


def test_nodes_know_their_module_phase_and_line():
    graph = capture(Net(), (torch.randn(3, 6),))
    forward = [node for node in graph.nodes if node.op == "aten.addmm.default"]
    assert [(n.module, n.phase) for n in forward] == [("first", "forward"), ("second", "forward")]
    backward = [node for node in graph.nodes if node.op == "aten.mm.default"]
    assert {(n.module, n.phase) for n in backward} == {("first", "backward"), ("second", "backward")}
    assert all(n.source.startswith(__file__) for n in forward + backward)


def test_roles_of_inputs_and_outputs():
    net = Net()
    net.second.requires_grad_(False)
    graph = capture(net, (torch.randn(3, 6, requires_grad=True),))
    assert targets(graph, "parameter") == ["first.weight", "first.bias", "second.weight", "second.bias"]
    assert targets(graph, "user_input") == ["x"]
    assert targets(graph, "tangent") == ["output"]
    assert [e.target for e in graph.inputs if e.trainable] == ["first.weight", "first.bias", "x"]
    assert [o.target for o in graph.outputs if o.role == "gradient"] == ["first.weight", "first.bias", "x"]
    assert graph.tensor(graph.gradients["first.weight"]).shape == (8, 6)


def test_keyword_arguments_in_any_order():
    net, x, shift = Net(), torch.randn(3, 6), torch.randn(6)
    kwargs = {"shift": shift, "scale": 2.0}
    graph = capture(net, (x,), kwargs)
    torch.testing.assert_close(run(graph, net, (x,), kwargs).outputs["output"], net(x, **kwargs).detach())
    assert targets(graph, "user_input") == ["x", "shift"]


def test_a_tensor_given_twice_is_two_inputs():
    def both(x, y):
        return x * 2 + y

    x, y = torch.randn(3, requires_grad=True), torch.randn(3)
    graph = capture(both, (x, x))
    assert targets(graph, "user_input") == ["x", "y"]
    torch.testing.assert_close(run(graph, both, (x, y)).outputs["output"], (x * 2 + y).detach())


def test_nested_arguments_and_results():
    def program(batch):
        return {"sums": [v.sum() for v in batch["values"]], "first": batch["values"][0] * batch["times"]}

    batch = {"values": [torch.randn(2, 3, requires_grad=True), torch.randn(4)], "times": 3}
    graph = capture(program, (batch,), loss="first")
    assert targets(graph, "user_input") == ["batch.values.0", "batch.values.1"]
    assert [o.target for o in graph.outputs if o.role == "user_output"] == ["sums.0", "sums.1", "first"]
    ran = run(graph, program, (batch,))
    torch.testing.assert_close(ran.gradients["batch.values.0"], torch.full((2, 3), 3.0))


def test_tied_weights_are_one_parameter_with_the_whole_gradient():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(11, 4)
            self.head = nn.Linear(4, 11, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, tokens):
            return self.head(self.embed(tokens)).square().mean()

    net, tokens = Tied(), torch.tensor([1, 5, 5, 0])
    graph = capture(net, (tokens,))
    [weight] = graph.with_role("parameter")
    assert (weight.target, weight.aliases) == ("embed.weight", ("head.weight",))
    net(tokens).backward()
    torch.testing.assert_close(run(graph, net, (tokens,)).gradients["embed.weight"], net.embed.weight.grad)


def test_mutated_buffers_are_outputs():
    net, x = nn.BatchNorm1d(4), torch.randn(5, 4)
    graph = capture(net, (x,))
    ran = run(graph, net, (x,))
    assert net.num_batches_tracked == 0
    net(x)
    assert set(ran.mutations) == {"running_mean", "running_var", "num_batches_tracked"}
    for name, value in ran.mutations.items():
        torch.testing.assert_close(value, getattr(net, name))


class Counts(nn.Module):
    """Uses a buffer in the loss and changes it, in place or by setting it, before or after."""

    def __init__(self, how):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("count", torch.ones(()))
        self.how = how

    def forward(self, x):
        if self.how == "in place before":
            self.count += 1
        loss = (x * self.weight).sum() * self.count
        if self.how == "set after":
            self.count = self.count * 2 + loss.detach()
        return loss


@pytest.mark.parametrize("how", ["in place before", "set after"])
def test_a_buffer_may_be_used_in_the_loss_and_changed(how):
    net, x = Counts(how), torch.randn(2, 3)
    ran = run(capture(net, (x,)), net, (x,))
    assert net.count == 1
    loss = net(x)
    loss.backward()
    torch.testing.assert_close(ran.outputs, {"output": loss.detach()})
    torch.testing.assert_close(ran.gradients["weight"], net.weight.grad)
    torch.testing.assert_close(ran.mutations, {"count": net.count})


def test_results_of_classes_that_are_registered_without_names_have_those_of_their_keys():
    class Result(OrderedDict):
        pass

    pytree.register_pytree_node(
        Result,
        lambda held: (list(held.values()), list(held)),
        lambda values, keys: Result(zip(keys, values, strict=True)),
    )
    graph = capture(lambda x: Result(sample=x + 1, loss=x.sum()), (torch.randn(3, requires_grad=True),))
    assert [output.target for output in graph.outputs if output.role == "user_output"] == ["sample", "loss"]


def test_attributes_that_the_program_sets_do_not_stay():
    class Remembers(nn.Linear):
        def forward(self, x):
            self.last = super().forward(x)
            return self.last.sum()

    net = Remembers(3, 3)
    [note] = capture(net, (torch.randn(2, 3),)).notes
    assert note == "it assigns tensors to self.last, which are not kept from call to call"
    assert not hasattr(net, "last")


class Averages(nn.Module):
    """Keeps a moving average in a buffer, by assigning it."""

    def __init__(self, *sizes):
        super().__init__()
        self.register_buffer("average", torch.zeros(sizes))

    def forward(self, x):
        self.average = 0.9 * self.average + 0.1 * x.detach().mean(0)
        return x - self.average


def test_a_buffer_that_a_part_of_the_model_replaces_is_written_to():
    net, x = nn.Sequential(nn.Linear(3, 3), Averages(3)), torch.randn(4, 3)
    ran = run(capture(net, (x,)), net, (x,))
    net(x)
    torch.testing.assert_close(ran.mutations, {"1.average": net[1].average})


def test_a_buffer_that_becomes_another_kind_of_tensor_is_noted():
    net = nn.Sequential(nn.Linear(3, 3), Averages())
    [note] = capture(net, (torch.randn(4, 3),)).notes
    assert note == (
        "it assigns another kind of tensor to 1.average (torch.float32 [] and then torch.float32 [3]), which is not "
        "kept from call to call"
    )


def test_an_argument_with_the_name_of_a_parameter_keeps_its_own_gradient():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, weight):
            return (weight * self.weight * 2).sum()

    graph = capture(Scaled(), (torch.ones(3, requires_grad=True),))
    assert list(graph.gradients) == ["weight", "args.weight"]


@pytest.mark.parametrize("constant", [True, False], ids=["values", "meta"])
def test_tensors_that_a_model_holds_without_registering_them(constant):
    class Holds(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.arange(4.0)
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x):
            return (x * self.table * self.weight).sum()

    with torch.device("cpu" if constant else "meta"):
        net = Holds()
    x = torch.randn(2, 4)
    graph = capture(net, (x,))
    if constant:
        assert len(graph.with_role("constant")) == 1
        torch.testing.assert_close(run(graph, net, (x,)).outputs["output"], net(x).detach())
    else:
        assert targets(graph, "buffer") == ["table"]
        assert "table" not in net._buffers


def test_a_parameter_that_the_loss_does_not_use_has_no_gradient():
    net = Net()
    net.extra = nn.Parameter(torch.ones(3))
    assert capture(net, (torch.randn(3, 6),)).gradients["extra"] is None


# --- where backward starts --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outputs", "given", "started"),
    [
        (lambda y: {"loss": y.sum(), "aux": y.mean(), "y": y}, None, ["loss"]),
        (lambda y: (y.sum(), y, y.mean()), None, ["0", "2"]),
        (lambda y: (y, y * 2), None, ["0", "1"]),
        (lambda y: {"loss": y.sum(), "aux": y.mean()}, "aux", ["aux"]),
        (lambda y: (y.sum(), y), ["0", "1"], ["0", "1"]),
    ],
)
def test_backward_starts_from_the_loss(outputs, given, started):
    graph = capture(lambda x: outputs(x.exp()), (torch.randn(3, requires_grad=True),), loss=given)
    assert targets(graph, "tangent") == started


def test_the_gradient_is_that_of_the_chosen_output():
    def two(x):
        return x.square().sum(), x.sum()

    x = torch.randn(3, requires_grad=True)
    graph = capture(two, (x,), loss="1")
    torch.testing.assert_close(run(graph, two, (x,)).gradients["x"], torch.ones(3))


def two_views(x):
    y = x.exp()
    return y, y.view(-1)


def pieces(x):
    return x.exp().split([1, 2])


def itself(x):
    return x, x.exp()


@pytest.mark.parametrize("program", [two_views, pieces, itself])
def test_every_output_has_its_own_tangent_also_where_two_show_the_same_memory(program):
    x = torch.randn(3, 2, requires_grad=True)
    graph = capture(program, (x,))
    tangents = {entry.target: torch.randn(entry.tensor.shape) for entry in graph.with_role("tangent")}
    assert list(tangents) == ["0", "1"]
    torch.autograd.backward(program(x), list(tangents.values()))
    torch.testing.assert_close(run(graph, program, (x,), tangents=tangents).gradients["x"], x.grad)


# --- functions --------------------------------------------------------------------------------------------------


def test_modules_that_a_function_reaches_are_its_parameters():
    net, x = Net(), torch.randn(3, 6)

    def loss(x):
        return net(x).square().mean()

    def scaled(model, x):
        return model(x).sum()

    cases = [(loss, "net"), (functools.partial(scaled, net), "module_0"), (net.forward, "self")]
    for function, name in cases:
        graph = capture(function, (x,))
        assert targets(graph, "parameter")[0] == f"{name}.first.weight"
        net.zero_grad()
        function(x).sum().backward()
        ran = run(graph, function, (x,))
        torch.testing.assert_close(ran.gradients[f"{name}.second.bias"], net.second.bias.grad)


@torch.library.custom_op("shardwise_tests::scaled", mutates_args=())
def scaled_by(x: torch.Tensor, factor: float) -> torch.Tensor:
    return x * factor


scaled_by.register_fake(lambda x, factor: torch.empty_like(x))


class Callable:
    def __call__(self, x, *, factor):
        return x * factor


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "name", "op"),
    [
        (scaled_by, (2.0,), {}, "shardwise_tests.scaled.default", "shardwise_tests.scaled.default"),
        (functools.partial(scaled_by, factor=2.0), (), {}, "shardwise_tests.scaled.default", None),
        (torch.ops.aten.mul.Scalar, (2.0,), {}, "aten.mul.Scalar", "aten.mul.Scalar"),
        (torch.ops.aten.mul, (2.0,), {}, "aten.mul", "aten.mul.Tensor"),
        (functools.partial(torch.softmax, dim=1), (), {}, "softmax", "aten._softmax.default"),
        (torch.mm, (torch.rand(6, 2),), {}, "mm", "aten.mm.default"),
        (Callable(), (), {"factor": 2.0}, "Callable", "aten.mul.Tensor"),
    ],
    ids=("custom", "custom partial", "overload", "packet", "partial", "builtin", "object"),
)
def test_whatever_can_be_called_is_captured(function, args, kwargs, name, op):
    graph = capture(function, (torch.rand(3, 6), *args), kwargs, training=False)
    assert graph.name == name
    assert [node.op for node in graph.nodes] == [op or "shardwise_tests.scaled.default"]


def outer(x):
    return sum(inner(row) for row in x)


def inner(row):
    return GLOBAL(row).sum() + (outer(row) if row.dim() > 1 else 0)


GLOBAL = nn.Linear(6, 2)


def test_modules_are_found_through_functions_of_the_same_file_and_code_written_inside():
    graph = capture(outer, (torch.randn(2, 6),))
    assert targets(graph, "parameter") == ["GLOBAL.weight", "GLOBAL.bias"]
    assert None not in graph.gradients.values()


def test_a_compiled_module_is_captured_as_the_module_it_was_made_from():
    net = Net()
    assert capture(torch.compile(net), (torch.randn(3, 6),)) == capture(net, (torch.randn(3, 6),))


# --- what models do inside --------------------------------------------------------------------------------------


def test_dropout_stays_whole_in_training_and_is_gone_in_inference():
    net, x = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)), torch.randn(3, 4)
    assert capture(net, (x,)).ops["aten.native_dropout.default"] == 1
    assert "aten.native_dropout.default" not in capture(net, (x,), training=False).ops


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_autocast_is_casts_whatever_device_it_is_for(device):
    net = nn.Linear(4, 4)

    def program(x):
        with torch.autocast(device, dtype=torch.bfloat16):
            heads = net(x).reshape(1, 1, 3, 4).float()
            return F.scaled_dot_product_attention(heads, heads, heads)

    graph = capture(program, (torch.randn(3, 4),))
    dtypes = {node.op: node.outputs[0].dtype for node in graph.nodes}
    assert dtypes["aten.addmm.default"] == torch.bfloat16
    assert dtypes["shardwise.attention.default"] == torch.bfloat16
    assert graph.tensor(graph.gradients["net.weight"]).dtype == torch.float32


def test_autocast_around_a_program_is_part_of_its_graph():
    net, args = nn.Sequential(nn.Linear(4, 4), nn.Softmax(-1)), (torch.randn(3, 4),)
    plain = capture(net, args)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        graph = capture(net, args)
        assert Graph.from_json(graph.to_json()) == graph
    assert (graph.autocast, plain.autocast) == (torch.bfloat16, None)
    assert {str(node.outputs[0].dtype) for node in graph.nodes} == {"torch.bfloat16", "torch.float32"}
    # Only what the program itself casts is cast: backward follows the dtypes of forward.
    assert graph.tensor(graph.gradients["0.weight"]).dtype == torch.float32


@pytest.mark.parametrize("net", [nn.LSTM(4, 3, 2), nn.GRU(4, 3, bidirectional=True)], ids=["lstm", "gru"])
def test_recurrent_layers_are_made_of_operators_of_every_device(net, recwarn):
    graph = capture(net, (torch.randn(5, 2, 4),))
    assert not [op for op in graph.ops if "mkldnn" in op or "lstm" in op or "gru" in op]
    assert not recwarn.list


@pytest.mark.parametrize(
    "norm",
    [
        nn.BatchNorm2d(4),
        nn.BatchNorm2d(4).eval(),
        nn.BatchNorm2d(4, affine=False),
        nn.BatchNorm2d(4, track_running_stats=False),
    ],
    ids=["train", "eval", "no weight", "no statistics"],
)
def test_batch_norm_is_one_call_where_it_trains_and_arithmetic_where_it_does_not(norm):
    norm = norm.double()
    x = torch.randn(3, 4, 5, 2, dtype=torch.float64, requires_grad=True)
    graph = capture(norm, (x,))
    whole = [op for op in graph.ops if "norm" in op]
    assert len(whole) == (2 if norm.training else 0) and not [op for op in graph.ops if "var" in op]
    tangent = torch.randn(3, 4, 5, 2, dtype=torch.float64)
    ran = run(graph, norm, (x,), tangents={"output": tangent})
    y = norm(x)
    y.backward(tangent)
    torch.testing.assert_close(ran.outputs["output"], y)
    torch.testing.assert_close(ran.gradients["input"], x.grad)


def test_cross_entropy_is_taken_apart_so_that_batch_and_classes_can_be_sharded():
    logits = torch.randn(5, 7, requires_grad=True)
    labels = torch.tensor([1, 2, -100, 0, 6])
    graph = capture(F.cross_entropy, (logits, labels))
    assert not [op for op in graph.ops if "nll_loss" in op or "log_softmax" in op]
    ran = run(graph, F.cross_entropy, (logits, labels))
    F.cross_entropy(logits, labels).backward()
    torch.testing.assert_close(ran.gradients["input"], logits.grad)


def test_a_view_made_twice_is_one_node_and_views_that_change_nothing_are_none():
    def program(x, a, b):
        return (x.view(6, 2) @ a).sum() + (x.view(6, 2) @ b).sum() + x.view(3, 4).expand(3, 4).sum()

    x = torch.randn(3, 4, requires_grad=True)
    graph = capture(program, (x, torch.randn(2, 5), torch.randn(2, 5)))
    forward = [n.op for n in graph.nodes if n.phase == "forward" and ("view" in n.op or "expand" in n.op)]
    assert forward == ["aten.view.default"]


class Cache:
    """A result of a class that torch knows nothing of."""

    def __init__(self, keys):
        self.keys, self.limit, self.owner = [keys], 3, self


def test_results_of_any_class_are_the_tensors_in_them():
    graph = capture(lambda x: {"loss": x.sum(), "cache": Cache(x * 2)}, (torch.randn(3, requires_grad=True),))
    assert [o.target for o in graph.outputs if o.role == "user_output"] == ["loss", "cache.keys.0"]


def test_layers_skipped_at_random_at_rate_zero_are_never_skipped():
    class Skipping(nn.Module):
        def __init__(self, rate):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
            self.rate = rate

        def forward(self, x):
            for layer in self.layers:
                if self.training and torch.rand([]) < self.rate:
                    continue
                x = layer(x)
            return x

    graph = capture(Skipping(0.0), (torch.randn(3, 4),))
    assert graph.ops["aten.addmm.default"] == 2
    assert not graph.notes


# --- the graph ----------------------------------------------------------------------------------------------------


def test_a_graph_answers_queries():
    graph = capture(Net(), (torch.randn(3, 6),))
    relu = graph["relu"]
    [source] = relu.inputs
    assert graph.tensor(source).shape == (3, 8)
    assert relu in graph.users[source]
    parameter = graph["first_weight"]
    assert isinstance(parameter, Input)
    assert parameter.target == "first.weight"
    with pytest.raises(UsageError, match="no node 'nothing'"):
        graph["nothing"]


def test_inputs_are_called_what_they_are():
    class Clash(nn.Module):
        def __init__(self):
            super().__init__()
            self.relu = nn.Linear(4, 4, bias=False)

        def forward(self, x, relu_weight):
            return {"loss": (torch.relu(self.relu(x)) + relu_weight).sum()}

    graph = capture(Clash(), (torch.randn(3, 4), torch.randn(4)))
    names = {entry.target: entry.name for entry in graph.inputs if entry.role != "tangent"}
    assert names["x"] == "x"
    assert sorted([names["relu.weight"], names["relu_weight"]]) == ["relu_weight", "relu_weight_1"]
    assert [entry.name for entry in graph.with_role("tangent")] == ["gradient_of_loss"]
    assert not any("primals" in str(node) or "tangents" in str(node) for node in graph.nodes)


def test_sums_of_gradients_belong_to_what_made_the_value():
    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
            self.left, self.right = (nn.Linear(4, 4, bias=False) for _ in range(2))

        def forward(self, x):
            x = self.inner(x)
            return (self.left(x) * self.right(x)).sum()

    graph = capture(Branches(), (torch.randn(3, 4),))
    [total] = [node for node in graph.nodes if node.phase == "backward" and node.op == "aten.add.Tensor"]
    assert total.module == "inner.1"


def test_the_summary_and_the_table():
    graph = capture(Net(), (torch.randn(3, 6),))
    summary = str(graph)
    assert "Net: forward and backward" in summary
    assert "4 tensors, 110 numbers, 440 B" in summary
    assert "x float32[3, 6]" in summary
    table = graph.table(module="second", phase="forward").splitlines()
    assert [line.split()[0] for line in table if not line.startswith(" ")] == ["t_1", "addmm_1"]
    assert table[3] == "addmm_1  aten.addmm.default(second.bias, relu, t_1) -> float32[3, 6]"
    assert table[4] == "         j, i k, k j -> i j"
    assert table[5] == "         forward in second, 288 flop, 384 B moved"
    assert "grad(output)" in graph.table(phase="backward")


def test_the_table_fits_a_terminal():
    class Long(nn.Module):
        def __init__(self):
            super().__init__()
            self.a_layer_with_a_rather_long_name = nn.ModuleList(nn.Linear(6, 6) for _ in range(2))

        def forward(self, several_words_for_an_input):
            for layer in self.a_layer_with_a_rather_long_name:
                several_words_for_an_input = torch.stack([layer(several_words_for_an_input)] * 3).sum(0)
            return several_words_for_an_input

    table = capture(Long(), (torch.randn(3, 6),)).table().splitlines()
    assert max(map(len, table)) <= 80


def test_what_a_program_prints_to_stderr_is_shown(capsys):
    def telling(x):
        print("told", file=sys.stderr)
        return x + 1

    capture(telling, (torch.randn(3),), training=False)
    assert "told" in capsys.readouterr().err
