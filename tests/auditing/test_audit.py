"""The audit convicts DTensor of what it computes wrong, by its own runs, and of nothing else."""

import ast
import json
import os
import subprocess
import sys

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, distribute_tensor

from shardwise import Rule, audit
from shardwise.auditing import Audit, audit_call, audit_claims, designed_calls, execute
from shardwise.auditing._audit import _overload, isolated, isolated_designs
from shardwise.auditing._reproduce import folded
from shardwise.calls import Call, diverse_calls, overload_calls
from shardwise.dtensor import (
    NoDecision,
    decide,
    decisions,
    read,
    register,
    registration,
    traced_once,
    unregister,
)
from shardwise.errors import UsageError
from shardwise.placements import parse_placement
from shardwise.report import audit_markdown
from tests.versions import TORCH, before_torch

aten = torch.ops.aten
AS_BEFORE_2_14 = "op strategy" if TORCH < (2, 14) else "single-dim strategy"
corrected = before_torch("2.14", "this rule is right")
inf = float("inf")


def rows(op, *args, **kwargs):
    return [str(row) for row in read(op, args, kwargs)]


# -- reading


@pytest.mark.parametrize(
    ("op", "args", "kind", "some"),
    [
        (
            aten.mm.default,
            (torch.rand(4, 6), torch.rand(6, 8)),
            "single-dim strategy",
            "S(1), S(0) -> P(sum)",
        ),
        (aten.any.dim, (torch.rand(4, 6), 1), AS_BEFORE_2_14, "S(0) -> S(0)"),
        (
            aten.huber_loss.default,
            (torch.rand(4, 6), torch.rand(4, 6)),
            "decomposition",
            "S(0), S(0) -> P(avg)",
        ),
        (aten.cat.default, ([torch.rand(4, 6), torch.rand(4, 6)], 1), AS_BEFORE_2_14, "S(0), S(0) -> S(0)"),
    ],
)
def test_rows_are_read_whatever_their_registration(op, args, kind, some):
    assert registration(op) == kind
    assert some in rows(op, *args)


def test_a_rule_of_the_oldest_kind_is_read():
    propagator = torch.distributed.tensor.DTensor._op_dispatcher.sharding_propagator
    op = aten.searchsorted.Tensor
    from torch.distributed.tensor._op_schema import OutputSharding

    def rule(schema):
        return OutputSharding(schema.args_schema[1])

    propagator.register_sharding_prop_rule(op, rule)
    try:
        assert registration(op) == "rule"
        assert "R, S(0) -> S(0)" in rows(op, torch.arange(6.0), torch.rand(4))
    finally:
        del propagator.op_to_rules[op]


def test_claims_are_those_of_inputs_that_stay_where_they_are():
    moved = decide(Call.of(aten._softmax.default, torch.rand(4, 6), 1, False), [parse_placement("S(1)")])
    assert moved.moves == ((0, parse_placement("S(1)"), Replicate()),)
    assert rows(aten._softmax.default, torch.rand(4, 6), 1, False) == ["S(0) -> S(0)"]


def attention(*, keys=6, mask=None):
    query, key = torch.rand(2, 4, 3, 2), torch.rand(2, 4, keys, 2)
    given = {} if mask is None else {"attn_mask": mask}
    return Call.of(aten._scaled_dot_product_flash_attention_for_cpu.default, query, key, key.clone(), **given)


@traced_once()
@pytest.mark.parametrize(
    ("call", "cut"),
    [
        (attention(), "S(0)"),
        (attention(), "S(1)"),
        (Call.of(aten.huber_loss.default, torch.rand(4, 3), torch.rand(4, 3)), "S(0)"),
        (Call.of(aten.kron.default, torch.rand(4, 2), torch.rand(4, 2)), "S(0)"),
        (Call.of(aten.linalg_cross.default, torch.rand(4, 3), torch.rand(4, 3)), "S(0)"),
    ],
    ids=lambda given: given.name if isinstance(given, Call) else given,
)
def test_what_is_read_is_what_dtensor_does(simulated_ranks, call, cut):
    """Composite operators inside of a decomposition are taken apart before DTensor, but not inside of it."""
    inputs = [parse_placement(cut)] * len(call.tensors)
    read_of = decide(call, inputs)
    with simulated_ranks(2):
        mesh = init_device_mesh("cpu", (2,))
        distributed = [distribute_tensor(t, mesh, [p]) for t, p in zip(call.tensors, inputs, strict=True)]
        outputs = call.with_tensors(distributed).op(*call.with_tensors(distributed).args)
    placed = [output.placements for output in (outputs if isinstance(outputs, tuple) else (outputs,))]
    assert placed == [(placement,) for placement in read_of.outputs]


