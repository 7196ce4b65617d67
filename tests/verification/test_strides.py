"""Kernels that rely on how their inputs are stored: which they are, and that plans of what calls them are right.

The first half is independent of everything else here: operators as torch's own samples call them, forward and
backward, run on inputs of equal values and different strides.
"""

import warnings
from itertools import islice

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import shardwise
from shardwise.calls import facts
from shardwise.graph import capture
from shardwise.planning import random_plan
from shardwise.running import simulate
from shardwise.verification import verify
from tests.versions import SAMPLES, before_torch

aten = torch.ops.aten
op_db = pytest.importorskip(
    "torch.testing._internal.common_methods_invocations", exc_type=ImportError, reason=SAMPLES
).op_db

# Results of these are their inputs' memory, or refuse to be.
OWN_MEMORY = {"as_strided", "as_strided_copy", "as_strided_scatter", "_unsafe_view", "detach", "alias"}
SAMPLE = [
    *("addmm", "linalg.slogdet", "linalg.solve", "nn.functional.conv2d", "nn.functional.layer_norm"),
    *("nn.functional.group_norm", "nn.functional.max_pool2d", "nn.functional.adaptive_max_pool3d"),
    *("nn.functional.batch_norm", "cumsum", "sort", "nn.functional.grid_sample", "index_add"),
]


class Recorder(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        self.calls.append((op, *pytree.tree_map_only(torch.Tensor, torch.clone, (args, kwargs))))
        return op(*args, **kwargs)


def recorded(info, dtype, samples):
    """What the operator of torch's samples calls, forward and backward."""
    found = []
    given = info.sample_inputs("cpu", dtype, requires_grad=info.supports_autograd)
    for sample in islice(given, samples):
        with Recorder() as recorder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                result = info.op(sample.input, *sample.args, **sample.kwargs)
                leaves = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
                starts = [leaf.abs().square().sum() for leaf in leaves if leaf.requires_grad]
                if starts:
                    torch.autograd.backward(starts)
            except (RuntimeError, NotImplementedError):  # no backward for this sample
                pass
        found += recorder.calls
    return found


def otherwise_stored(tensor):
    """The tensor with other strides: its dims in other orders, and with gaps."""
    dims = list(range(tensor.dim()))
    orders = [
        [*dims[:-2], *dims[:-3:-1]],
        dims[::-1],
        [*dims[1:], *dims[:1]],
        [*dims[:1], *dims[2:], *dims[1:2]],
    ]
    for order in orders if len(dims) > 1 else []:
        yield tensor.permute(order).contiguous().permute([order.index(dim) for dim in dims])
    if dims and tensor.numel():
        yield torch.stack([tensor, tensor], -1)[..., 0]


def differences(op, args, kwargs):
    """For which inputs, stored otherwise, a call gives other values or an error."""
    leaves, form = pytree.tree_flatten((args, kwargs))
    tensors = {
        place: leaf.contiguous()
        for place, leaf in enumerate(leaves)
        if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided
    }

    def run(changes):
        changed = {**dict(enumerate(leaves)), **tensors, **changes}
        given, named = pytree.tree_unflatten(list(changed.values()), form)
        return [leaf for leaf in pytree.tree_leaves(op(*given, **named)) if isinstance(leaf, torch.Tensor)]

    try:
        expected, again = run({}), run({})
    except RuntimeError:  # as recorded, it does not take contiguous inputs
        return
    if not all(map(same, expected, again)):
        return
    for place, tensor in tensors.items():
        for other in otherwise_stored(tensor):
            try:
                found = "" if all(map(same, expected, run({place: other}))) else "other values"
            except RuntimeError as error:
                found = str(error)
            if found:
                yield f"{[list(t.shape) for t in tensors.values()]}, {place} by {other.stride()}: {found}"


def same(some, other):
    if some.shape != other.shape or some.dtype != other.dtype:
        return False
    return not some.numel() or torch.allclose(some, other, rtol=1e-5, atol=1e-6, equal_nan=True)


def found_in(infos, dtype, samples):
    """The operators that depend on strides without being declared so, and those that were run."""
    found, seen = {}, {}
    for info in infos:
        if dtype not in info.dtypes:
            continue
        for op, args, kwargs in recorded(info, dtype, samples):
            written = any(argument.is_write for argument in op._schema.arguments)
            if written or facts(op).random or facts(op).uninitialised or facts(op).stride_dependent:
                continue
            if op._schema.name.removeprefix("aten::") in OWN_MEMORY or seen.get(op, 0) >= 12:
                continue
            seen[op] = seen.get(op, 0) + 1
            for difference in differences(op, args, kwargs):
                found.setdefault(str(op), difference)
    return found, seen


def test_a_sample_of_operators_does_not_depend_on_strides():
    found, seen = found_in([info for info in op_db if info.name in SAMPLE], torch.float64, 4)
    assert not found and len(seen) > 30


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_no_other_operator_depends_on_strides(dtype):
    infos = [info for info in op_db if not info.name.startswith(("sparse", "to_sparse"))]
    found, seen = found_in(infos, dtype, 12)
    assert not found and len(seen) > 300


@pytest.mark.parametrize("op", [aten._linalg_slogdet.default, aten._linalg_det.default], ids=str)
def test_those_of_matrices_that_are_declared_do(op):
    """Else the fact would be about nothing: the same values, stored otherwise, give other results."""
    matrix = torch.randn(4, 4)
    assert facts(op).stride_dependent
    assert not all(map(same, op(matrix), op(matrix.t().contiguous().t())))


@before_torch("2.14", "weights of a group norm may have any strides")
def test_a_group_norm_depends_on_the_strides_of_its_weight():
    x, weight = torch.randn(4, 6, 30), torch.randn(6)
    apart = torch.stack([weight, weight], -1)[:, 0]
    op, rest = aten.native_group_norm.default, (None, 4, 6, 30, 3, 1e-5)
    assert facts(op).stride_dependent
    assert not all(map(same, op(x, weight, *rest), op(x, apart, *rest)))


# -- plans of programs that call them


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.GroupNorm(2, 8), nn.GroupNorm(4, 8)
        self.between = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x):
        return self.last(F.silu(self.between(F.silu(self.first(x))))).square().mean()


