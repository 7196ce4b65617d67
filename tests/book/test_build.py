"""Building a book: what crashes costs one operator, what was interrupted goes on, and two builds are one."""

import json
import os
import signal

import pytest
import torch

from shardwise.book import build, learn
from shardwise.book._learn import learn_variant
from shardwise.book._reach import reach
from shardwise.calls import Call
from shardwise.rules import VERDICTS, Book

aten = torch.ops.aten


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A book of what one OpInfo reaches, one whose kernel crashes when it is given pieces."""
    out = tmp_path_factory.mktemp("book")
    counts = build(out, workers=1, pattern="linalg_ldl_solve", whole=True)
    return out, counts


def test_a_native_crash_is_a_verdict(small):
    out, counts = small
    assert list(counts) == list(VERDICTS)
    assert counts["crashed"] >= 1
    entry = Book(out).entry("aten.linalg_ldl_solve.default")
    assert entry.verdict == "crashed" and "ended the process with SIG" in entry.reason


def test_what_is_reached_is_all_in_the_book(small):
    out, counts = small
    verdicts = Book(out).verdicts
    assert sum(counts.values()) == len(verdicts)
    assert verdicts["aten.mul.Tensor"] == "ruled"  # called by the backward of the sample


def test_a_build_goes_on_where_it_stopped_and_comes_to_the_same(small):
    out, _ = small
    before = {path.name: path.read_text() for path in out.glob("*.yaml")}
    state = out / "state"
    kept = state / "aten.linalg_ldl_solve.default.json"
    document = json.loads(kept.read_text())
    kept.write_text(json.dumps({**document, "reason": "not met again"}))
    (state / "aten.mul.Tensor.json").unlink()
    build(out, workers=2, resume=True, whole=True)
    after = {path.name: path.read_text() for path in out.glob("*.yaml")}
    assert "not met again" in after["linalg.yaml"]
    assert after["m.yaml"] == before["m.yaml"]
    kept.write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("call", "verdict"),
    [
        (Call.of(aten.bernoulli.default, torch.rand(4, 6)), "random"),
        (Call.of(aten.nonzero.default, torch.rand(4, 6).round()), "data-dependent shape"),
        (Call.of(aten.neg.default, torch.rand(4, 6)), "ruled"),
        (Call.of(aten.neg.default, torch.rand(4, 6).to_sparse()), "cannot run"),
        (Call.of(aten.linalg_det.default, torch.rand(4, 4)), "ruled"),
    ],
)
def test_verdicts(call, verdict):
    assert learn(str(call.op), [call]).verdict == verdict


def test_a_rule_by_hand_is_run_on_calls_as_they_are_where_the_kernel_does_not_survive_discovery(monkeypatch):
    monkeypatch.setattr("shardwise.book._learn.studied", lambda *_: os.kill(os.getpid(), signal.SIGSEGV))
    call = Call.of(aten.elu_backward.default, torch.rand(4, 6), 1.0, 1.0, 1.0, False, torch.rand(4, 6))
    entry = learn(str(call.op), [call])
    assert entry.verdict == "ruled" and entry.by_hand
    assert "ended the process with SIGSEGV" in entry.reason
    assert entry.evidence["calls"] == entry.evidence["agreeing"] == 1 and entry.evidence["rows"] > 0


def test_an_operator_is_ruled_as_far_as_clauses_explain_its_calls():
    entry = learn("aten.eq_.Scalar", [Call.of(aten.eq_.Scalar, torch.rand(4, 6), 0.5)])
    assert entry.verdict == "ruled" and "more holds than it says" in entry.reason
    assert "S(d) -> S(d)" in [str(clause) for clause in entry.rule.clauses]
    assert entry.evidence["unexplained"] > 0


def test_operators_that_need_no_gradient_are_reached():
    reached = reach(pattern="nn_functional_embedding_bag")
    assert {"aten._embedding_bag.default", "aten._embedding_bag_forward_only.default"} <= set(reached.calls)


def test_a_variant_has_its_original_s_rule_unless_experiments_refute_that():
    """A call of which nothing can be told does not refute it."""
    calls = [
        Call.of(aten.repeat.default, torch.rand(2, 3), [2, 1]),
        Call.of(aten.repeat.default, torch.rand(1), [3]),
    ]
    original = learn("aten.repeat.default", calls)
    assert original.evidence["undecided"]
    assert learn_variant("aten.repeat.out", original, calls).like == "aten.repeat.default"


def test_partials_that_hold_for_real_numbers_alone_are_said_to():
    pool = [Call.of(aten.avg_pool2d.default, torch.rand(3, 2, *s), [2, 2]) for s in ((6, 8), (8, 6), (8, 8))]
    assert learn("aten.avg_pool2d.default", pool).real_partials
    flips = [Call.of(aten.flip.default, torch.rand(*s), [0]) for s in ((3, 4), (3, 4, 5), (5,))]
    assert not learn("aten.flip.default", flips).real_partials


@pytest.mark.long
def test_unpacking_an_lu_survives(tmp_path):
    counts = build(tmp_path, workers=2, pattern="lu_unpack")
    assert Book(tmp_path).verdicts["aten.lu_unpack.default"] in VERDICTS
    assert sum(counts.values()) > 5
