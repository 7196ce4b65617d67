"""On a GPU the pair runs the kernels that torch itself would, and says the same as the exact kernel."""

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile

from shardwise.graph import attention, attention_backward

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


def tensors(dtype, *shapes):
    """Heads side by side in memory, as projections leave them."""
    return [torch.randn(b, s, h, d).to("cuda", dtype).transpose(1, 2) for b, h, s, d in shapes]


def assert_exact(given, rest, grad=None):
    output, logsumexp = attention(*given, *rest)
    grad = output if grad is None else grad
    grads = attention_backward(grad, *given, output, logsumexp, *rest)
    on_cpu = [None if x is None else x.cpu() for x in rest[:1]] + list(rest[1:])
    exact = [x.cpu().double() for x in given]
    expected, expected_lse = attention(*exact, *on_cpu)
    expected_grads = attention_backward(grad.cpu().double(), *exact, expected, expected_lse, *on_cpu)
    tolerance = 1e-3 if given[0].dtype == F32 else 4e-2
    torch.testing.assert_close(logsumexp.cpu().double(), expected_lse, rtol=tolerance, atol=tolerance)
    for found, wanted in zip((output, *grads), (expected, *expected_grads), strict=True):
        torch.testing.assert_close(found.cpu().double(), wanted, rtol=tolerance, atol=tolerance)
        assert found.transpose(1, 2).is_contiguous()


def kernels(call):
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU], acc_events=True) as seen:
        call()
    names = {event.key.lower() for event in seen.key_averages() if "attention" in event.key.lower()}
    return {word for word in ("cudnn", "flash", "efficient") if any(word in name for name in names)}


@pytest.mark.parametrize(
    ("groups", "keys", "causal", "dtype"),
    [
        (1, 256, True, BF16),
        (4, 256, True, BF16),
        (4, 192, False, F16),
        (1, 192, True, BF16),
        (1, 333, False, BF16),
        (1, 256, True, F32),
        (2, 256, True, F32),
    ],
)
def test_values_gradients_and_kernel(groups, keys, causal, dtype):
    torch.manual_seed(0)
    given = tensors(dtype, (2, 8, 256, 64), (2, 8 // groups, keys, 64), (2, 8 // groups, keys, 64))
    assert_exact(given, (None, None, causal, 0.125, 0.0))

    leaves = [x.detach().requires_grad_() for x in given]
    torchs = kernels(
        lambda: (
            F.scaled_dot_product_attention(*leaves, is_causal=causal, enable_gqa=groups > 1).sum().backward()
        )
    )
    assert kernels(lambda: attention(*leaves, None, None, causal, 0.125, 0.0)[0].sum().backward()) == torchs


@pytest.mark.parametrize("kind", ["bool", "padding", "blank rows", "bias"])
def test_masks(kind):
    torch.manual_seed(0)
    given = tensors(BF16, (2, 8, 200, 64), (2, 2, 333, 64), (2, 2, 333, 64))
    mask = torch.rand(2, 1, 200, 333, device="cuda") > 0.5
    if kind == "padding":
        mask = mask[:, :, :1]
    elif kind == "blank rows":
        mask[:, :, 3:9] = False
    elif kind == "bias":
        mask = torch.randn(2, 8, 200, 333, device="cuda", dtype=BF16)
    assert_exact(given, (mask, None, False, 0.125, 0.0))


@pytest.mark.parametrize("dtype", [BF16, F32])
def test_any_layout_of_the_arguments(dtype):
    """One shape in all layouts, one after another: no kernel may take one for the other."""
    shape = (2, 8, 200, 64)
    rest = (None, None, True, 0.125, 0.0)
    torch.manual_seed(0)
    by_position = tensors(dtype, shape, shape, shape)
    by_head = [x.contiguous() for x in by_position]
    unaligned = [torch.randn(x.numel() + 1).to("cuda", dtype)[1:].view(shape) for x in by_position]
    for given in (by_position, by_head, unaligned):
        for grad in (None, torch.randn(shape).to("cuda", dtype), torch.ones((), device="cuda").to(dtype)):
            assert_exact(given, rest, None if grad is None else grad.expand(shape))


def test_backward_may_be_run_by_another_kernel_than_forward():
    torch.manual_seed(0)
    given = tensors(BF16, *[(2, 8, 256, 64)] * 3)
    rest = (None, None, True, 0.125, 0.0)
    output, logsumexp = attention(*given, *rest)
    expected = attention_backward(output, *given, output, logsumexp, *rest)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        flash = attention_backward(output, *given, output, logsumexp, *rest)
    with sdpa_kernel(SDPBackend.MATH):
        exact = attention_backward(output, *given, output, logsumexp, *rest)
    for other in (flash, exact):
        torch.testing.assert_close(other, expected, rtol=4e-2, atol=4e-2)


@pytest.mark.parametrize("dtype", [BF16, F16, F32])
@pytest.mark.parametrize("masked", [False, True])
def test_backward_of_a_part_of_the_keys_is_a_part_of_the_sum(dtype, masked):
    """A rank that holds some of the keys has the logarithm of the denominator over all of them."""
    torch.manual_seed(0)
    query, key, value = tensors(dtype, (2, 8, 256, 64), (2, 8, 512, 64), (2, 8, 512, 64))
    mask = torch.ones(256, 512, dtype=torch.bool, device="cuda").tril() if masked else None
    rest = (None, False, 0.125, 0.0)
    output, logsumexp = attention(query, key, value, mask, *rest)
    wanted = attention_backward(output, query, key, value, output, logsumexp, mask, *rest)
    parts = [
        attention_backward(
            *(output, query, key[:, :, cut], value[:, :, cut], output, logsumexp),
            *(mask[:, cut] if masked else None, *rest),
        )
        for cut in (slice(0, 128), slice(128, 512))
    ]
    tolerance = 1e-3 if dtype == F32 else 4e-2
    summed = parts[0][0] + parts[1][0]
    torch.testing.assert_close(summed, wanted[0], rtol=tolerance, atol=tolerance)
    for i in (1, 2):
        joined = torch.cat([parts[0][i], parts[1][i]], 2)
        torch.testing.assert_close(joined, wanted[i], rtol=tolerance, atol=tolerance)
