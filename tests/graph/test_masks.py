import pytest
import torch
import torch.nn.functional as F

from shardwise.graph import _masks, capture, run


def causal(x):
    positions = torch.arange(x.shape[2])
    return (positions[None, :] <= positions[:, None]).expand(x.shape[0], 1, -1, -1)


def packed(x):
    """As a model writes it that may be given several sequences in one: positions, and the sequence of each."""
    rows, batch = torch.arange(x.shape[2]), torch.arange(x.shape[0])
    sequence = (rows.expand(x.shape[0], -1).diff(prepend=torch.full((x.shape[0], 1), -1)) != 1).cumsum(-1)
    mask = rows.new_ones((), dtype=torch.bool) & (rows[None, None, None, :] <= rows[None, None, :, None])
    where = batch[:, None, None, None]
    same = sequence[where, rows[None, None, :, None]] == sequence[where, rows[None, None, None, :]]
    return (mask & same).expand(x.shape[0], -1, -1, -1)


def lower(x):
    return torch.ones(x.shape[2], x.shape[2], dtype=torch.bool).tril()


def window(x):
    positions = torch.arange(x.shape[2])
    return causal(x) & (positions[None, :] > positions[:, None] - 3)


def nothing_hidden(x):
    return torch.ones(x.shape[2], x.shape[2], dtype=torch.bool)


def from_values(x):
    return (x[:, :1, :, :1] > -9).expand(-1, -1, -1, x.shape[2])


def drawn(x):
    return torch.rand(x.shape[2], x.shape[2]) > -1


@pytest.mark.parametrize("at_once", [1 << 24, 40], ids=["whole", "in bands"])
@pytest.mark.parametrize(
    ("mask", "kept", "is_causal"),
    [
        (causal, False, True),
        (packed, False, True),
        (window, True, False),
        (nothing_hidden, False, False),
        (from_values, True, False),
        (drawn, True, False),
    ],
)
def test_a_constant_mask_becomes_a_flag(mask, kept, is_causal, at_once, monkeypatch):
    monkeypatch.setattr(_masks, "_AT_ONCE", at_once)

    def program(x):
        return F.scaled_dot_product_attention(x, x, x, mask(x))

    x = torch.randn(2, 3, 10, 4, requires_grad=True)
    graph = capture(program, (x,))
    [node] = [n for n in graph.nodes if n.op == "shardwise.attention.default"]
    if mask is nothing_hidden and at_once == 40:
        kept = True  # larger than what is computed at once, and made by no elementwise operator
    assert (node.args[3] is not None, node.args[5]) == (kept, is_causal)
    torch.testing.assert_close(run(graph, program, (x,)).outputs["output"], program(x).detach())


def test_the_lower_triangle_is_causal():
    x = torch.randn(1, 2, 5, 4, requires_grad=True)
    graph = capture(lambda x: F.scaled_dot_product_attention(x, x, x, lower(x)), (x,))
    [node] = [n for n in graph.nodes if n.op == "shardwise.attention.default"]
    assert node.args[5] is True


@pytest.mark.parametrize("dim", [1, 2])
def test_only_heads_repeated_side_by_side_are_shared(dim):
    def program(query, key):
        batch, count, positions, size = key.shape
        shape = [batch, count, positions, size]
        shape.insert(dim, 2)
        repeated = key.unsqueeze(dim).expand(shape).reshape(batch, 2 * count, positions, size)
        return F.scaled_dot_product_attention(query, repeated, repeated)

    query, key = torch.randn(2, 4, 5, 8, requires_grad=True), torch.randn(2, 2, 5, 8, requires_grad=True)
    graph = capture(program, (query, key))
    [node] = [n for n in graph.nodes if n.op == "shardwise.attention.default"]
    assert graph.tensor(node.inputs[1]).shape[1] == (2 if dim == 2 else 4)
    torch.testing.assert_close(
        run(graph, program, (query, key)).outputs["output"], program(query, key).detach()
    )


def test_heads_may_be_put_together_in_any_order():
    """Fused kernels store their result in the order of the query, so that `contiguous` copies nothing."""

    def program(x):
        heads = x.view(6, 4, 3, 2).permute(1, 2, 0, 3)
        mixed = F.scaled_dot_product_attention(heads, heads, heads)
        return mixed.permute(2, 0, 1, 3).contiguous().view(6, 24)

    x = torch.randn(6, 24, requires_grad=True)
    graph = capture(program, (x,))
    torch.testing.assert_close(run(graph, program, (x,)).outputs["output"], program(x).detach())