def test_a_dim_of_size_one_is_not_queried():
    requested = {str(d.requested) for d in decisions(Call.of(aten.neg.default, torch.rand(1, 4)))}
    assert not any("dim=0" in inputs for inputs in requested)


def test_an_operator_without_strategy_has_no_decision():
    with pytest.raises(NoDecision, match="sharding strategy") as raised:
        read(aten.searchsorted.Tensor, [torch.arange(6.0), torch.rand(4)])
    assert raised.value.missing


@pytest.mark.parametrize(
    "line",
    [
        "from torch.distributed.tensor import DTensor, Partial, Replicate, distribute_tensor, init_device_mesh",
        "got = torch.ops.aten.linalg_pinv.atol_rtol_tensor(da, atol=db, rtol=dc).full_tensor()._local_tensors",
        "pieces = {"
        + ", ".join(f"{r}: torch.tensor({[[r / 3] * 5] * 4}, dtype=torch.float64)" for r in (0, 1))
        + "}",
        f"a = torch.tensor({[i / 7 for i in range(40)]}, dtype=torch.float64)",
        "grouped = (" + "1" * 34 + " - " + "2" * 34 + ")",
        "short = f(x)",
    ],
)
def test_long_lines_of_scripts_are_broken_without_changing_them(line):
    broken = folded(line)
    assert max(map(len, broken)) <= 80
    assert ast.dump(ast.parse("\n".join(broken))) == ast.dump(ast.parse(line))


# -- calls


def test_calls_of_a_function_include_those_of_its_backward():
    reached = {str(c.op) for c in overload_calls(Call.of(torch.tanh, torch.rand(4)))}
    assert {"aten.tanh.default", "aten.tanh_backward.default"} <= reached


def test_diverse_calls_show_every_value_of_an_argument_that_matters():
    norms = diverse_calls("aten.linalg_vector_norm.default", 8)[aten.linalg_vector_norm.default]
    assert {inf, -inf, 0, 1, 6} <= {c.args[1] for c in norms}
    assert {inf, -inf} <= {c.args[1] for c in norms[:2]}


def test_overloads_are_found_by_any_of_their_names():
    for pattern in ("aten.tanh_backward.default", "aten.tanh_backward", "tanh_backward"):
        assert [str(op) for op in diverse_calls(pattern)] == ["aten.tanh_backward.default"]
    assert "aten.tanh_backward.default" in map(str, diverse_calls("tanh"))


# -- findings


@corrected
def test_any_of_a_partial_sum_is_wrong_and_the_script_shows_it():
    findings = audit_call(Call.of(aten.any.default, torch.rand(4, 6)))
    assert [w.row for w in findings.wrong] == ["P(sum) -> P(sum)"]
    wrong = findings.wrong[0]
    assert wrong.output == execute(wrong.script) == "DTensor: True\nright:   False\n"
    assert "S(0) -> P(sum)" in findings.cleared  # an "or" of booleans, which is right


@pytest.mark.parametrize(("order", "row"), [(inf, "P(max) -> P(max)"), (-inf, "P(min) -> P(min)")])
def test_norms_of_partial_extremes_are_wrong(order, row):
    findings = audit_call(Call.of(aten.linalg_vector_norm.default, torch.rand(4, 6), order))
    assert [w.row for w in findings.wrong] == [row]


def test_solving_with_replicated_batches_is_wrong():
    findings = audit_call(
        Call.of(aten.linalg_solve_triangular.default, torch.rand(2, 3, 3), torch.rand(2, 3, 3), upper=True)
    )
    assert [w.row for w in findings.wrong] == ["R, S(0) -> S(0)"]