class OfParameter(nn.Module):
    def __init__(self, weight, use):
        super().__init__()
        self.weight, self.use = nn.Parameter(weight), use

    def forward(self, x):
        return self.use(self.weight, x).square().sum()


def images(format):
    return Images(), torch.randn(4, 8, 4, 4).to(memory_format=format).requires_grad_()


PROGRAMS = {
    "native_group_norm_backward": lambda: images(torch.channels_last),
    "native_group_norm": lambda: images(torch.contiguous_format),
    "_linalg_slogdet": lambda: (
        OfParameter(torch.randn(6, 4, 4).mT, lambda w, x: torch.linalg.slogdet(w)[1] * x),
        torch.randn(6),
    ),
    "_linalg_det": lambda: (
        OfParameter(torch.randn(4, 4).t(), lambda w, x: torch.linalg.det(w) * x),
        torch.randn(6),
    ),
    "native_layer_norm_backward": lambda: (
        OfParameter(torch.randn(6, 8).t(), lambda w, x: F.layer_norm(x * w, (8, 6), w) * x),
        torch.randn(4, 8, 6),
    ),
    "adaptive_max_pool3d_backward": lambda: (
        OfParameter(torch.randn(2, 6, 6, 6, 4).movedim(-1, 1), lambda w, x: F.adaptive_max_pool3d(w * x, 3)),
        torch.randn(2, 1, 6, 6, 6),
    ),
    "_embedding_bag": lambda: (
        OfParameter(torch.randn(6, 9).t(), lambda w, x: F.embedding_bag(x.t(), w)),
        torch.randint(0, 9, (5, 4)),
    ),
    "_pdist_backward": lambda: (
        OfParameter(torch.randn(6, 8).t(), lambda w, x: F.pdist(w * x)),
        torch.randn(8, 6),
    ),
    "view_as_complex": lambda: (
        OfParameter(torch.randn(8, 6, 2), lambda w, x: torch.view_as_complex(w * x).abs()),
        torch.randn(8, 6, 2),
    ),
}
# Their rows are discovered on the spot.
SLOW = ("adaptive_max_pool3d_backward", "native_layer_norm_backward")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] * (name in SLOW)) for name in PROGRAMS]
)
def test_what_relies_on_strides_gets_them_however_it_is_sharded(name):
    torch.manual_seed(0)
    model, x = PROGRAMS[name]()
    graph = capture(model, (x,))
    assert f"aten.{name}.default" in graph.ops
    for seed in range(8):
        plan = random_plan(graph, mesh="a=2,b=2", seed=seed)
        report = verify(model, (x,), plan=plan, only_plan=seed > 0)
        assert report.same_numbers and (seed or report.most_sharded.same_numbers), str(report)


@pytest.mark.parametrize("layout", ["S(0)", "S(1)"])
def test_a_determinant_of_a_transposed_parameter_has_the_gradient_of_the_model(layout):
    torch.manual_seed(0)
    model, x = PROGRAMS["_linalg_det"]()
    plan = shardwise.plan(model, (x,), mesh="d=2", cluster="laptop", pin={"weight": layout}, compare=False)
    ran = simulate(model, (x,), plan=plan)
    model(x).backward()
    torch.testing.assert_close(ran.gradients["weight"].whole(), model.weight.grad)


class Turned(nn.Module):
    """Channels that lie side by side, as attention leaves them, and are normalised in groups."""

    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Linear(8, 8), nn.GroupNorm(2, 8)

    def forward(self, x):
        return self.norm(self.layer(x).transpose(1, 2).unflatten(2, (4, 4))).square().mean()


def test_a_piece_of_one_sample_is_stored_as_its_kernel_reads_it():
    torch.manual_seed(0)
    model, x = Turned(), torch.randn(2, 16, 8)
    plan = shardwise.plan(
        model, (x,), mesh="dp=2", cluster="laptop", pin={"x": "S(0)", "*norm": "S(0)"}, compare=False
    )
    assert verify(model, (x,), plan=plan).ok
