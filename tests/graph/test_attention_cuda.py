"""On a GPU the pair is torch's flash attention where that computes it, and the exact kernel elsewhere."""

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from shardwise.graph import attention, attention_backward

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize(
    ("groups", "keys", "causal", "dtype", "flash"),
    [
        (1, 256, True, torch.bfloat16, True),
        (4, 256, True, torch.bfloat16, True),
        (4, 192, False, torch.float16, True),
        (1, 192, True, torch.bfloat16, False),
        (2, 256, True, torch.float32, False),
    ],
)
def test_values_gradients_and_kernel(groups, keys, causal, dtype, flash):
    torch.manual_seed(0)
    shapes = [(2, 8, 256, 64), (2, 8 // groups, keys, 64), (2, 8 // groups, keys, 64)]
    exact = [torch.randn(shape, dtype=dtype).double() for shape in shapes]
    rest = (None, None, causal, 0.125, 0.0)
    given = [tensor.to("cuda", dtype) for tensor in exact]
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as seen:
        output, logsumexp = attention(*given, *rest)
        grads = attention_backward(output, *given, output, logsumexp, *rest)
    names = " ".join(event.key for event in seen.key_averages())
    assert ("flash" in names) == flash

    expected, expected_lse = attention(*exact, *rest)
    expected_grads = attention_backward(expected, *exact, expected, expected_lse, *rest)
    tolerance = {"rtol": 4e-2, "atol": 4e-2} if dtype != torch.float32 else {"rtol": 1e-3, "atol": 1e-3}
    torch.testing.assert_close(logsumexp.cpu().double(), expected_lse, **tolerance)
    for found, wanted in zip((output, *grads), (expected, *expected_grads), strict=True):
        torch.testing.assert_close(found.cpu().double(), wanted, **tolerance)
        assert found.transpose(1, 2).is_contiguous()
