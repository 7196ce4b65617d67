import pytest
import torch
import torch.nn.functional as F

from shardwise.graph import attention, attention_backward, capture, run
from shardwise.graph._attention import _bias, _is_aligned, fused_attention


def heads(*shape, dtype=torch.float64):
    return torch.randn(shape, dtype=dtype, requires_grad=True)


def inputs(keys=6, groups=1, value_size=5):
    return heads(2, 4, 6, 8), heads(2, 4 // groups, keys, 8), heads(2, 4 // groups, keys, value_size)


BOOLEAN = torch.rand(2, 1, 6, 7, generator=torch.Generator().manual_seed(0)) > 0.3
ADDED = torch.randn(6, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("tensors", "options"),
    [
        (inputs(), {}),
        (inputs(), {"is_causal": True}),
        (inputs(keys=7), {"is_causal": True, "scale": 0.3}),
        (inputs(keys=4), {"is_causal": True}),
        (inputs(keys=7), {"attn_mask": BOOLEAN}),
        (inputs(keys=7), {"attn_mask": ADDED}),
        (inputs(groups=2), {"is_causal": True, "enable_gqa": True}),
    ],
    ids=["plain", "causal", "more keys", "fewer keys", "boolean mask", "added mask", "grouped"],
)
def test_values_and_gradients_are_those_of_torch(tensors, options):
    expected = F.scaled_dot_product_attention(*tensors, **options)
    found = fused_attention(*tensors, **options)
    torch.testing.assert_close(found, expected)
    grad = torch.randn_like(expected)
    for mine, theirs in zip(
        torch.autograd.grad(found, tensors, grad), torch.autograd.grad(expected, tensors, grad), strict=True
    ):
        torch.testing.assert_close(mine, theirs)


def test_a_query_that_may_attend_to_nothing_gives_zero_and_no_gradient():
    query, key, value = inputs()
    mask = torch.ones(6, 6, dtype=torch.bool)
    mask[2] = False
    output = fused_attention(query, key, value, mask)
    assert (output[:, :, 2] == 0).all()
    grads = torch.autograd.grad(output.sum(), (query, key, value))
    assert (grads[0][:, :, 2] == 0).all()
    assert all(grad.isfinite().all() for grad in grads)


def test_dropout_is_a_function_of_its_seed_and_its_backward_matches():
    query, key, value = inputs()
    seed = torch.tensor(5)

    def drop(*tensors):
        return attention(*tensors, None, seed, True, 0.3, 0.4)[0]

    assert torch.equal(drop(query, key, value), drop(query, key, value))
    other = attention(query, key, value, None, torch.tensor(6), True, 0.3, 0.4)[0]
    assert not torch.equal(drop(query, key, value), other)
    assert torch.autograd.gradcheck(drop, (query, key, value))


def test_dropout_keeps_the_expected_value():
    query = torch.zeros(1, 1, 2000, 4)
    key, value = torch.randn(1, 1, 50, 4), torch.randn(1, 1, 50, 4)
    output, _ = attention(query, key, value, None, torch.tensor(1), False, 1.0, 0.5)
    plain, _ = attention(query, key, value, None, None, False, 1.0, 0.0)
    torch.testing.assert_close(output.mean(2), plain.mean(2), atol=0.02, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_operators_are_well_formed(dtype):
    query, key, value = (tensor.detach().to(dtype) for tensor in inputs(groups=2, value_size=8))
    arguments = (None, None, True, 0.5, 0.0)
    torch.library.opcheck(attention, (query, key, value, *arguments))
    output, logsumexp = attention(query, key, value, *arguments)
    grad = torch.randn_like(output)
    torch.library.opcheck(attention_backward, (grad, query, key, value, output, logsumexp, *arguments))


def test_low_precision_is_accumulated_in_float32():
    query, key, value = (tensor.detach().bfloat16() for tensor in inputs())
    output, logsumexp = attention(query, key, value, None, None, True, 0.35, 0.0)
    assert (output.dtype, logsumexp.dtype) == (torch.bfloat16, torch.float32)
    exact, _ = attention(query.double(), key.double(), value.double(), None, None, True, 0.35, 0.0)
    torch.testing.assert_close(output.double(), exact, rtol=2**-8, atol=2**-8)


def test_captured_it_is_one_node_each_way():
    def program(query, key, value):
        return F.scaled_dot_product_attention(query, key, value, is_causal=True).sum()

    tensors = inputs(value_size=8)
    graph = capture(program, tensors)
    assert graph.ops["shardwise.attention.default"] == 1
    assert graph.ops["shardwise.attention_backward.default"] == 1
    program(*tensors).backward()
    ran = run(graph, program, tensors)
    torch.testing.assert_close(ran.gradients["key"], tensors[1].grad)


def test_three_dims_are_one_head():
    def program(x):
        return F.scaled_dot_product_attention(x, x, x, is_causal=True)

    x = heads(3, 5, 4)
    graph = capture(program, (x,))
    assert graph.ops["shardwise.attention.default"] == 1
    torch.testing.assert_close(run(graph, program, (x,)).outputs["output"], program(x).detach())


def test_a_mask_that_is_learned_is_taken_apart_and_gets_its_gradient():
    def program(query, mask):
        return F.scaled_dot_product_attention(query, query, query, mask).square().sum()

    query, mask = heads(2, 4, 6, 8), heads(4, 6, 6)
    graph = capture(program, (query, mask))
    assert "shardwise.attention.default" not in graph.ops
    program(query, mask).backward()
    torch.testing.assert_close(run(graph, program, (query, mask)).gradients["mask"], mask.grad)


def test_attention_with_dropout_draws_a_seed():
    graph = capture(lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.2), (heads(1, 2, 3, 4),))
    [node] = [n for n in graph.nodes if n.op == "shardwise.attention.default"]
    assert node.args[4] is not None
    assert node.args[7] == 0.2


@pytest.mark.parametrize(
    "mask", [BOOLEAN, BOOLEAN[:, :, :1], BOOLEAN[..., :1], ADDED], ids=["whole", "keys", "queries", "added"]
)
def test_a_gpu_gets_masks_as_aligned_rows_to_add(mask):
    query, key = (torch.randn(2, 4, n, 8, dtype=torch.bfloat16) for n in (6, 7))
    mask = mask if mask.dtype == torch.bool else mask.bfloat16()
    bias = _bias(mask, query, key)
    assert bias.shape == (2, 4, 6, 7) and _is_aligned(bias)
    wanted = torch.zeros(()).masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else mask
    assert torch.equal(bias, wanted.bfloat16().expand_as(bias))


def test_a_mask_that_lies_as_a_gpu_wants_it_is_not_copied():
    query, key = (torch.randn(2, 4, 8, 8, dtype=torch.bfloat16) for _ in range(2))
    mask = torch.randn(2, 1, 8, 8, dtype=torch.bfloat16)
    assert _bias(mask, query, key).data_ptr() == mask.data_ptr()
    assert _bias(mask[..., 1:], query, key[:, :, 1:]).data_ptr() != mask[..., 1:].data_ptr()
