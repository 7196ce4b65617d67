"""Which rows discovery finds, for operators whose answer is known."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

import shardwise as sw


def rows(op, *args, **kwargs):
    return {str(row) for row in sw.discover(op, *args, **kwargs).rows}


def name_of(value):
    """Test ids: the operator and the row, not the tensors."""
    return value if isinstance(value, str) else getattr(value, "__name__", "")


def rand(*shape, dtype=torch.float32):
    return torch.randn(shape).to(dtype)


X = rand(4, 6)
CUBE = rand(4, 6, 8)
ATTENTION = [rand(2, 4, 6, 8) for _ in range(3)]
LINEAR = {f"{p}, R -> {p}" for p in ("P(sum)", "P(avg)")} | {f"R, {p} -> {p}" for p in ("P(sum)", "P(avg)")}
MOVES = {f"{p} -> {p}" for p in ("P(sum)", "P(avg)", "P(max)", "P(min)")}

EXACT = {
    "mm": (
        torch.mm,
        [X, rand(6, 8)],
        {},
        {"S(0), R -> S(0)", "R, S(1) -> S(1)", "S(1), S(0) -> P(sum)"} | LINEAR,
    ),
    "softmax": (torch.softmax, [CUBE], {"dim": 1}, {"S(0) -> S(0)", "S(2) -> S(2)"}),
    "cross": (torch.linalg.cross, [rand(8, 3), rand(8, 3)], {"dim": 1}, {"S(0), S(0) -> S(0)"} | LINEAR),
    "max": (torch.max, [CUBE, 1], {}, {"S(0) -> S(0), S(0)", "S(2) -> S(1), S(1)"}),
    "mean": (
        torch.mean,
        [X],
        {},
        {"S(0) -> P(avg)", "S(1) -> P(avg)", "P(sum) -> P(sum)", "P(avg) -> P(avg)"},
    ),
    "relu": (torch.relu, [X], {}, {"S(0) -> S(0)", "S(1) -> S(1)", "P(max) -> P(max)", "P(min) -> P(min)"}),
    "amax": (torch.amax, [X, 1], {}, {"S(0) -> S(0)", "S(1) -> P(max)", "P(max) -> P(max)"}),
    "topk": (torch.topk, [X, 2], {}, {"S(0) -> S(0), S(0)"}),
    "cumsum": (torch.cumsum, [X, 1], {}, {"S(0) -> S(0)", "P(sum) -> P(sum)", "P(avg) -> P(avg)"}),
    "roll": (torch.roll, [X, 1, 0], {}, {"S(1) -> S(1)"} | MOVES),
    "nan_to_num": (torch.nan_to_num, [X], {}, {"S(0) -> S(0)", "S(1) -> S(1)"}),
    "any": (torch.any, [X, 1], {}, {"S(0) -> S(0)"}),
    "add_": (
        torch.Tensor.add_,
        [X, X],
        {},
        {"S(0), S(0) -> S(0)", "S(1), S(1) -> S(1)", "P(max), R -> P(max)", "P(min), R -> P(min)"}
        | {f"{p}, {p} -> {p}" for p in ("P(sum)", "P(avg)")},
    ),
    "addmm": (
        torch.addmm,
        [rand(8), X, rand(6, 8)],
        {},
        {"S(0), R, S(1) -> S(1)", "R, S(0), R -> S(0)", "P(sum), S(1), S(0) -> P(sum)"}
        | {"P(max), R, R -> P(max)", "P(min), R, R -> P(min)"}
        | {f"{p}, {a}, {b} -> {p}" for p in ("P(sum)", "P(avg)") for a, b in ((p, "R"), ("R", p))},
    ),
    "gather": (
        torch.gather,
        [X, 1, torch.zeros(4, 3, dtype=torch.int64)],
        {},
        {"S(0), S(0) -> S(0)", "R, S(1) -> S(1)"}
        | {f"{p}, R -> {p}" for p in ("P(sum)", "P(avg)", "P(max)", "P(min)")},
    ),
    "searchsorted": (
        torch.searchsorted,
        [torch.arange(8.0), X],
        {},
        {
            "S(0), R -> P(sum)",
            "R, S(0) -> S(0)",
            "R, S(1) -> S(1)",
            "R, P(max) -> P(max)",
            "R, P(min) -> P(min)",
        },
    ),
    "cast": (
        torch.Tensor.to,
        [X, torch.float16],
        {},
        {"S(0) -> S(0)", "S(1) -> S(1)", "P(max) -> P(max)", "P(min) -> P(min)"},
    ),
}


@pytest.mark.parametrize("name", EXACT)
def test_exactly_these_rows(name):
    op, args, kwargs, expected = EXACT[name]
    assert rows(op, *args, **kwargs) == expected


ACCEPTED = [
    (torch.exp, "P(max) -> P(max)", [X], {}),
    (torch.exp, "P(min) -> P(min)", [X], {}),
    (torch.neg, "P(max) -> P(min)", [X], {}),
    (torch.add, "P(avg), R -> P(avg)", [X, X], {}),
    (torch.div, "P(sum), R -> P(sum)", [X, X], {}),
    (torch.cat, "S(1), S(1) -> S(1)", [[X, X]], {"dim": 0}),
    (torch.cat, "P(sum), P(sum) -> P(sum)", [[X, X]], {"dim": 0}),
    (F.layer_norm, "R, R, P(max) -> P(max)", [X, (6,), rand(6), rand(6)], {}),
    (F.scaled_dot_product_attention, "S(0), S(0), S(0) -> S(0)", ATTENTION, {}),
    (F.scaled_dot_product_attention, "S(1), S(1), S(1) -> S(1)", ATTENTION, {}),
    (F.scaled_dot_product_attention, "S(2), R, R -> S(2)", ATTENTION, {}),
    (F.conv2d, "S(0), R -> S(0)", [rand(2, 4, 6, 6), rand(8, 4, 3, 3)], {}),
    (F.conv2d, "R, S(0) -> S(1)", [rand(2, 4, 6, 6), rand(8, 4, 3, 3)], {}),
    (F.conv2d, "S(1), S(1) -> P(sum)", [rand(2, 4, 6, 6), rand(8, 4, 3, 3)], {}),
    (F.embedding, "R, S(1) -> S(1)", [torch.zeros(3, dtype=torch.int64), rand(5, 4)], {}),
    (
        torch.mm,
        "S(1), S(0) -> P(sum)",
        [rand(4, 6, dtype=torch.bfloat16), rand(6, 8, dtype=torch.bfloat16)],
        {},
    ),
    (
        torch.mm,
        "P(sum), R -> P(sum)",
        [rand(4, 6, dtype=torch.bfloat16), rand(6, 8, dtype=torch.bfloat16)],
        {},
    ),
    (torch.mm, "S(0, sf=2), R -> S(0, sf=2)", [X, rand(6, 8)], {}),
    (torch.prod, "S(0) -> P(product)", [rand(64)], {}),
]


@pytest.mark.parametrize(("op", "row", "args", "kwargs"), ACCEPTED, ids=name_of)
def test_accepted(op, row, args, kwargs):
    verdict = sw.check(op, row, *args, **kwargs)
    assert verdict, verdict.reason
    assert verdict.evidence.total() > 5


REFUTED = [
    (torch.abs, "P(min) -> P(min)", [X], {}),
    (torch.abs, "P(max) -> P(min)", [X], {}),
    (torch.abs, "P(sum) -> P(sum)", [X], {}),
    (F.gelu, "P(min) -> P(min)", [X], {}),
    (torch.relu, "P(max) -> P(sum)", [X], {}),
    (torch.relu, "P(sum) -> P(sum)", [X], {}),
    (torch.nan_to_num, "P(sum) -> P(sum)", [X], {}),
    (torch.nan_to_num, "P(max) -> P(max)", [X], {}),
    (torch.div, "P(sum), R -> P(sum)", [X, X], {"rounding_mode": "trunc"}),
    (torch.any, "P(sum) -> P(sum)", [X], {}),
    (torch.linalg.vector_norm, "P(max) -> P(max)", [X, float("inf")], {}),
    (torch.linalg.vector_norm, "P(min) -> P(min)", [X, float("-inf")], {}),
    (torch.prod, "S(0) -> P(sum)", [rand(64)], {}),
    (torch.mean, "S(0) -> P(max)", [rand(2**20)], {}),
    (torch.any, "S(0) -> R", [X], {}),
    (torch.all, "S(0) -> R", [X], {}),
    (torch.all, "S(1) -> R", [X, 1], {}),
    (torch.roll, "S(0) -> S(0)", [X, 1, 0], {}),
    (torch.add, "P(sum), R -> P(sum)", [X, X], {}),
    (torch.Tensor.to, "P(sum) -> P(sum)", [X, torch.float16], {}),
    (F.scaled_dot_product_attention, "S(2), R, R -> S(2)", ATTENTION, {"is_causal": True}),
    (torch.mul, "P(max), R -> P(max)", [X, X], {}),
]


@pytest.mark.parametrize(("op", "row", "args", "kwargs"), REFUTED, ids=name_of)
def test_refuted_with_a_counterexample_that_replays(op, row, args, kwargs):
    verdict = sw.check(op, row, *args, **kwargs)
    assert not verdict
    assert verdict.counterexample is not None
    assert verdict.counterexample.replay()
    assert verdict.counterexample.shown()


@pytest.mark.parametrize("holds", ["R -> R", "S(0) -> S(0)", "P(max) -> P(max)"])
def test_a_row_that_holds_does_not_fail_when_another_row_s_counterexample_is_run_by_it(holds):
    """Replaying runs the experiment; it does not just remember."""
    relu = sw.discover(torch.relu, X)
    assert relu.counterexample(sw.Row.parse(holds)) is None
    refuted = relu.counterexample("P(sum) -> P(sum)")
    assert refuted.row == sw.Row.parse("P(sum) -> P(sum)") and refuted.replay()
    assert not replace(refuted, row=sw.Row.parse(holds)).replay()


@pytest.mark.parametrize(
    ("op", "args", "row", "shards"),
    [
        (torch.mean, [X], "S(0) -> P(avg)", "even"),
        (torch.amax, [X, 1], "S(1) -> P(max)", "nonempty"),
        (torch.amax, [X, 1], "S(0) -> S(0)", "any"),
        (torch.mm, [X, rand(6, 8)], "S(1), S(0) -> P(sum)", "any"),
        (torch.Tensor.view, [CUBE, 24, 8], "S(0) -> S(0)", "even"),
        (torch.Tensor.view, [CUBE, 24, 8], "S(2) -> S(1)", "any"),
        (torch.Tensor.view, [rand(24, 8), 4, 6, 8], "S(0) -> S(0)", "even"),
    ],
    ids=name_of,
)
def test_rows_say_for_which_shards_they_hold(op, args, row, shards):
    found = {str(r): r for r in sw.discover(op, *args).rows}
    assert found[row].shards == shards


@pytest.mark.parametrize(
    ("op", "args", "expected"),
    [
        (torch.Tensor.new_zeros, [X, (3, 5)], {"R -> S(0)", "R -> S(1)"}),
        (torch.zeros, [(3, 5)], {"-> S(0)", "-> S(1)"}),
        (torch.Tensor.expand, [rand(1, 6), (5, 6)], {"S(1) -> S(1)", "R -> S(0)"}),
        (F.group_norm, [CUBE, 2], {"S(0) -> S(0)"}),
    ],
    ids=name_of,
)
def test_arguments_that_name_sizes_become_local(op, args, expected):
    found = sw.discover(op, *args)
    assert {str(r) for r in found.rows if r.local == "sizes"} == expected


def test_outputs_that_ignore_values_are_decided_by_shape():
    assert rows(torch.zeros_like, X) >= {"S(0) -> S(0)", "P(sum) -> R"}
    assert "P(sum) -> P(sum)" not in rows(torch.zeros_like, X)


@pytest.mark.parametrize(
    ("op", "args", "verdict"),
    [
        (torch.nn.functional.dropout, [X], "random"),
        (torch.rand_like, [X], "random"),
        (torch.nonzero, [X], "data-dependent shape"),
        (torch.masked_select, [X, X > 0], "data-dependent shape"),
        (torch.Tensor.to_sparse, [X], "sparse"),
        (torch.equal, [X, X], "no tensor outputs"),
        (torch.sort, [rand(6)], "no valid rows"),
    ],
    ids=name_of,
)
def test_what_cannot_be_sharded_is_named(op, args, verdict):
    found = sw.discover(op, *args)
    assert found.verdict == verdict
    assert found.rows == []


@pytest.mark.parametrize(
    ("op", "args", "overloads"),
    [
        (torch.cdist, [rand(5, 4), rand(6, 4)], ("aten._cdist_forward.default",)),
        (torch.cdist, [rand(30, 4), rand(30, 4)], ("aten._euclidean_dist.default",)),
        (F.unfold, [rand(2, 3, 6, 6), 2], ("aten.im2col.default",)),
        (F.linear, [X, rand(8, 6), rand(8)], ("aten.t.default", "aten.addmm.default")),
        (lambda x: (x + 1).exp(), [X], ("aten.add.Tensor", "aten.exp.default")),
    ],
    ids=name_of,
)
def test_a_function_is_mapped_to_what_it_dispatches(op, args, overloads):
    found = sw.discover(op, *args)
    assert found.overloads == overloads
    assert found.rows


def test_rows_of_a_function_speak_of_its_own_arguments():
    """F.embedding(input, weight) is aten.embedding(weight, indices); layer_norm returns one of three outputs."""
    indices, weight = torch.zeros(3, dtype=torch.int64), rand(5, 4)
    assert "R, S(1) -> S(1)" in rows(F.embedding, indices, weight)
    assert "S(1), R -> S(1)" in rows(torch.ops.aten.embedding.default, weight, indices)
    assert "S(0), R, R -> S(0)" in rows(F.layer_norm, X, (6,), rand(6), rand(6))
    native = torch.ops.aten.native_layer_norm.default
    assert "S(0), R, R -> S(0), S(0), S(0)" in rows(native, X, (6,), rand(6), rand(6), 1e-5)


def test_integers_stay_integers():
    found = sw.discover(torch.add, torch.zeros(4, 6, dtype=torch.int64), torch.zeros(4, 6, dtype=torch.int64))
    assert "P(sum), P(sum) -> P(sum)" in {str(r) for r in found.rows}
    assert not any("avg" in str(r) for r in found.rows)


def test_statistics_written_in_place_are_judged_too():
    statistics = [rand(6), rand(6).abs()]
    found = rows(F.batch_norm, CUBE, *statistics, rand(6), rand(6), training=True)
    assert "S(1), S(0), S(0), S(0), S(0) -> S(1)" in found
    assert "R, P(sum), R, R, R -> R" not in found


def test_examples_are_not_written_to():
    x, y = X.clone(), X.clone()
    sw.discover(torch.Tensor.add_, x, y)
    assert torch.equal(x, X) and torch.equal(y, X)


def test_out_tensors_are_not_inputs():
    found = rows(torch.ops.aten.mm.out, X, rand(6, 8), out=torch.empty(4, 8))
    assert found == EXACT["mm"][3]


def test_five_inputs_and_long_lists():
    five = rows(lambda a, b, c, d, e: a * b + c * d + e, *(rand(4, 6) for _ in range(5)))
    assert "P(sum), R, P(sum), R, P(sum) -> P(sum)" in five
    assert "S(0), S(0), S(0), S(0), S(0) -> S(0)" in five
    assert "P(sum), P(sum), P(sum), R, P(sum) -> P(sum)" not in five
    many = sw.discover(torch.cat, [rand(4, 6) for _ in range(20)], 0)
    assert "S(1)" in str(many.rows[0]) and len(many.rows[0].inputs) == 20


def test_an_operator_may_have_its_own_generator():
    @sw.adversarial("aten.tan")
    def gentle(shape, dtype, device, input_idx=0):
        """Values chosen for this operator alone."""
        return torch.linspace(0, 1, torch.Size(shape).numel(), dtype=dtype).reshape(shape)

    evidence = sw.discover(torch.tan, X).evidence[sw.Row.parse("S(0) -> S(0)")]
    assert "normal" in evidence and "gentle" in evidence
    assert "gentle" not in sw.discover(torch.sin, X).evidence[sw.Row.parse("S(0) -> S(0)")]


def test_a_generator_that_makes_values_of_no_shape_is_reported():
    @sw.adversarial("aten.tan")
    def of_four_dims(shape, dtype, device, input_idx=0):
        return torch.ones(shape, dtype=dtype) * shape[3]

    @sw.adversarial("aten.tan")
    def of_even_sizes(shape, dtype, device, input_idx=0):
        if shape[0] % 2:
            raise ValueError(f"{shape[0]} is odd")
        return torch.ones(shape, dtype=dtype)

    found = sw.discover(torch.tan, X)
    assert list(found.idle) == ["of four dims"] and found.idle["of four dims"].startswith("IndexError: ")
    assert "The generator `of four dims` made values of no shape: IndexError: " in str(list(found.blocks()))
    assert not sw.discover(torch.sin, X).idle


def test_narrowing_is_a_policy():
    row = "P(sum) -> P(sum)"
    refused = sw.check(torch.Tensor.to, row, X, torch.float16)
    assert "narrowing" in refused.reason
    assert row not in rows(torch.Tensor.to, X, torch.float16)
    loose = sw.Policy(narrowing=True)
    assert row in map(str, loose.discover(torch.Tensor.to, X, torch.float16).rows)
    assert loose.check(torch.Tensor.to, row, X, torch.float16)


def test_products_are_a_policy():
    row = "S(0) -> P(product)"
    assert row not in rows(torch.prod, X, 0)
    assert row in map(str, sw.Policy(partials=("sum", "product")).discover(torch.prod, X, 0).rows)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sw.discover(torch.mm, X, X), "torch.mm raises on the whole input"),
        (lambda: sw.discover(torch.mm, X), "torch.mm raises on the whole input"),
        (lambda: sw.discover("torch.mm", X), "is not an operator"),
        (lambda: sw.discover(torch.neg, X.to("meta")), "experiments need values"),
        (lambda: sw.check(torch.neg, "S(0) -> S(0)", X.to("meta")), "experiments need values"),
        (lambda: sw.check(torch.mm, "S(0) -> S(0)", X, rand(6, 8)), "has 1 inputs, but torch.mm was given 2"),
        (lambda: sw.check(torch.mm, "S(2), R -> R", X, rand(6, 8)), "shards dim 2 of input 0"),
        (lambda: sw.check(torch.mm, "S(0), R -> S(5)", X, rand(6, 8)), "shards dim 5 of output 0"),
        (lambda: sw.check(torch.mm, "S(0), R -> R, R", X, rand(6, 8)), "has 2 outputs"),
        (lambda: sw.Policy(partials=("median",)), "unknown reduction 'median'"),
        (lambda: sw.Policy(ranks=(1,)), r"ranks is \(1,\): give numbers of ranks, each at least 2"),
        (lambda: sw.Policy(ranks=()), r"ranks is \(\): give numbers of ranks"),
    ],
)
def test_wrong_use_is_one_sentence(call, message):
    with pytest.raises(sw.UsageError, match=message) as error:
        call()
    assert "\n" not in str(error.value)


def test_kernels_that_treat_nan_by_position_still_shard():
    """The vectorised part of this kernel lets NaN through where the rest of it does not."""
    found = sw.discover(torch.ops.aten.hardswish_backward.default, torch.rand(10, 10), torch.rand(10, 10))
    assert {"S(0), S(0) -> S(0)", "S(1), S(1) -> S(1)"} <= {str(row) for row in found.rows}


def test_calls_that_take_values_between_zero_and_one_only_are_resized():
    found = sw.discover(torch.ops.aten.binary_cross_entropy.default, torch.rand(5, 5), torch.rand(5, 5))
    assert {("S(0), S(0) -> P(avg)", "even")} <= {(str(row), row.shards) for row in found.rows}


def test_an_empty_result_is_no_evidence():
    assert sw.discover(torch.abs, rand(0, 4)).rows == []


def test_the_last_digit_counts_where_it_is_all_an_operator_changes():
    found = sw.discover(torch.nextafter, torch.rand(4, 6), torch.rand(4, 6))
    rows = {str(row) for row in found.rows}
    assert "P(max), R -> P(max)" in rows  # monotone
    assert not any("P(sum)" in row for row in rows)


def test_an_infinity_on_every_rank_excuses_sums_that_cancel_and_nothing_else() -> None:
    def sharp(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """A sum over dim 0 while y is finite."""
        total = x.sum(0)
        return torch.where(y.isinf(), total.abs() + 1, total + 0 * y.isnan())

    x, y = torch.rand(4, 6), torch.rand(6)
    assert sw.check(sharp, "S(0), R -> P(sum)", x, y).reason == "values differ"
    weight, z = torch.rand(8, 4, 6), torch.rand(2, 6)
    assert sw.check(F.bilinear, "S(1), R, S(1) -> P(sum)", torch.rand(2, 4), z, weight)


@pytest.mark.parametrize(
    ("op", "args", "row"),
    [
        (torch.ops.aten.squeeze_.dim, (torch.rand(1, 6, 5), 0), "S(1) -> S(0)"),
        (torch.ops.aten.unsqueeze_.default, (torch.rand(4, 6), 0), "S(1) -> S(2)"),
        (torch.ops.aten.t_.default, (torch.rand(4, 6),), "S(0) -> S(1)"),
    ],
)
def test_an_input_that_is_given_another_shape_in_place_is_placed_as_the_output(op, args, row):
    assert row in {str(r) for r in sw.discover(op, *args).rows}


def test_floats_of_eight_bits_are_cut_and_never_partial():
    a, b = torch.rand(16, 32).to(torch.float8_e4m3fn), torch.rand(48, 32).to(torch.float8_e4m3fn).t()
    one = torch.tensor(1.0)
    found = sw.discover(torch.ops.aten._scaled_mm.default, a, b, one, one, out_dtype=torch.float32)
    rows = {str(row) for row in found.rows}
    assert {"S(0), R, R, R -> S(0)", "R, S(1), R, R -> S(1)", "S(1), S(0), R, R -> P(sum)"} <= rows
    assert not any(row.startswith("P") or row.startswith("R, P") for row in rows)


def test_missing_values_are_left_out_of_every_piece():
    assert [str(row) for row in sw.discover(torch.nansum, torch.rand(4, 6)).rows] == [
        "S(0) -> P(sum)",
        "S(1) -> P(sum)",
    ]


def test_complex_numbers_stay_complex():
    x = torch.complex(torch.rand(4, 6), torch.rand(4, 6)).to(torch.complex128)
    rows = {str(row) for row in sw.discover(torch.ops.aten.angle.default, x).rows}
    assert rows == {"S(0) -> S(0)", "S(1) -> S(1)"}


def test_integers_of_which_a_call_takes_few_are_its_own_and_the_other_inputs_are_drawn():
    """The example's own values cannot refute the row: they are the same along the sharded dim."""
    matrix, pivots = torch.linalg.lu_factor(rand(2, 5, 5) + 5 * torch.eye(5))
    args = (matrix, pivots, rand(5, 3).expand(2, 5, 3).clone())
    verdict = sw.check(torch.ops.aten.linalg_lu_solve.default, "R, R, S(0) -> R for even shards", *args)
    assert not verdict and verdict.counterexample is not None


def test_a_partial_is_narrowed_only_if_it_has_more_digits_than_the_result():
    """A tensor without dims does not widen a result, and is not what is rounded while it is replicated."""
    many, one = torch.randn(3, 4), torch.tensor(2.0, dtype=torch.float64)
    assert sw.check(torch.ops.aten.div.Tensor, "P(sum), R -> P(sum)", many, one).valid
    assert not sw.check(torch.ops.aten.mul.Tensor, "R, P(sum) -> P(sum)", many, one).valid