def test_a_mean_of_uneven_shards_through_a_decomposition_is_wrong_for_uneven_shards_only():
    findings = audit_call(Call.of(aten.huber_loss.default, torch.rand(5), torch.rand(5)))
    assert [(w.row, w.when) for w in findings.wrong] == [("S(0), S(0) -> P(avg)", "uneven shards")]


def test_a_mean_loss_whose_gradient_counts_local_elements_is_wrong_for_all_shards():
    values = torch.rand(6, 4)
    findings = audit_call(
        Call.of(aten.binary_cross_entropy_backward.default, torch.rand(()), values, values, None)
    )
    assert ("R, S(0), S(0) -> S(0)", "") in [(w.row, w.when) for w in findings.wrong]


def test_where_discovery_crashes_the_claims_alone_are_tried():
    pooled = Call.of(aten._adaptive_avg_pool2d_backward.default, torch.rand(8, 5, 7), torch.rand(8, 8, 8))
    findings = audit_call(pooled, claims_only=True)
    assert findings.verdict == "claims only"
    assert "S(1), S(1) -> S(1)" in [w.row for w in findings.wrong]  # dim 1 is pooled over
    assert "S(0), S(0) -> S(0)" not in [w.row for w in findings.wrong]
    assert findings.missing == []


@pytest.mark.parametrize(
    "innocent",
    [
        Call.of(aten.nextafter.default, torch.rand(4, 6), torch.rand(4, 6)),
        Call.of(aten.ne.Tensor, torch.rand(4, 6), torch.rand(4, 6)),
        Call.of(aten.logical_or.default, torch.rand(4, 6), torch.rand(4, 6)),
        Call.of(aten.index_fill.int_Scalar, torch.rand(5, 6), 0, torch.tensor([0, 2, 4]), 1.5),
        Call.of(aten.mm.default, torch.rand(4, 6).bfloat16(), torch.rand(6, 8).bfloat16()),
        Call.of(aten.sgn.default, torch.rand(4, 6)),
    ],
    ids=lambda c: str(c.op),
)
def test_what_dtensor_computes_right_is_not_reported(innocent):
    assert audit_call(innocent).wrong == []


def test_a_valid_row_that_dtensor_lacks_is_missing_with_its_price():
    findings = audit_call(
        Call.of(aten.linalg_solve_triangular.default, torch.rand(2, 3, 3), torch.rand(2, 3, 3), upper=True)
    )
    missing = {m.row: m for m in findings.missing}
    assert missing["R, S(2) -> S(2)"].instead == "S(2) to R"
    assert missing["R, S(2) -> S(2)"].bytes == 8 * 2048 * 4096 * 8 * 7 // 8


def test_a_row_that_needs_even_shards_says_so():
    @torch.library.custom_op("shardwise_test::middle", mutates_args=())
    def middle(x: torch.Tensor) -> torch.Tensor:
        return x.mean()

    middle.register_fake(lambda x: x.new_empty(()))
    call = Call.of(torch.ops.shardwise_test.middle.default, torch.rand(4))
    (unsupported,) = audit_call(call).unsupported
    assert "S(0) -> P(avg) for even shards" in unsupported.rows
    rule = Rule.from_yaml("op: shardwise_test.middle.default\nclauses: [{rows: P(avg) -> P(avg)}]")
    register(rule)
    try:
        (missing,) = (m for m in audit_call(call).missing if m.row == "S(0) -> P(avg)")
    finally:
        unregister(rule)
    assert (missing.shards, missing.text) == ("even", "S(0) -> P(avg) for even shards")
    found = Audit("2.13.0", (), (missing,), (unsupported,), (), (), (), 1, 1)
    assert audit_markdown(found).count("`S(0) -> P(avg) for even shards`") == 2


def test_a_complete_rule_has_no_findings():
    findings = audit_call(Call.of(aten.mm.default, torch.rand(4, 6), torch.rand(6, 8)))
    assert (findings.wrong, findings.missing, findings.unsupported) == ([], [], [])


