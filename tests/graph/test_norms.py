"""RMS normalisation as one call."""

import pytest
import torch
import torch.nn.functional as F

from shardwise.graph import capture, rms_norm


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(6,), (5, 6)])
def test_it_is_torch_s_with_its_gradients(dtype, shape):
    torch.manual_seed(0)
    x, weight = (torch.randn(size, dtype=dtype).requires_grad_() for size in ((4, 5, 6), shape))
    expected = F.rms_norm(x, shape, weight, eps=1e-5)
    found, _ = rms_norm(x, list(shape), weight, 1e-5)
    weights = torch.randn_like(expected)
    close = {"rtol": 2e-2, "atol": 2e-2} if dtype == torch.bfloat16 else {}
    torch.testing.assert_close(found, expected, **close)
    gradients = (torch.autograd.grad((y * weights).sum(), (x, weight)) for y in (found, expected))
    torch.testing.assert_close(*map(list, gradients), **close)


def test_it_is_one_call_of_eager_programs_and_its_parts_in_compiled_ones():
    eager, compiled = (
        capture(torch.nn.RMSNorm(6), (torch.empty(4, 6, requires_grad=True),), execution=how)
        for how in ("eager", "compiled")
    )
    assert list(eager.ops) == ["shardwise.rms_norm.default", "shardwise.rms_norm_backward.default"]
    assert "aten.rsqrt.default" in compiled.ops


def test_a_norm_without_weight_stays_as_it_is():
    graph = capture(lambda x: F.rms_norm(x, (6,)), (torch.empty(4, 6),), training=False)
    assert "shardwise.rms_norm.default" not in graph.ops
