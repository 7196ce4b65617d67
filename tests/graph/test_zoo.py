"""Every model of the zoo: its graph computes what the model computes."""

import pytest
import torch
from torch.utils import _pytree as pytree

from shardwise.graph import Graph, capture, run

NAMES = [
    *("mlp", "llama", "gpt2", "bert", "t5", "vit", "mixtral"),
    *("cnn", "unet", "lstm", "recommender", "custom_op"),
]


@pytest.fixture
def built(models, request):
    """The model and its arguments in float64, as far as the model lets it be: some turn to float32 inside."""
    torch.manual_seed(0)
    model, args, kwargs = models.ZOO[request.param]()

    def double(leaf):
        return leaf.double() if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf

    return model.double(), *pytree.tree_map(double, (args, kwargs))


def test_these_are_all_models_of_the_zoo(models):
    assert sorted(models.ZOO) == sorted(NAMES)


@pytest.mark.parametrize("built", NAMES, indirect=True)
def test_loss_gradients_and_mutations_are_those_of_the_model(built):
    model, args, kwargs = built
    graph = capture(model, args, kwargs)
    ran = run(graph, model, args, kwargs)
    outputs = model(*args, **kwargs)

    [loss] = [entry.target for entry in graph.with_role("tangent")]
    leaves = dict(zip(ran.outputs, pytree.tree_leaves(outputs), strict=True))
    for name, expected in leaves.items():
        torch.testing.assert_close(ran.outputs[name], expected, rtol=1e-6, atol=1e-6)
    leaves[loss].backward()
    parameters = dict(model.named_parameters())
    assert set(ran.gradients) == set(parameters)
    assert any(gradient is not None and gradient.abs().max() > 1e-3 for gradient in ran.gradients.values())
    for name, parameter in parameters.items():
        torch.testing.assert_close(ran.gradients[name], parameter.grad, rtol=1e-4, atol=1e-6)
    buffers = dict(model.named_buffers())
    for name, value in ran.mutations.items():
        torch.testing.assert_close(value, buffers[name])

    assert Graph.from_json(graph.to_json()) == graph


@pytest.mark.parametrize("built", NAMES, indirect=True)
def test_forward_alone_is_the_model_in_eval_mode(built):
    model, args, kwargs = built
    graph = capture(model, args, kwargs, training=False)
    assert {node.phase for node in graph.nodes} == {"forward"}
    assert not graph.with_role("tangent")
    assert not [o for o in graph.outputs if o.role != "user_output"]
    assert model.training
    ran = run(graph, model, args, kwargs)
    leaves = pytree.tree_leaves(model.eval()(*args, **kwargs))
    for value, expected in zip(ran.outputs.values(), leaves, strict=True):
        torch.testing.assert_close(value, expected.detach(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("built", "causal", "masked", "key_heads"),
    [
        ("llama", True, False, 2),
        ("mixtral", True, False, 2),
        ("gpt2", True, False, 4),
        ("bert", False, True, 4),
        ("vit", False, False, 4),
    ],
    indirect=["built"],
)
def test_attention_is_one_fused_node_per_layer_in_its_simplest_form(built, causal, masked, key_heads):
    model, args, kwargs = built
    graph = capture(model, args, kwargs, training=False)
    nodes = [node for node in graph.nodes if node.op == "shardwise.attention.default"]
    assert len(nodes) == 2
    for node in nodes:
        assert (node.args[5], node.args[3] is not None) == (causal, masked)
        assert graph.tensor(node.inputs[0]).shape[1] == 4
        assert graph.tensor(node.inputs[1]).shape[1] == key_heads


def test_a_model_of_real_dimensions_takes_no_memory(models):
    import resource

    model, args, kwargs = models.llama_8b(layers=2)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    graph = capture(model, args, kwargs)
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    weights = sum(p.tensor.bytes for p in graph.with_role("parameter"))
    assert weights > 2.9e9
    assert grown < 0.4e9
    assert graph.ops["shardwise.attention.default"] == 2
    assert all(n.args[3] is None for n in graph.nodes if n.op == "shardwise.attention.default")
    # Six times parameters times tokens, and attention, whose triangle is half a square.
    tokens, hidden, positions = 2 * 8192, 4096, 8192
    linear = sum(p.tensor.numel for p in graph.with_role("parameter")) - 128256 * hidden
    expected = 6 * tokens * linear + 2 * (2 + 5) * tokens * positions * hidden
    assert graph.flops() == pytest.approx(expected, rel=0.01)


@pytest.mark.long
def test_thirty_two_layers_of_real_dimensions(models):
    graph = capture(*models.llama_8b())
    assert sum(p.tensor.numel for p in graph.with_role("parameter")) == 8_030_261_248
    assert graph.ops["shardwise.attention_backward.default"] == 32
    assert all(ref is not None for ref in graph.gradients.values())