def test_a_strategy_that_raises_is_no_row_that_holds():
    failing = audit_call(Call.of(aten._fft_r2c.default, torch.rand(5, 6, 7), [0, 1, 2], 0, True)).unsupported
    assert [u.reason.partition(": ")[0] for u in failing] == [
        "claims P(max) -> P(max), but running it raises",
        "claims P(min) -> P(min), but running it raises",
    ]
    assert all(
        unsupported.rows == () for unsupported in failing
    )  # no experiment confirms a row with such inputs


def test_an_operator_without_strategy_is_unsupported_with_the_rows_it_could_have():
    findings = audit_call(Call.of(aten.searchsorted.Tensor, torch.arange(6.0), torch.rand(4, 5)))
    (unsupported,) = findings.unsupported
    assert unsupported.no_strategy
    assert "R, S(0) -> S(0)" in unsupported.rows


# -- the whole


def test_an_audit_of_a_pattern():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        found = audit("aten.linalg_vector_norm.default", samples=2, designed=0)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    (wrong,) = (w for w in found.wrong if w.row == "P(max) -> P(max)")
    assert wrong.op == "aten.linalg_vector_norm.default"
    written = json.loads(json.dumps(found.to_json()))["wrong"]
    assert wrong.output in [w["output"] for w in written] and wrong.output.startswith("DTensor: ")


def test_a_crash_costs_one_call_of_an_operator():
    x = torch.ones(4, 6)
    first, second = (Call.of(aten.linalg_vector_norm.default, x, inf, [dim]) for dim in (0, 1))

    def crashing(call, **options):
        return os.abort() if call is second else audit_call(call, **options)

    found = isolated([first, second], crashing)
    assert [f.verdict for f in found][1] == "crashed (SIGABRT)"
    assert found[0].wrong and not found[1].wrong


def test_a_designed_call_that_crashes_costs_its_own_findings():
    calls = [Call.of(aten.linalg_vector_norm.default, torch.rand(4, 3), 2, [0])]
    first, second, *rest = map(str, designed_calls(calls, 4))

    def crashing(call):
        return os.abort() if str(call) == second else audit_claims(call)

    found = isolated_designs(calls, 4, crashing)
    assert [f.call for f in found] == [first, *rest, str(calls[0])]
    assert found[-1].verdict == "designed calls: SIGABRT"


@corrected
def test_dims_are_counted_from_the_end_as_well():
    assert any(
        w.op == "aten.cumsum.default" and ", -" in w.call
        for w in audit("aten.cumsum.default", designed=0).wrong
    )


@pytest.mark.parametrize(
    ("call", "row"),
    [
        (Call.of(aten.sum.dim_IntList, torch.rand(5, 5), [], True), "S(0) -> S(0)"),
        pytest.param(
            Call.of(aten.nll_loss_forward.default, torch.rand(4, 3), torch.tensor([1, 0, 2, 0]), None, 1, 0),
            "S(0), S(0) -> P(avg), P(sum)",
            marks=corrected,
        ),
    ],
    ids=["no dims are all dims", "ignored labels do not count"],
)
def test_claims_for_unusual_calls_are_tested(call, row):
    (wrong,) = (w for w in audit_claims(call).wrong if w.row == row)
    assert wrong.designed and execute(wrong.script) == wrong.output
    assert not [w for w in audit_claims(call, known=frozenset([row])).wrong if w.row == row]


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_mask_that_a_rule_ignores_is_found_and_the_script_shows_it():
    (wrong,) = audit_claims(attention(mask=torch.rand(3, 6))).wrong
    assert wrong.row == "S(0), S(0), S(0), S(0) -> S(0), S(0)" and "(2, 6)" in wrong.script
    # In a fresh interpreter DTensor traces its decomposition as often as it does: minutes.
    result = subprocess.run(
        [sys.executable, "-c", wrong.script], capture_output=True, text=True, timeout=1800
    )
    assert result.stdout == wrong.output


