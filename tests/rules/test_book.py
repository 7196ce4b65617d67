"""The book: what it says, how it is looked up, and that experiments still agree with it."""

import random
import warnings

import pytest
import torch

import shardwise as sw
from shardwise import Row
from shardwise.calls import Call, opinfos, overload, overload_calls, samples
from shardwise.documents import Field
from shardwise.errors import UsageError
from shardwise.placements import SHARDS
from shardwise.rules import (
    SHIPPED,
    VERDICTS,
    Book,
    Case,
    Clause,
    Entry,
    Rule,
    always_alike,
    book,
    book_rows,
    derived,
    editions,
    hand,
    own_rules,
    variants_of,
    write,
)
from tests.versions import needs_samples

aten = torch.ops.aten


def texts(rows):
    return [str(row) for row in rows]


def meta(*shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype, device="meta")


@torch.library.custom_op("shardwise_tests::unheard_of", mutates_args=())
def unheard_of(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


# -- looking things up


@pytest.mark.parametrize(
    "name", [torch.softmax, torch.nn.functional.softmax, "softmax", "torch.softmax", aten._softmax.default]
)
def test_a_rule_is_found_by_overload_function_or_name(name):
    assert [str(clause) for clause in sw.rule(name).clauses] == ["S(d) -> S(d) when d != dim"]


def test_a_packet_means_its_default_overload():
    assert sw.rule(aten.mm).op == "aten.mm.default"


def test_rows_of_a_call_need_no_data():
    assert texts(sw.rows(aten._softmax.default, meta(4, 6, 8), 1, False)) == ["S(0) -> S(0)", "S(2) -> S(2)"]
    assert texts(sw.rows(torch.softmax, meta(4, 6), -1)) == ["S(0) -> S(0)"]


def test_rows_of_a_function_count_its_tensors_as_the_function_does():
    def swapped(x, y):
        return torch.mm(y, x)

    assert "R, S(0) -> S(0)" in texts(sw.rows(swapped, meta(6, 8), meta(4, 6)))


def test_a_function_that_reaches_several_overloads_is_told_which():
    with pytest.raises(
        UsageError, match=r"reaches aten\.exp\.default, aten\.neg\.default .*: ask for the rows"
    ):
        sw.rows(lambda x: -torch.exp(x), meta(4))


@pytest.mark.parametrize(
    ("op", "message"),
    [
        ("torch.nothing", "unknown op 'torch.nothing'"),
        (3, "unknown op 3"),
        (
            torch.mm,
            r"mm\(float32\[4, 6\], float32\[4, 6\]\) does not run: a and b must have same reduction dim",
        ),
        (aten.mm.default, r"aten\.mm\.default\(float32\[4, 6\], float32\[4, 6\]\) does not run: a and b"),
    ],
)
def test_a_call_that_is_none_is_one_sentence(op, message):
    with pytest.raises(UsageError, match=message):
        sw.rows(op, meta(4, 6), meta(4, 6))


def test_a_call_that_a_rule_cannot_be_about_is_one_sentence():
    with pytest.raises(UsageError, match=r"aten\.view\.default\(float32\[4, 6\], \[5, 5\]\) does not run: "):
        sw.rows(aten.view.default, meta(4, 6), [5, 5])
    softmax = Rule(
        "aten._softmax.default", (Clause.parse("S(d) -> S(d) when d != dim"),), front="torch.softmax"
    )
    assert texts(softmax.rows(meta(4, 6), 1)) == ["S(0) -> S(0)"]
    with pytest.raises(UsageError, match=r"torch\.softmax\(float32\[4, 6\], 1\.5\) does not run: "):
        softmax.rows(meta(4, 6), 1.5)
    with pytest.raises(UsageError, match=r"aten\.mm\.default\(.*\) does not run: a and b"):
        Rule("aten.mm.default", (Clause.parse("S(0), R -> S(0)"),)).rows(meta(4, 6), meta(4, 6))


def test_what_is_not_known_is_said_in_one_sentence():
    with pytest.raises(UsageError, match=r"the book has no operator 'no_such_op'"):
        sw.rule("no_such_op")
    with pytest.raises(
        UsageError, match=r"no clauses of aten\.nonzero\.default, its verdict is 'data-dependent shape'"
    ):
        sw.rule(aten.nonzero.default)
    with pytest.raises(UsageError, match=r"no clauses of aten\.view\.default, it is written by hand"):
        sw.rule(torch.ops.aten.view)
    with pytest.raises(
        UsageError, match=r"no rows for this call of aten\.nonzero\.default .*discover finds them"
    ):
        sw.rows(aten.nonzero.default, meta(4))
    assert book_rows(Call.of(unheard_of, meta(4))) is None


def test_a_number_in_the_place_of_a_tensor_is_there_on_every_rank():
    """x + 2 may not add 2 once per rank; x * 2 may be done to each part of a sum."""
    added = texts(sw.rows(aten.add.Tensor, meta(4, 6), 2.0))
    assert "S(0) -> S(0)" in added and "P(avg) -> P(avg)" not in added and "P(sum) -> P(sum)" not in added
    scaled = texts(sw.rows(aten.mul.Tensor, meta(4, 6), 2.0))
    assert "P(sum) -> P(sum)" in scaled and "P(max) -> P(max)" not in scaled


def test_partials_that_a_dtype_cannot_have_are_left_out():
    assert "P(avg) -> P(avg)" in texts(sw.rows(aten.neg.default, meta(4)))
    assert "P(avg) -> P(avg)" not in texts(sw.rows(aten.neg.default, meta(4, dtype=torch.int64)))
    assert "P(max) -> P(min)" not in texts(sw.rows(aten.neg.default, meta(4, dtype=torch.complex64)))
    f8 = torch.float8_e4m3fn
    for op, *args in ((aten.transpose.int, 0, 1), (aten.view.default, [6, 4]), (aten._to_copy.default,)):
        assert "P(max)" in " ".join(texts(sw.rows(op, meta(4, 6), *args)))
        assert "P(" not in " ".join(texts(sw.rows(op, meta(4, 6, dtype=f8), *args)))
    assert "P(" not in " ".join(texts(sw.rows(aten._to_copy.default, meta(4), dtype=f8)))


# -- the shipped book


def test_every_operator_has_one_of_the_named_verdicts():
    for known in editions(SHIPPED).values():
        counts = known.index["counts"]
        assert list(counts) == list(VERDICTS)
        assert len(known.own_verdicts) == sum(counts.values())
        ruled = sum(verdict == "ruled" for verdict in known.verdicts.values())
        assert ruled > 0.6 * len(known.verdicts) > 700


def test_the_index_and_the_families_tell_the_same():
    for name, verdict in book().verdicts.items():
        entry = book().entry(name)
        assert entry is not None and entry.verdict == verdict, name
        assert (entry.rule is not None or entry.by_hand) == (verdict == "ruled") or verdict == "random", name


@needs_samples
def test_every_operator_that_samples_reach_is_in_the_book():
    for info in random.Random(1).sample(opinfos(), 30):
        for sample in list(samples(info))[:3]:
            for call in overload_calls(sample):
                assert call.op.namespace != "aten" or str(call.op) in book().verdicts, info.name


@pytest.mark.parametrize(
    ("op", "args", "row"),
    [
        ("aten.mm.default", (meta(4, 6), meta(6, 8)), "S(1), S(0) -> P(sum)"),
        ("aten.mm.out", (meta(4, 6), meta(6, 8)), "S(1), S(0) -> P(sum)"),
        ("aten.relu_.default", (meta(4, 6),), "S(1) -> S(1)"),
        (
            "aten._foreach_add.List",
            ([meta(4), meta(6)], [meta(4), meta(6)]),
            "S(0), S(0), S(0), S(0) -> S(0), S(0)",
        ),
        ("aten.threshold_backward.default", (meta(4, 6), meta(4, 6), 0.0), "P(sum), R -> P(sum)"),
    ],
)
def test_forward_backward_lists_and_variants_are_in_it(op, args, row):
    given = {"out": meta(4, 8)} if op.endswith(".out") else {}
    assert row in texts(book_rows(Call(overload(op), args, given)))


def refuted(found, op, row, *args, **kwargs):
    """What is wrong about a row of the book: experiments refute it, or show that it holds for fewer kinds of shards
    than it claims. Where none could tell (values that are all alike, sizes that leave no uneven shards) none does."""
    verdict = sw.check(op, row, *args, **kwargs)
    fewer = verdict and SHARDS.index(verdict.shards) > SHARDS.index(row.shards)
    example = found.counterexample(row) if fewer else verdict.counterexample
    return [f"{row} for {row.shards}, {row.local}: {verdict.shards}, {example}"] if example else []


def against_fresh_experiments(count):
    """No row that the book gives for overloads that some samples reach is refuted."""
    compared, wrong = 0, []
    for info in random.Random(0).sample([i for i in opinfos() if i.supports_autograd], count):
        sample = next(iter(samples(info)), None)
        if sample is None:
            continue
        for call in overload_calls(sample)[:1]:
            rows = book_rows(call)
            found = sw.discover(call.op, *call.args, **call.kwargs)
            if rows is None or found.verdict not in ("rows", "no valid rows"):
                continue
            for row in set(rows) - set(found.rows):
                wrong += refuted(found, call.op, row, *call.args, **call.kwargs)
            compared += 1
    assert wrong == []
    assert compared > count / 2


@needs_samples
def test_fresh_experiments_agree_with_a_sample_of_the_rules():
    against_fresh_experiments(20)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state:UserWarning")
def test_fresh_experiments_agree_with_most_rules():
    against_fresh_experiments(250)


def daily_calls():
    """Calls that every model makes, small enough to be judged by experiment."""
    torch.manual_seed(0)
    x, y, z = torch.randn(4, 6), torch.randn(4, 6, 8), torch.randn(6, 8)
    image, kernel = torch.randn(4, 3, 8, 8), torch.randn(6, 3, 3, 3)
    index = torch.randint(6, (4, 5))
    window = [[1, 1], [1, 1], [1, 1], False, [0, 0], 1]
    return [
        *((aten.t.default, x), (aten.transpose.int, y, 0, 2), (aten.permute.default, y, [2, 0, 1])),
        *(
            (aten.unsqueeze.default, x, 1),
            (aten.squeeze.dim, y[:, :1], 1),
            (aten.expand.default, x[:1], [5, 6]),
        ),
        *((aten.select.int, y, 1, 2), (aten.slice.Tensor, y, 1, 1, 4), (aten.clone.default, x)),
        *((aten.cat.default, [x, x], 1), (aten.stack.default, [x, x], 1), (aten.split.Tensor, y, 4, 2)),
        *((aten.mm.default, x, z), (aten.bmm.default, y, y.mT), (aten.addmm.default, z[0], x, z)),
        *(
            (aten.add.Tensor, y, z),
            (aten.mul.Tensor, y, z[0]),
            (aten.div.Tensor, y, y),
            (aten.sub.Tensor, y, 2),
        ),
        *((aten.pow.Tensor_Scalar, x, 2), (aten.neg.default, x), (aten.rsqrt.default, x.abs() + 1)),
        *((aten.relu.default, x), (aten.gelu.default, x), (aten.silu.default, x), (aten.tanh.default, x)),
        *((aten.sum.dim_IntList, y, [1]), (aten.mean.dim, y, [-1], True), (aten.amax.default, y, [0])),
        *((aten._softmax.default, y, 2, False), (aten._log_softmax.default, y, 1, False)),
        *((aten.cumsum.default, y, 1), (aten.argmax.default, y, 1), (aten.topk.default, y, 2, 1)),
        *((aten.sort.default, y, 1), (aten.tril.default, y), (aten.where.self, x > 0, x, x[0])),
        *((aten.masked_fill.Scalar, x, x > 0, 1.0), (aten.index_select.default, x, 1, index[0])),
        *((aten.gather.default, x, 1, index), (aten.embedding.default, x.T.contiguous(), index)),
        *((aten.native_layer_norm.default, y, [8], z[0], z[1], 1e-5), (aten.var.correction, y, [1])),
        (aten.convolution.default, image, kernel, None, *window),
        *(
            (aten.threshold_backward.default, x, x, 0),
            (aten._softmax_backward_data.default, y, y, 1, torch.float32),
        ),
    ]


@pytest.mark.parametrize("call", daily_calls(), ids=lambda call: str(call[0]))
def test_the_book_says_of_daily_calls_what_experiments_say(call):
    """Nothing that experiments refute, and no way of sharding less."""
    op, *arguments = call
    rows = book_rows(Call.of(op, *arguments))
    found = sw.discover(op, *arguments)
    claimed = {(r.inputs, r.outputs) for r in rows}
    verdicts = {row: sw.check(op, row, *arguments) for row in rows}
    wrong = [
        f"{row} for {row.shards}, {row.local}: {verdict.reason}"
        for row, verdict in verdicts.items()
        if not verdict or SHARDS.index(verdict.shards) > SHARDS.index(row.shards)
    ]
    assert wrong == []
    for row in found.rows:
        shards_only = not any(p is not None and p.is_partial() for p in (*row.inputs, *row.outputs))
        if shards_only and row.shards != "even":
            assert (row.inputs, row.outputs) in claimed, str(row)


# -- variants, cases and constants


def test_variants_have_the_arguments_of_their_original():
    assert {str(v) for v in variants_of(aten.add.Tensor)} == {"aten.add_.Tensor", "aten.add.out"}
    assert variants_of(aten.add_.Tensor) == []


def test_an_in_place_variant_keeps_the_rows_that_stay_in_place():
    clauses = tuple(map(Clause.parse, ("S(d), S(d) -> S(d)", "R, P(sum) -> P(sum)", "P(sum), R -> P(sum)")))
    rule = Rule("aten.mul.Tensor", clauses)
    assert [str(c) for c in derived(rule, "aten.mul_.Tensor").clauses] == [
        "S(d), S(d) -> S(d)",
        "P(sum), R -> P(sum)",
    ]
    assert derived(rule, "aten.mul.out").clauses == clauses


def test_a_case_matches_calls_that_agree_wherever_it_does():
    case = Case.of({"self": meta(4, 6, 6), "dim": 1}, [Row.parse("S(0) -> S(0)", "even")])
    assert case.matches({"self": meta(8, 9, 9), "dim": 1})
    assert case.matches({"self": meta(9, 9, 9), "dim": 1})  # all sizes may agree
    assert not case.matches({"self": meta(8, 9, 10), "dim": 1})  # these two varied together
    assert not case.matches({"self": meta(1, 9, 9), "dim": 1})
    assert not case.matches({"self": meta(8, 9, 9), "dim": 2})
    assert not case.matches({"self": meta(8, 9, 9, dtype=torch.int64), "dim": 1})
    assert Case.read(Field(case.to_document())) == case


def test_a_rule_says_nothing_about_arguments_that_never_varied():
    rule = Rule("aten.add.Tensor", (Clause.parse("P(max), P(max) -> P(max)"),))
    entry = Entry("aten.add.Tensor", "ruled", rule=rule, constant={"alpha": 1.0})
    assert entry.rows(Call.of(aten.add.Tensor, meta(4), meta(4), alpha=2))
    assert entry.rows(Call.of(aten.add.Tensor, meta(4), meta(4), alpha=-1)) is None


def test_a_rule_says_nothing_about_operands_of_other_shapes_where_they_always_had_one():
    assert always_alike([{"a": meta(4, 6), "b": meta(4, 6)}, {"a": meta(3), "b": meta()}]) == [["a", "b"]]
    assert always_alike([{"a": meta(4, 6), "b": meta(4, 6)}, {"a": meta(3), "b": meta(1)}]) == []
    rule = Rule("aten.add.Tensor", (Clause.parse("S(d), S(d) -> S(d)"),))
    entry = Entry("aten.add.Tensor", "ruled", rule=rule, alike=[["self", "other"]])
    assert entry.rows(Call.of(aten.add.Tensor, meta(4, 6), meta(4, 6)))
    assert entry.rows(Call.of(aten.add.Tensor, meta(4, 6), meta(6))) is None


def test_partials_of_integers_do_not_pass_where_they_are_those_of_real_numbers():
    rule = Rule("aten.avg_pool2d.default", (Clause.parse("P(sum) -> P(sum)"), Clause.parse("S(0) -> S(0)")))
    entry = Entry("aten.avg_pool2d.default", "ruled", rule=rule, real_partials=True, evidence={"calls": 1})
    entry = Entry.from_document(entry.to_document(), lambda op: None)
    image = meta(3, 2, 4, 4)
    assert texts(entry.rows(Call.of(aten.avg_pool2d.default, image, [2, 2]))) == [
        "P(sum) -> P(sum)",
        "S(0) -> S(0)",
    ]
    assert texts(entry.rows(Call.of(aten.avg_pool2d.default, image.long(), [2, 2]))) == ["S(0) -> S(0)"]


def test_sums_of_integers_wrap_around_and_those_of_floats_do_not():
    assert "P(sum), P(sum) -> P(sum)" in texts(book_rows(Call.of(aten.sub.Tensor, meta(4), meta(4))))
    mixed = texts(book_rows(Call.of(aten.sub.Tensor, meta(4), meta(4, dtype=torch.int64))))
    assert mixed and not any("P(sum), P(sum)" in row for row in mixed)


@pytest.mark.parametrize("call", [(aten.neg.default,), (aten.mul.Scalar, 2)], ids=lambda call: str(call[0]))
def test_an_order_of_integers_does_not_pass_arithmetic(call):
    """The smallest integer is its own negative, and twice a large one is negative."""
    op, *numbers = call
    of_floats = texts(book_rows(Call.of(op, meta(4, 6), *numbers)))
    of_integers = texts(book_rows(Call.of(op, meta(4, 6, dtype=torch.int64), *numbers)))
    assert any("P(max)" in row for row in of_floats) and not any("P(max)" in row for row in of_integers)
    assert "P(sum) -> P(sum)" in of_integers


def test_an_order_of_integers_passes_what_moves_them_and_what_makes_floats_of_them():
    x = meta(4, 6, dtype=torch.int64)
    assert "P(max) -> P(max)" in texts(book_rows(Call.of(aten.flip.default, x, [0])))
    assert "P(max) -> P(max)" in texts(book_rows(Call.of(aten.div.Scalar, x, 2)))


# -- rows that cannot hold


def test_rows_that_cannot_hold_are_not_given():
    rule = Rule("aten.expand.default", (Clause.parse("R -> S(0)"), Clause.parse("S(1) -> S(1)")))
    entry = Entry("aten.expand.default", "ruled", rule=rule)
    assert texts(entry.rows(Call.of(aten.expand.default, meta(1, 6), [4, 6]))) == ["S(1) -> S(1)"]
    with own_rules():

        @hand("shardwise_tests.unheard_of.default")
        def unheard_of_rows(call):
            yield from (Row.parse("R -> S(0)"), Row.parse("S(0) -> S(0)"))

        rows = book_rows(Call.of(torch.ops.shardwise_tests.unheard_of.default, meta(4)))
    assert texts(rows) == ["S(0) -> S(0)"]


# -- other books


@pytest.fixture
def other_book(tmp_path, monkeypatch):
    """A book about another torch in the place of the shipped one."""
    rule = Rule("aten.abs.default", (Clause.parse("S(d) -> S(d)"),))
    entries = [
        Entry("aten.abs.default", "ruled", rule=rule, evidence={"calls": 25}),
        Entry("aten.abs.out", "ruled", rule=derived(rule, "aten.abs.out"), like="aten.abs.default"),
        Entry("aten.rand.default", "random", "gives other values when run again"),
    ]
    write(tmp_path, entries, "1.0.0", {"torch.abs": ["aten.abs.default"]})
    monkeypatch.setenv("SHARDWISE_BOOK", str(tmp_path))
    book.cache_clear()
    yield tmp_path
    book.cache_clear()


def test_a_book_about_another_torch_warns_once_and_says_how_to_rebuild(other_book):
    with pytest.warns(
        UserWarning, match=r"knows torch 1\.0\.0.*`shardwise book build --out DIR`.*SHARDWISE_BOOK"
    ):
        assert sw.rule("abs").op == "aten.abs.default"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sw.rule("abs")


def test_a_book_reads_as_it_was_written(other_book):
    read = Book(other_book)
    assert read.verdicts == {
        "aten.abs.default": "ruled",
        "aten.abs.out": "ruled",
        "aten.rand.default": "random",
    }
    assert read.entry("aten.abs.out").rule.clauses == read.entry("aten.abs.default").rule.clauses
    assert read.entry("aten.rand.default").rows(Call.of(aten.rand.default, [4])) is None
    assert read.entry("aten.mm.default") is None


def test_a_folder_without_a_book_is_named(tmp_path):
    with pytest.raises(UsageError, match="there is no rule book in"):
        _ = Book(tmp_path).verdicts


@pytest.mark.parametrize(
    ("call", "reduction"),
    [
        (Call.of(aten.amax.default, torch.rand(4, 6) > 0.5, [0]), "max"),
        (Call.of(aten.add.Tensor, torch.rand(4), torch.rand(4, dtype=torch.complex64)), "max"),
        (Call.of(aten.sum.dim_IntList, torch.rand(4, 6), [0], dtype=torch.int64), "avg"),
        (Call.of(aten.cumsum.default, torch.rand(4, 6), 0, dtype=torch.int64), "avg"),
        (Call.of(aten.sum.dim_IntList, torch.rand(4, 6), [0], dtype=torch.bool), "sum"),
    ],
    ids=lambda value: value.name if isinstance(value, Call) else value,
)
def test_outputs_have_no_partials_that_their_dtype_lacks(call, reduction):
    rows = [row.text for row in book_rows(call)]
    assert rows and not any(f"P({reduction})" in row for row in rows)


def test_a_sum_does_not_pass_a_cast_to_integers():
    x = torch.rand(4, 6)
    assert "P(sum) -> P(sum)" in [row.text for row in book_rows(Call.of(aten.sum.dim_IntList, x, [0]))]
    whole = [row.text for row in book_rows(Call.of(aten.sum.dim_IntList, x, [0], dtype=torch.int64))]
    assert "P(sum) -> P(sum)" not in whole and "S(0) -> P(sum)" in whole


def test_an_operator_that_finds_elements_by_strides_has_rows_for_contiguous_tensors_only():
    whole, source = meta(4, 6), meta(2, 2)
    assert not sw.rows(aten.as_strided_scatter.default, whole.t(), source, [2, 2], [2, 1], 0)


POOLING = ([2, 2], [2, 2], [0, 0], False, True, None)

WHOLE = meta(4, dtype=torch.int64)

OUTSIDE = {
    "a mask of numbers": (aten.native_dropout_backward.default, (meta(4, 6), meta(4, 6), 2.0)),
    "a tensor that grows": (aten.resize_.default, (meta(4, 6), [8, 6])),
    "tolerances with dims": (aten.linalg_pinv.atol_rtol_tensor, (meta(4, 5, 3),), {"rtol": meta(4)}),
    "weights of every element": (
        aten.binary_cross_entropy_with_logits.default,
        (meta(4, 6), meta(4, 6), None, meta(4, 6), 2),
    ),
    "a gradient that no pooling has": (
        aten.avg_pool2d_backward.default,
        (meta(4, 3, 5, 4), meta(4, 3, 8, 8), *POOLING),
    ),
    "one of a variant": (
        aten.avg_pool2d_backward.grad_input,
        (meta(4, 3, 5, 4), meta(4, 3, 8, 8), *POOLING),
    ),
    "integers that are halved": (aten.addmv.default, (WHOLE, meta(4, 4).long(), WHOLE), {"alpha": 0.5}),
    "products of integers that are halved": (aten.addcmul.default, (WHOLE, WHOLE, WHOLE), {"value": 0.5}),
    "a seed that is a fraction": (
        overload("shardwise.attention.default"),
        (*[meta(4, 2, 6, 8)] * 3, None, meta(), False, 1.0, 0.0),
    ),
    "bags of fractions": (
        aten._embedding_bag_backward.default,
        (meta(3, 4), *(meta(n).long() for n in (8, 3, 0)), meta(3), meta(3), 9, False, 0, False, None),
    ),
    "places with more dims than the tensor": (aten.gather.default, (meta(5), 0, meta(1, 2, 0).long())),
    "places that are truths": (aten.gather.default, (meta(5), 0, meta(0).bool())),
    "an input stored by columns": (aten._linalg_slogdet.default, (meta(4, 5, 5).mT,)),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_calls_that_an_operator_is_not_meant_for_have_no_rows(name):
    op, args, *kwargs = OUTSIDE[name]
    assert not book_rows(Call.of(op, *args, **(kwargs[0] if kwargs else {})))


def test_calls_that_these_operators_are_meant_for_have_rows():
    kept = torch.ones(4, 6, dtype=torch.bool, device="meta")
    assert book_rows(Call.of(aten.native_dropout_backward.default, meta(4, 6), kept, 2.0))
    assert book_rows(Call.of(aten.resize_.default, meta(4, 6), [4, 6]))
    assert book_rows(Call.of(aten.linalg_pinv.atol_rtol_tensor, meta(4, 5, 3), rtol=meta()))
    loss = (meta(4, 6), meta(4, 6), None, meta(6), 2)
    assert book_rows(Call.of(aten.binary_cross_entropy_with_logits.default, *loss))
    assert book_rows(Call.of(aten._linalg_slogdet.default, meta(4, 5, 5)))
    assert book_rows(Call.of(aten.addmv.default, WHOLE, meta(4, 4).long(), WHOLE, alpha=2.0))
    assert book_rows(Call.of(aten.addcmul.default, WHOLE, WHOLE, WHOLE, value=2))
    heads = (*[meta(4, 2, 6, 8)] * 3, None, meta(dtype=torch.int64), False, 1.0, 0.0)
    assert book_rows(Call.of(overload("shardwise.attention.default"), *heads))
    for op in (aten.avg_pool2d_backward.default, aten.avg_pool2d_backward.grad_input):
        assert book_rows(Call.of(op, meta(4, 3, 4, 4), meta(4, 3, 8, 8), *POOLING))
