"""The checker refutes rows that are wrong, lets those pass that hold, and takes no call that is none."""

import ast
import json
import os
import signal
from pathlib import Path
from random import Random

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from tests.independent.calls import Call
from tests.independent.changes import changed, whole_if_call
from tests.independent.checking import check
from tests.independent.examining import examine
from tests.independent.pieces import chunk_sizes, claim, cut, partial_pieces, reduced
from tests.independent.replay import finding_document, replayed
from tests.independent.samples import attention_calls, recorded
from tests.independent.workers import Died, Failed, run

ATEN = torch.ops.aten


def r(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(-4000, 4000, shape, generator=generator).double() / 4096


def call(op, *args, **kwargs) -> Call:
    return Call.of(op, args, kwargs)


QUERY, KEY, VALUE = r(2, 6, 5, 4), r(2, 3, 5, 4), r(2, 3, 5, 3)
ATTENTION = call(torch.ops.shardwise.attention.default, QUERY, KEY, VALUE, None, None, False, 0.5, 0.0)
CONVOLUTION = (r(2, 3, 8), r(4, 3, 3), None, [1], [1], [1], False, [0], 1)

WRONG = [
    (call(ATEN.linalg_vector_norm.default, r(2, 3, 2), 1, [0], False), "S(1) -> S(1)"),
    (call(ATEN._softmax.default, r(4, 6), 1, False), "S(1) -> S(1)"),
    (call(ATEN.mean.dim, r(5, 3), [0]), "S(0) -> P(avg)"),
    (call(ATEN.amax.default, r(5, 3), [0]), "S(0) -> P(max)"),  # of an empty shard it raises
    (ATTENTION, "S(1), R, R -> S(1), S(1)"),  # without its local form
    (ATTENTION, "S(1), S(1), S(1) -> S(1), S(1) for nonempty shards"),
    (call(ATEN.relu.default, r(4, 6)), "P(sum) -> P(sum)"),
    (call(ATEN.mul.Tensor, r(4, 6), r(4, 6)), "P(sum), P(sum) -> P(sum)"),
    (call(ATEN.mul.Scalar, r(4, 6), -2.0), "P(max) -> P(max)"),
    (call(ATEN.add.Tensor, r(4, 6), r(4, 6)), "P(max), P(max) -> P(max)"),
    (call(ATEN.add.Tensor, r(4, 6), r(4, 6)), "P(sum), R -> P(sum)"),
    (call(ATEN.view.default, r(10, 3), [2, 5, 3]), "S(0) -> S(0) with local sizes"),
    (call(ATEN.view.default, r(8, 3), [4, 2, 3]), "S(0) -> S(1) with local sizes"),
    (call(ATEN.histc.default, r(12), 4, 0, 0), "S(0) -> P(sum)"),  # the range is that of the data
    (call(ATEN.convolution.default, *CONVOLUTION), "S(2), R -> S(2) for even shards"),
    (call(ATEN.sort.default, r(12), 0), "S(0) -> S(0), S(0)"),
    (call(ATEN.triu.default, r(6, 6)), "S(0) -> S(0)"),
    (call(ATEN.expand.default, r(1, 6), [4, 6]), "R -> S(0)"),
    (call(ATEN.any.default, r(4, 6) > 0), "S(0) -> P(sum)"),
    (call(ATEN.sum.default, r(4, 6), dtype=torch.int64), "P(sum) -> P(sum)"),
    (call(ATEN.add_.Tensor, r(4, 6), r(4, 6)), "S(0), R -> S(0)"),
    (call(ATEN._foreach_mul_.Scalar, [r(4, 6), r(3)], -2.0), "P(max), S(0) ->"),
    (call(ATEN.mm.out, r(4, 6), r(6, 4)), "S(1), S(0) -> S(0)"),
]


@pytest.mark.parametrize(("wrong", "row"), WRONG, ids=lambda v: v.name if isinstance(v, Call) else v)
def test_wrong_rows_are_refuted(wrong, row):
    outcome = check(wrong, [row], "0")
    assert outcome.checks and outcome.refuted and not outcome.rounding


RIGHT = [
    (call(ATEN.linalg_vector_norm.default, r(2, 3, 2), 1, [0], True), "S(1) -> S(1)"),
    (call(ATEN._softmax.default, r(4, 6), 1, False), "S(0) -> S(0)"),
    (call(ATEN.mean.dim, r(12, 3), [0]), "S(0) -> P(avg) for even shards"),
    (call(ATEN.amax.default, r(5, 3), [0]), "S(0) -> P(max) for nonempty shards"),
    (ATTENTION, "S(1), R, R -> S(1), S(1) for nonempty shards with local heads"),
    (call(ATEN.mm.default, r(4, 6), r(6, 5)), "S(1), S(0) -> P(sum)"),
    (call(ATEN.mm.out, r(4, 6), r(6, 5)), "P(avg), R -> P(avg)"),
    (call(ATEN.neg.default, r(4, 6)), "P(max) -> P(min)"),
    (call(ATEN.triu.default, r(6, 6)), "S(0) -> S(0) with local offset"),
    (call(ATEN._foreach_mul_.Scalar, [r(4, 6), r(3)], 2.0), "P(max), S(0) ->"),
    (call(ATEN.native_dropout.default, r(4, 6), 0.5, True), "S(0) -> S(0), S(0) for nonempty shards"),
    (call(ATEN.cumsum.default, r(4, 6), 0), "P(sum) -> P(sum)"),
]


@pytest.mark.parametrize(("right", "row"), RIGHT, ids=lambda v: v.name if isinstance(v, Call) else v)
def test_rows_that_hold_pass(right, row):
    for seed in "012":
        outcome = check(right, [row], seed)
        assert outcome.checks and not outcome.refuted and not outcome.rounding


def test_rows_are_checked_for_the_shards_of_which_they_speak():
    x = call(ATEN.mean.dim, r(5, 3), [0])
    assert check(x, ["S(0) -> P(avg) for even shards"], "0").checks == 0
    assert check(x, ["S(0) -> P(avg) for nonempty shards"], "0").checks == 2  # 5 on 4 ranks leaves one empty
    assert check(x, ["S(0) -> P(avg)"], "0").checks == 3


def test_a_rule_that_forgets_an_argument_is_refuted_by_changed_calls():
    """The norm of a tensor along dim 0 keeps its dims in every recorded call: that they are kept is not in the rule."""
    recorded_calls = [call(ATEN.linalg_vector_norm.default, r(4, 6, 3), 2, [0], True)]

    def rule(norm: Call, outputs) -> list[str]:
        ndim = norm.tensors[0].ndim
        dims = [d % ndim for d in norm.arguments["dim"] or range(ndim)]
        return [f"S({d}) -> S({d})" for d in range(ndim) if d not in dims]

    examined = [examine(recorded_calls, number, 0, rule) for number in range(40)]
    assert not examined[0].outcome.refuted
    refuted = [f for e in examined for f in e.outcome.refuted]
    assert refuted and not any(f.call.arguments["keepdim"] for f in refuted)


def test_changed_calls_reach_what_rules_speak_of():
    base = call(ATEN.linalg_vector_norm.default, r(4, 6, 3), 2, [0], True)
    random = Random(0)
    calls = [c for c in (changed(base, random, [base]) for _ in range(300)) if c is not None]
    kept = [c for c in calls if whole_if_call(c) is not None]
    given = [c.arguments for c in kept]
    assert {a["keepdim"] for a in given} == {True, False}
    assert any(a["dim"] and min(a["dim"]) < 0 for a in given)
    assert any(a["dim"] is None for a in given) and any(a["dim"] and len(a["dim"]) > 1 for a in given)
    assert any(a["ord"] == 0 for a in given) and any(a["ord"] < 0 for a in given)
    assert {c.tensors[0].ndim for c in kept} >= {2, 3, 4} and any(1 in c.shapes[0] for c in kept)
    assert {torch.float32, torch.complex128} <= {c.tensors[0].dtype for c in kept}


NO_CALLS = [
    call(ATEN.mm.default, r(4, 6), r(5, 6)),  # it does not run
    call(ATEN.rand_like.default, r(4)).changed(device=torch.device("cuda")),
    call(
        ATEN.native_batch_norm.default, r(4, 3, 5), r(3), r(1), None, None, True, 0.1, 1e-5
    ),  # reads behind the bias
    call(ATEN.bucketize.Tensor, r(4), torch.tensor([2.0, 1.0, 3.0])),  # boundaries ascend
    call(ATEN.nonzero.default, r(4)).changed(self=torch.ones(2, 2).to_sparse()),
]


@pytest.mark.parametrize("none", NO_CALLS, ids=lambda c: c.name)
def test_calls_out_of_an_operators_domain_are_not_taken(none):
    assert whole_if_call(none) is None


def test_chunks_are_those_of_torch():
    for size in range(1, 14):
        for ranks in (2, 3, 4, 5):
            wanted = [len(c) for c in torch.chunk(torch.arange(size), ranks)]
            assert chunk_sizes(size, ranks) == wanted + [0] * (ranks - len(wanted))
    assert [p.shape for p in cut(r(9, 2), 0, 4)] == [(3, 2), (3, 2), (3, 2), (0, 2)]


@pytest.mark.parametrize("reduction", ["sum", "avg", "max", "min", "product"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.complex128, torch.int64], ids=str)
def test_partial_pieces_reduce_to_the_tensor(reduction, dtype):
    if (dtype.is_complex and reduction in ("max", "min")) or (dtype == torch.int64 and reduction == "avg"):
        pytest.skip("there is no such partial")
    x = (r(4, 5) * 8).to(dtype).mT
    for seed in range(12):
        pieces = partial_pieces(x, reduction, 3, Random(seed))
        assert torch.equal(reduced(pieces, reduction), x)
        assert {p.dtype for p in pieces} == {dtype}
    assert not all(torch.equal(p, x) for p in pieces)


def test_rows_are_read_from_their_text():
    read = claim("S(1), R, P(sum) -> P(max), - for even shards with local lookup")
    assert [p.kind for p in read.inputs] == ["S", "R", "P"] and read.inputs[0].dim == 1
    assert read.outputs[0].reduction == "max" and read.outputs[1] is None
    assert (read.shards, read.local) == ("even", "lookup")


def test_a_counterexample_can_be_run_again():
    for wrong, row in WRONG:
        finding = check(wrong, [row], "0").refuted[0]
        document = json.loads(json.dumps(finding_document(finding)))
        again = replayed(document).refuted
        assert [f.text for f in again] == [finding.text]


def test_a_difference_is_called_rounding_only_where_rounding_makes_it():
    """The solution of a system with Hilbert's matrix has lost ten of sixteen digits."""
    places = torch.arange(1.0, 10.0, dtype=torch.float64)
    hilbert = 1 / (places[:, None] + places - 1)
    solve = call(ATEN._linalg_solve_ex.default, hilbert, r(9, 2))
    holds = check(solve, ["R, P(sum) -> P(sum), R, R, R"], "0", redraw=False)
    assert not holds.refuted
    wrong = check(solve, ["P(sum), R -> P(sum), R, R, R"], "0", redraw=False)
    assert wrong.refuted


def test_a_crash_ends_its_worker_and_not_the_run():
    def work(item: int, mark) -> int:
        mark(f"item {item}\nrow")
        if item == 2:
            os.kill(os.getpid(), signal.SIGSEGV)
        return item * item

    results = dict(run(work, [0, 1, 2, 3], jobs=1, batch=3))
    assert results == {0: 0, 1: 1, 2: Died("item 2\nrow", "SIGSEGV"), 3: 9}


def test_a_call_is_not_blamed_for_the_crash_that_an_earlier_one_caused():
    damaged = []

    def work(item: int, mark) -> int:
        if item == 1:
            damaged.append(item)  # as a kernel does that writes outside of its tensors
        elif damaged:
            os.kill(os.getpid(), signal.SIGSEGV)
        return item * item

    assert dict(run(work, [0, 1, 2, 3], jobs=1, batch=4)) == {0: 0, 1: 1, 2: 4, 3: 9}


def test_a_mistake_in_the_work_is_no_crash():
    def work(item: int, mark) -> int:
        return 1 // item

    results = dict(run(work, [1, 0, 2], jobs=1, batch=3))
    assert results[1] == 1 and results[2] == 0
    assert isinstance(results[0], Failed) and "ZeroDivisionError" in results[0].traceback


def test_recording_sees_forward_and_backward():
    names = {c.name for c in recorded("nn_functional_softplus", 0)}
    assert {"aten.softplus.default", "aten.softplus_backward.default"} <= names
    assert {c.name for c in attention_calls(0)} == {
        "shardwise.attention.default",
        "shardwise.attention_backward.default",
    }
    assert all(whole_if_call(c) is not None for c in attention_calls(0))


def test_calls_pass_between_processes():
    import pickle

    for one in [*(c for c, _ in WRONG), call(ATEN.sum.default, torch.ones(2, 3).mT, dtype=torch.int64)]:
        same = pickle.loads(pickle.dumps(one))
        assert str(same) == str(one)
        leaves = pytree.tree_leaves([list(c.arguments.values()) for c in (one, same)])
        half = len(leaves) // 2
        for a, b in zip(leaves[:half], leaves[half:], strict=True):
            assert torch.equal(a, b) if isinstance(a, Tensor) else a == b


# All that the checker may use of the library: the rows of a call, local forms, and the operator that is its own.
ALLOWED = {
    "shardwise.calls.Call",
    "shardwise.rules.Entry",
    "shardwise.rules.Rule",
    "shardwise.rules.book",
    "shardwise.rules.book_rows",
    "shardwise.rules.hand_written",
    "shardwise.rules.write",
    "shardwise.forms.Piece",
    "shardwise.forms.local_call",
    "shardwise.graph.attention",
}


def test_it_shares_no_code_with_discovery():
    for file in Path(__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                assert not any(name.name.startswith("shardwise") for name in node.names), file
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("shardwise"):
                assert {f"{node.module}.{name.name}" for name in node.names} <= ALLOWED, file


def test_pieces_that_do_not_reduce_to_the_tensor_refute_nothing():
    """The average of three numbers near the largest is infinite."""
    large = call(
        ATEN.flip.default, torch.full((2,), torch.finfo(torch.float64).max / 2, dtype=torch.float64), [0]
    )
    outcome = check(large, ["P(avg) -> P(avg)"], "0", (3,), redraw=False)
    assert outcome.checks == 0 and not outcome.refuted


def test_indices_of_rows_that_a_table_does_not_have_make_no_call():
    gradient, indices = r(5, 3), torch.tensor([0, 1, 2, 1, 0])
    fits = [call(ATEN.embedding_dense_backward.default, gradient, indices, n, -1, False) for n in (3, 2, 0)]
    assert [whole_if_call(c) is not None for c in fits] == [True, False, False]


def test_labels_of_classes_that_there_are_not_make_no_call():
    predictions, total = r(5, 3), torch.tensor(5.0, dtype=torch.float64)
    labels = [torch.tensor([0, 1, 2, 1, last]) for last in (2, -100, 3, -1)]
    calls = [
        call(ATEN.nll_loss_backward.default, r(5), predictions, own, None, 0, -100, total) for own in labels
    ]
    assert [whole_if_call(c) is not None for c in calls] == [True, True, False, False]


def test_places_outside_of_what_was_pooled_make_no_call():
    window = ([2, 2], [2, 2], [0, 0], [1, 1], False)
    places = [torch.tensor([[[0, last]]]) for last in (7, 8, -1)]
    calls = [
        call(ATEN.max_pool2d_with_indices_backward.default, r(1, 1, 2), r(1, 2, 4), *window, own)
        for own in places
    ]
    assert [whole_if_call(c) is not None for c in calls] == [True, False, False]


def test_sizes_are_not_made_negative():
    base = call(ATEN.upsample_nearest1d_backward.default, r(2, 3, 8), [8], [2, 3, 4], 2.0)
    random = Random(0)
    calls = [c for c in (changed(base, random, [base]) for _ in range(300)) if c is not None]
    assert {tuple(c.arguments["output_size"]) for c in calls} > {(8,)}
    assert all(min(c.arguments["input_size"] + c.arguments["output_size"]) >= 0 for c in calls)
