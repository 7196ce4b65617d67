"""Local forms: what each rank runs when the operator itself, on its pieces, would not do."""

import itertools

import pytest
import torch
from torch.distributed.tensor.placement_types import Placement

import shardwise as sw
from shardwise.calls import Call
from shardwise.errors import UsageError
from shardwise.forms import Piece, local_call
from shardwise.graph import attention
from shardwise.placements import Row, is_partial, is_shard, shard_sizes

aten = torch.ops.aten
X = torch.rand(8, 6, 4, dtype=torch.float64)
IMAGES = torch.rand(4, 6, 5, 5, dtype=torch.float64)
TABLE = torch.rand(12, 5, dtype=torch.float64)
TOKENS = torch.randint(0, 12, (4, 7))
HEADS = [torch.rand(2, 4, 9, 8, dtype=torch.float64) for _ in range(4)]
GROUPED = torch.rand(2, 12, 9, 8, dtype=torch.float64)
REST = (True, 0.3, 0.0)


def saved(mask=None, causal=True):
    query, key, value, grad = HEADS
    rest = (mask, None, causal, *REST[1:])
    return (grad, query, key, value, *attention(query, key, value, *rest), *rest)


CALLS = {
    "view": (aten.view.default, (X, [48, 4]), "S(0) -> S(0) for even shards with local sizes"),
    "view back": (aten.view.default, (X, [2, 4, 6, 4]), "S(0) -> S(0) for even shards with local sizes"),
    "expand": (aten.expand.default, (torch.rand(1, 6), [9, 6]), "R -> S(0) with local sizes"),
    "repeat": (aten.repeat.default, (torch.rand(1, 6), [9, 1]), "R -> S(0) with local sizes"),
    "full": (aten.full.default, ([9, 4], 2.0), "-> S(0) with local sizes"),
    "new_empty_strided": (
        aten.new_empty_strided.default,
        (X, [9, 4], [1, 9]),
        "R -> S(0) with local sizes",
    ),
    "slice_backward": (
        aten.slice_backward.default,
        (torch.rand(8, 4, 4), [8, 6, 4], 1, 1, 5, 1),
        "S(0) -> S(0) with local sizes",
    ),
    "group norm": (
        aten.native_group_norm.default,
        (IMAGES, None, None, 4, 6, 25, 2, 1e-5),
        "S(0) -> S(0), S(0), S(0) with local sizes",
    ),
    "arange": (aten.arange.start_step, (3, 30, 3), "-> S(0) with local offset"),
    "tril": (aten.tril.default, (X, 1), "S(1) -> S(1) with local offset"),
    "triu": (aten.triu.default, (X, -1), "S(2) -> S(2) with local offset"),
    "embedding": (aten.embedding.default, (TABLE, TOKENS), "S(0), R -> P(sum) with local lookup"),
    "embedding backward": (
        aten.embedding_dense_backward.default,
        (torch.rand(4, 7, 5, dtype=torch.float64), TOKENS, 9, 3, False),
        "R, R -> S(0) with local lookup",
    ),
    "gather": (
        aten.gather.default,
        (X, 1, torch.randint(0, 6, (8, 3, 4))),
        "S(1), R -> P(sum) with local lookup",
    ),
    "index_select": (
        aten.index_select.default,
        (X, -2, torch.randint(0, 6, (5,))),
        "S(1), R -> P(sum) with local lookup",
    ),
    "select": (aten.select.int, (X, 1, -2), "S(1) -> P(sum) with local lookup"),
    "index": (
        aten.index.Tensor,
        (X, [None, torch.randint(0, 6, (5, 2))]),
        "S(1), R -> P(sum) with local lookup",
    ),
    "index apart": (
        aten.index.Tensor,
        (X, [torch.randint(0, 8, (5, 1)), None, torch.randint(0, 4, (2,))]),
        "S(2), R, R -> P(sum) with local lookup",
    ),
    "index_put": (
        aten.index_put.default,
        (X, [None, torch.tensor([3, 1])], torch.rand(8, 2, 4, dtype=torch.float64), True),
        "S(1), R, R -> S(1) with local lookup",
    ),
    "scatter": (
        aten.scatter.value,
        (X, 1, torch.randint(0, 6, (8, 1, 4)), 1.0),
        "S(1), R -> S(1) with local lookup",
    ),
    "scatter_add": (
        aten.scatter_add.default,
        (X, 1, torch.randint(0, 6, (8, 5, 4)), torch.rand(8, 5, 4, dtype=torch.float64)),
        "S(1), R, R -> S(1) with local lookup",
    ),
    "convolution": (
        aten.convolution.default,
        (
            IMAGES,
            torch.rand(12, 1, 3, 3, dtype=torch.float64),
            None,
            [1, 1],
            [1, 1],
            [1, 1],
            False,
            [0, 0],
            6,
        ),
        "S(1), S(0) -> S(1) for even shards with local groups",
    ),
    "attention": (
        torch.ops.shardwise.attention.default,
        (*HEADS[:3], None, None, *REST),
        "S(2), R, R -> S(2), S(2) with local causal",
    ),
    "grouped attention": (
        torch.ops.shardwise.attention.default,
        (GROUPED, *HEADS[1:3], None, None, *REST),
        "S(1), R, R -> S(1), S(1) for nonempty shards with local heads",
    ),
    "attention backward": (
        torch.ops.shardwise.attention_backward.default,
        saved(),
        "S(2), S(2), R, R, S(2), S(2) -> S(2), P(sum), P(sum) with local causal",
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_row_holds_by_its_local_form_and_not_without(name):
    op, args, text = CALLS[name]
    row = Row.parse(text)
    verdict = sw.check(op, row, *args)
    assert verdict, verdict.reason
    assert verdict.shards == row.shards
    if row.local != "sizes":
        plain = Row(row.inputs, row.outputs)
        assert not sw.check(op, plain, *args)


@torch.library.custom_op("shardwise_tests::cropped", mutates_args=())
def cropped(x: torch.Tensor, size: list[int]) -> torch.Tensor:
    return x[..., : size[0], : size[1]].clone()


@pytest.mark.parametrize(("size", "made"), [([3, 4], (2, 3, 4)), ([6, 5], (2, 6, 5))])
def test_a_number_that_is_no_cut_size_stays(size, made):
    x, whole = torch.rand(8, 6, 5), (8, *size)
    pieces = Piece(x.shape, (2, 6, 5), (0, 0, 0)), Piece(whole, made, (0, 0, 0))
    assert local_call("sizes", Call.of(cropped, x[:2], size), pieces[:1], pieces[1:]).shape == made


def test_a_number_that_may_be_a_cut_size_or_one_that_is_not_is_refused():
    x = torch.rand(6, 6, 5)
    pieces = Piece(x.shape, (2, 6, 5), (0, 0, 0)), Piece((6, 6, 4), (2, 6, 4), (0, 0, 0))
    with pytest.raises(
        UsageError, match="dims of size 6 are cut in two ways: which one an argument means is open"
    ):
        local_call("sizes", Call.of(cropped, x[:2], [6, 4]), pieces[:1], pieces[1:])


def test_an_unknown_form_is_refused():
    with pytest.raises(UsageError, match="unknown local form 'luck': use one of sizes"):
        sw.check(aten.embedding.default, "S(0), R -> P(sum) with local luck", TABLE, TOKENS)
    with pytest.raises(UsageError, match=r"aten\.embedding has no local form 'causal'"):
        sw.check(aten.embedding.default, "S(0), R -> P(sum) with local causal", TABLE, TOKENS)


def on_mesh(name: str, first: str, second: str) -> None:
    """Run a call on a mesh of 2 x 3 ranks, one row on each axis, and put the local outputs together again."""
    op, args, _ = CALLS[name]
    rows = [Row.parse(first), Row.parse(second)]
    call = Call(op, args)
    whole = call()
    wholes = whole if isinstance(whole, tuple) else (whole,)
    totals: list = [None] * len(wholes)
    for ranks in itertools.product(range(2), range(3)):
        inputs = [cut(t.shape, [r.inputs[i] for r in rows], ranks) for i, t in enumerate(call.tensors)]
        outputs = [cut(o.shape, [r.outputs[i] for r in rows], ranks) for i, o in enumerate(wholes)]
        held = call.with_tensors([here(t, p) for t, p in zip(call.tensors, inputs, strict=True)])
        form = next(r.local for r in rows if r.local)
        result = local_call(form, held, inputs, outputs)
        for i, local in enumerate(result if isinstance(result, tuple) else (result,)):
            assert tuple(local.shape) == outputs[i].local
            total = torch.zeros_like(wholes[i]) if totals[i] is None else totals[i]
            copies = 1
            for row, ranks_on_axis in zip(rows, (2, 3), strict=True):
                p = row.outputs[i]
                copies *= 1 if is_shard(p) or is_partial(p) else ranks_on_axis
            here(total, outputs[i]).add_(local / copies)
            totals[i] = total
    for total, expected in zip(totals, wholes, strict=True):
        torch.testing.assert_close(total, expected)


def cut(shape, placements: list[Placement], ranks) -> Piece:
    local, offset = list(shape), [0] * len(shape)
    for placement, rank, count in zip(placements, ranks, (2, 3), strict=True):
        if is_shard(placement):
            sizes = shard_sizes(local[placement.dim], count)
            offset[placement.dim] += sum(sizes[:rank])
            local[placement.dim] = sizes[rank]
    return Piece(tuple(shape), tuple(local), tuple(offset))


def here(tensor, piece):
    for dim, (start, size) in enumerate(zip(piece.offset, piece.local, strict=True)):
        tensor = tensor.narrow(dim, start, size)
    return tensor


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("view back", "S(0) -> S(0) with local sizes", "S(1) -> S(2) with local sizes"),
        ("view", "S(0) -> S(0) with local sizes", "S(2) -> S(1) with local sizes"),
        ("full", "-> S(0) with local sizes", "-> S(0) with local sizes"),
        ("slice_backward", "S(0) -> S(0) with local sizes", "S(2) -> S(2) with local sizes"),
        ("tril", "S(0) -> S(0)", "S(1) -> S(1) with local offset"),
        ("tril", "S(1) -> S(1) with local offset", "S(2) -> S(2) with local offset"),
        ("embedding", "R, S(0) -> S(0)", "S(0), R -> P(sum) with local lookup"),
        ("embedding", "S(0), R -> P(sum) with local lookup", "S(0), R -> P(sum) with local lookup"),
        ("embedding", "S(0), R -> P(sum) with local lookup", "S(1), R -> S(2)"),
        ("embedding backward", "R, R -> S(0) with local lookup", "S(1), S(1) -> P(sum)"),
        ("gather", "S(1), R -> P(sum) with local lookup", "S(0), S(0) -> S(0)"),
        ("index apart", "S(0), R, R -> P(sum) with local lookup", "S(2), R, R -> P(sum) with local lookup"),
        ("index_put", "S(1), R, R -> S(1) with local lookup", "S(0), R, S(0) -> S(0)"),
        ("scatter_add", "S(1), R, R -> S(1) with local lookup", "S(1), R, R -> S(1) with local lookup"),
        ("convolution", "S(1), S(0) -> S(1) with local groups", "S(0), R -> S(0)"),
        ("attention", "S(0), S(0), S(0) -> S(0), S(0)", "S(2), R, R -> S(2), S(2) with local causal"),
        ("attention", "S(1), S(1), S(1) -> S(1), S(1)", "S(2), R, R -> S(2), S(2) with local causal"),
        (
            "grouped attention",
            "S(1), S(1), S(1) -> S(1), S(1)",
            "S(1), R, R -> S(1), S(1) with local heads",
        ),
        (
            "grouped attention",
            "S(1), R, R -> S(1), S(1) with local heads",
            "S(2), R, R -> S(2), S(2) with local causal",
        ),
        (
            "attention backward",
            "S(2), S(2), R, R, S(2), S(2) -> S(2), P(sum), P(sum) with local causal",
            "S(2), S(2), R, R, S(2), S(2) -> S(2), P(sum), P(sum) with local causal",
        ),
    ],
)
def test_rows_with_local_forms_combine_on_a_mesh_of_two_axes(name, first, second):
    on_mesh(name, first, second)