def test_pieces_that_fit_together_only_where_they_broadcast_give_a_wrong_number():
    """As for a mask that a rule ignores: other sizes raise, and DTensor itself may take minutes to say so."""

    @torch.library.custom_op("shardwise_test::masked", mutates_args=())
    def masked(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return x + mask

    masked.register_fake(lambda x, mask: torch.empty_like(x))
    call = Call.of(torch.ops.shardwise_test.masked.default, torch.rand(4, 3, 5), torch.rand(3, 5))
    rule = Rule.from_yaml("op: shardwise_test.masked.default\nclauses: [{rows: 'S(0), S(0) -> S(0)'}]")
    register(rule)
    try:
        (wrong,) = audit_claims(call).wrong
        assert wrong.row == "S(0), S(0) -> S(0)" and execute(wrong.script) == wrong.output
    finally:
        unregister(rule)


@corrected
def test_a_claimed_shard_of_a_dim_that_the_result_lacks_raises():
    (claim, *_) = audit_claims(Call.of(aten.nansum.default, torch.rand(3, 5), [])).unsupported
    assert claim.reason.startswith("claims S(0) -> S(0), but running it raises: zero-dimensional")


def test_overloads_that_write_to_their_arguments_are_not_judged():
    call = Call.of(aten.mm.out, torch.rand(2, 3), torch.rand(3, 4), out=torch.empty(2, 4))
    assert [findings.verdict for findings in _overload([call], 1)] == ["writes to out="]


@pytest.mark.parametrize("op", ["aten.ne.Tensor", "aten.logical_or.default", "aten.mm.default"])
def test_designed_calls_of_a_right_rule_raise_no_alarm(op):
    found = audit(op, samples=2, designed=6)
    assert not found.wrong and 0 < found.designed <= 6


def test_an_unknown_pattern_is_a_mistake():
    with pytest.raises(UsageError, match="no operator matches"):
        audit("aten.no_such_operator")


def test_the_script_runs_in_a_fresh_interpreter():
    (wrong,) = audit_call(Call.of(aten.linalg_vector_norm.default, torch.rand(4, 6), inf)).wrong
    result = subprocess.run([sys.executable, "-c", wrong.script], capture_output=True, text=True, timeout=120)
    assert result.stdout == wrong.output


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("pattern", ["linalg.*norm", "nn.functional.*loss", "linalg.solve_triangular"])
def test_every_script_of_a_wrong_rule_prints_the_same_again(pattern):
    found = audit(pattern, jobs=2).wrong
    assert found
    for wrong in found:
        assert execute(wrong.script) == wrong.output
        printed = dict(line.split(":", 1) for line in wrong.output.splitlines())
        assert printed["DTensor"].strip() != printed["right"].strip()


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("pattern", ["mean", "index_*", "ne", "logical_or"])
def test_operators_whose_rules_are_right_are_acquitted(pattern):
    found = audit(pattern, jobs=2)
    # The backward of what broadcasts is a sum, whose rule is wrong for an empty list of dims.
    assert [(w.op, w.row) for w in found.wrong if w.op != "aten.sum.dim_IntList"] == []
    assert found.claimed > 0


def test_claims_about_strided_shards_are_audited():
    """DTensor takes the strided shards of a dim as those of a dim twice as long, whichever way they are cut."""
    findings = audit_call(Call.of(aten.pixel_shuffle.default, torch.rand(8, 6, 10), 2))
    wrong = {w.row: w for w in findings.wrong}
    assert {"S(1, sf=2) -> S(1, sf=2)", "S(2, sf=2) -> S(2, sf=2)"} <= set(wrong)
    assert wrong["S(2, sf=2) -> S(2, sf=2)"].when == "uneven shards"
    script = wrong["S(2, sf=2) -> S(2, sf=2)"].script
    assert "_StridedShard(2, split_factor=2)" in script and execute(script).startswith("DTensor:")


def test_a_script_is_short_where_simple_values_show_what_is_wrong():
    """Experiments use hundreds of values, on as many ranks as it takes."""
    findings = audit_call(Call.of(aten.pixel_unshuffle.default, torch.rand(1, 9, 2, 4), 2))
    (wrong,) = (w for w in findings.wrong if w.row == "S(1) -> S(1)")
    assert len(wrong.script.splitlines()) <= 40
    assert execute(wrong.script) == wrong.output


def test_uninitialised_memory_has_no_wrong_values():
    call = Call.of(aten.new_empty.default, torch.rand(5, 5, 1), [5, 5, 1])
    findings = audit_claims(call)
    assert findings.claimed > 2 and not findings.wrong
