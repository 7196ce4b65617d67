"""What a program tells autograd is in its graph, or the program is refused: the model itself is the reference."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint

from shardwise.errors import UsageError
from shardwise.graph import capture, run


class Model(nn.Module):
    """Two layers with something in between."""

    def __init__(self, between):
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.between = between

    def forward(self, x):
        return self.second(self.between(self, self.first(x))).square().mean()


def require_same(model, x):
    """The captured graph gives the model's own output, gradients and buffers."""
    graph = capture(model, (x,))
    torch.manual_seed(3)
    ran = run(graph, model, (x,))
    torch.manual_seed(3)
    loss = model(x)
    loss.backward()
    torch.testing.assert_close(ran.outputs["output"], loss.detach())
    for name, parameter in model.named_parameters():
        expected = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        found = ran.gradients.get(name)
        torch.testing.assert_close(torch.zeros_like(parameter) if found is None else found, expected)
    for name, buffer in model.named_buffers():
        if name in ran.mutations:
            torch.testing.assert_close(ran.mutations[name], buffer)


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, grad):
        return grad


class RoundedBySetup(torch.autograd.Function):
    @staticmethod
    def forward(x, times=2.0):
        return (x * times).round()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.times = inputs[1]

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.times, None


class Saving(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        own = grad * weight * 2 if ctx.needs_input_grad[0] else None
        return own, grad * x * 5 if ctx.needs_input_grad[1] else None


class Sorted(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        values, places = x.sort(-1)
        ctx.mark_non_differentiable(places)
        ctx.save_for_backward(places)
        return values, places

    @staticmethod
    def backward(ctx, grad, _):
        (places,) = ctx.saved_tensors
        return torch.zeros_like(grad).scatter(-1, places, grad) * 3


class Clamped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clamp(0, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        return grad


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, grad):
        return grad * 7


class Cubed(torch.autograd.Function):
    """Differentiates inside its backward."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        with torch.enable_grad():
            x = ctx.saved_tensors[0].detach().requires_grad_()
            (own,) = torch.autograd.grad((x**3).sum(), x)
        return own * grad


class Unused(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x * 1, x * 2

    @staticmethod
    def backward(ctx, first, second):
        assert second is None
        return first * 5


class Same(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


class Nested(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return Rounded.apply(x) * 2

    @staticmethod
    def backward(ctx, grad):
        return Rounded.apply(grad) * 3


class InFull(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(ctx, x):
        return x.exp()

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, grad):
        return grad * 3


class Noisy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * torch.rand_like(grad)


def in_regions(model, x):
    with torch.no_grad():
        plain = Rounded.apply(x)
    with torch.autocast("cpu", torch.bfloat16):
        narrow = Rounded.apply(model.second(x))
    return plain + narrow.float()


def under_autocast(model, x):
    with torch.autocast("cpu", torch.bfloat16):
        return InFull.apply(model.second(x)).float()


def hooked(model, x):
    y = x * 2
    z = y * 3
    y.register_hook(lambda grad: grad + 1)
    y.register_hook(lambda grad: grad * 5)
    y.register_hook(lambda grad: grad * 100).remove()
    y.register_hook(lambda grad: None)
    return z


def in_inference_mode(model, x):
    with torch.inference_mode():
        y = model.second(x.detach())
    return y.clone() + x


def without_gradients(model, x):
    with torch.no_grad():
        y = model.second(x)
        with torch.enable_grad():
            z = x * 3
    return y + z


def own_gradient(create_graph):
    def between(model, x):
        y = model.second(x)
        (grad,) = torch.autograd.grad(y.square().sum(), x, create_graph=create_graph)
        return grad * x + x

    return between


def forces(model, x):
    positions = x.detach().requires_grad_()
    energy = model.second(positions).square().sum()
    (grad,) = torch.autograd.grad(energy, positions, create_graph=True)
    return grad + x


def through_a_function_twice(model, x):
    y = Saving.apply(x, x.detach())
    (grad,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    return grad + y


def clamped_weight(model, x):
    model.second.weight.data.clamp_(-0.1, 0.1)
    return x + x.data


def compiled(model, x):
    return x * 2 if torch.compiler.is_compiling() or torch.compiler.is_exporting() else x * 3


KEPT = {
    "straight through": lambda model, x: Rounded.apply(x * 3),
    "setup_context": lambda model, x: RoundedBySetup.apply(x),
    "save_for_backward": lambda model, x: Saving.apply(x, model.first.bias),
    "needs_input_grad": lambda model, x: Saving.apply(x, torch.ones(6)),
    "non-differentiable output": lambda model, x: Sorted.apply(x)[0],
    "once_differentiable": lambda model, x: Clamped.apply(x),
    "in place": lambda model, x: Doubled.apply(x * 1),
    "gradient inside backward": lambda model, x: Cubed.apply(x),
    "unused output": lambda model, x: Unused.apply(x)[0],
    "returns its input": lambda model, x: Same.apply(x) + x,
    "nested": lambda model, x: Nested.apply(x),
    "random in backward": lambda model, x: Noisy.apply(x),
    "no_grad and autocast": in_regions,
    "custom_fwd": under_autocast,
    "twice": through_a_function_twice,
    "tensor hooks": hooked,
    "retain_grad": lambda model, x: (x.retain_grad(), x * 2)[1],
    "checkpoint": lambda model, x: checkpoint(model.second, x, use_reentrant=False),
    "reentrant checkpoint": lambda model, x: checkpoint(model.second, x, use_reentrant=True),
    "checkpoint with dropout": lambda model, x: checkpoint(
        lambda y: F.dropout(model.second(y), 0.5), x, use_reentrant=False
    ),
    "detach": lambda model, x: x + (x.round() - x).detach(),
    "no_grad": without_gradients,
    "inference_mode": in_inference_mode,
    "own gradient": own_gradient(False),
    "gradient penalty": own_gradient(True),
    "forces": forces,
    "data": clamped_weight,
    "vmap": lambda model, x: torch.vmap(lambda row: (row**3).cumsum(0))(x),
    "vmap with a weight": lambda model, x: torch.vmap(lambda row: model.first.weight @ row)(x),
    "is_compiling": compiled,
}


@pytest.mark.parametrize("name", KEPT)
def test_the_graph_does_what_the_model_does(name):
    torch.manual_seed(0)
    require_same(Model(KEPT[name]), torch.randn(8, 6))


@pytest.mark.parametrize("name", ["checkpoint", "reentrant checkpoint"])
def test_checkpointing_of_the_model_is_noted(name):
    [note] = capture(Model(KEPT[name]), (torch.randn(8, 6),)).notes
    assert "checkpointing is left out: `recompute` says" in note


def test_a_function_that_writes_to_a_buffer():
    class Average(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, average):
            average.mul_(0.9).add_(x.mean(0), alpha=0.1)
            ctx.mark_dirty(average)
            return x * 1, average

        @staticmethod
        def backward(ctx, grad, _):
            return grad * 3, None

    model = Model(lambda model, x: Average.apply(x, model.average)[0])
    model.register_buffer("average", torch.ones(6))
    require_same(model, torch.randn(8, 6))


def test_a_quantised_weight():
    class Quantised(nn.Module):
        def forward(self, weight):
            return Rounded.apply(weight * 4) / 4

    model = Model(lambda model, x: x.relu())
    parametrize.register_parametrization(model.first, "weight", Quantised())
    require_same(model, torch.randn(8, 6))


class Recurrent(nn.Module):
    def __init__(self, kind, **options):
        super().__init__()
        self.layers = getattr(nn, kind)(6, 5, **options)

    def forward(self, x):
        output, last = self.layers(x.view(4, 2, 6))
        return output.square().mean() + sum(part.mean() for part in last)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *((kind, {"num_layers": 2, "dropout": 0.5}) for kind in ("LSTM", "GRU", "RNN")),
        ("RNN", {"num_layers": 3, "dropout": 0.3, "bidirectional": True, "batch_first": True}),
        ("GRU", {"num_layers": 2, "dropout": 0.5, "bias": False}),
        ("LSTM", {"num_layers": 2, "dropout": 1.0}),
        ("LSTM", {"num_layers": 1, "dropout": 0.0}),
    ],
    ids=str,
)
def test_dropout_between_recurrent_layers(kind, options):
    torch.manual_seed(0)
    model = Recurrent(kind, **options)
    require_same(model, torch.randn(8, 6))
    drops = [node for node in capture(model, (torch.randn(8, 6),)).nodes if "dropout" in node.op]
    forward = [node for node in drops if node.phase == "forward"]
    assert len(forward) == (options["num_layers"] - 1)
    assert not [node for node in capture(model.eval(), (torch.randn(8, 6),)).nodes if "dropout" in node.op]


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
def test_dropout_between_layers_with_projections():
    torch.manual_seed(0)
    require_same(Recurrent("LSTM", num_layers=3, proj_size=4, dropout=0.3), torch.randn(8, 6))


def test_a_program_that_can_be_traced_only_as_a_compiler_sees_it():
    def program(x):
        if torch.compiler.is_compiling():
            return torch.where(x.sum() > 0, x * 2, x)
        return x * 2 if x.sum() > 0 else x

    graph = capture(program, (torch.ones(3),), training=False)
    assert "aten.where.self" in graph.ops
    assert not torch.compiler.is_compiling()


# --- what has no place in a graph -----------------------------------------------------------------------------


class Reaching(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, module):
        return module(x)

    @staticmethod
    def backward(ctx, grad):
        return grad, None


def reaching_back(model):
    class ReachingBack(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * model.first.bias

    return ReachingBack


def switched(model, x):
    model.second.weight.requires_grad_(False)
    return x


def assigned(model, x):
    model.second.weight.data = model.second.weight.data * 0.5
    return x


def packed(model, x):
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.half(), lambda t: t.float()):
        return x**2


REFUSED = {
    "uses a tensor of shape .* not among its arguments": lambda model, x: Reaching.apply(x, model.second),
    "the backward of a custom function uses 'first.bias'": lambda model, x: reaching_back(model).apply(x),
    "switches requires_grad of a parameter": switched,
    r"assigns to \.data": assigned,
    "saved_tensors_hooks": packed,
    r"calls backward\(\) itself": lambda model, x: (x.sum().backward(retain_graph=True), x)[1],
    "takes a gradient by torch.func": lambda model, x: torch.func.grad(lambda y: (y**3).sum())(x),
    "torch.autograd.grad": lambda model, x: torch.func.vjp(lambda y: y**3, x)[1](x)[0],
    "hook on a grad_fn": lambda model, x: (x.grad_fn.register_prehook(lambda grads: grads), x)[1],
    "puts a hook on a parameter": lambda model, x: (model.first.weight.register_hook(lambda g: g), x)[1],
    "after a gradient is accumulated": lambda model, x: (
        model.first.weight.register_post_accumulate_grad_hook(lambda p: None),
        x,
    )[1],
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_the_graph_cannot_say_is_refused(reason):
    with pytest.raises(UsageError, match=reason) as caught:
        capture(Model(REFUSED[reason]), (torch.randn(8, 6),))
    assert str(caught.value).startswith("Model cannot be captured") and "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["full_backward_hook", "full_backward_pre_hook", "backward_hook"])
def test_backward_hooks_of_modules_are_refused(kind):
    model = Model(lambda model, x: x)
    handle = getattr(model.second, f"register_{kind}")(lambda *_: None)
    with pytest.raises(UsageError, match="its module 'second' has a backward hook"):
        capture(model, (torch.randn(8, 6),))
    capture(model, (torch.randn(8, 6),), training=False)
    handle.remove()
    capture(model, (torch.randn(8, 6),))


@pytest.mark.parametrize("kind", ["hook", "post_accumulate_grad_hook"])
def test_hooks_on_gradients_of_parameters_are_refused(kind):
    model = Model(lambda model, x: x)
    getattr(model.second.weight, f"register_{kind}")(lambda _: None)
    with pytest.raises(UsageError, match=r"its parameter 'second\.weight' has a hook on its gradient"):
        capture(model, (torch.randn(8, 6),))
