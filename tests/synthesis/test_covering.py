"""Covering arrays, by themselves and as designs of calls."""

import itertools

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.calls import Call
from shardwise.synthesis import Design, in_domain
from shardwise.synthesis._covering import Covering, covering_rows, tuples

SIZES = st.lists(st.integers(2, 4), min_size=2, max_size=6)


@settings(max_examples=40, deadline=None)
@given(SIZES, st.integers(2, 3))
def test_every_combination_of_levels_occurs(sizes, strength):
    rows = list(covering_rows(sizes, strength, lambda row: True, 10_000))
    seen = {t for row in rows for t in itertools.combinations(enumerate(row), min(strength, len(sizes)))}
    assert seen == set(tuples(sizes, min(strength, len(sizes))))


@settings(max_examples=40, deadline=None)
@given(SIZES, st.data())
def test_combinations_that_no_row_covers_are_counted(sizes, data):
    refused = (data.draw(st.integers(0, sizes[0] - 1)), data.draw(st.integers(1, sizes[1] - 1)))
    covering = Covering()
    rows = list(covering_rows(sizes, 2, lambda row: row[:2] != refused, 10_000, covering=covering))
    seen = {t for row in rows for t in itertools.combinations(enumerate(row), 2)}
    assert tuple(enumerate(refused)) not in seen
    assert covering.impossible == covering.total - len(seen) > 0


def test_far_fewer_rows_than_combinations_are_needed():
    sizes = [6, 6, 4, 4, 3, 3, 2, 2]
    assert len(list(covering_rows(sizes, 2, lambda row: True, 10_000))) < 60


def test_every_pair_of_an_order_a_flag_and_a_dim_occurs_in_a_design():
    op = torch.ops.aten.linalg_vector_norm.default
    design = Design([Call.of(op, torch.randn(2, 3, 4), 2, [0], False)])
    calls = [call.arguments for call in design.covering(2, in_domain, 500)]
    assert {(c["ord"], c["keepdim"]) for c in calls} >= set(
        itertools.product((0, 1, -1, 0.5, float("inf")), (False, True))
    )
    assert {(str(c["dim"]), c["keepdim"]) for c in calls} >= set(
        itertools.product(("None", "[0]", "[-1]"), (False, True))
    )


def test_a_call_whose_result_contradicts_its_fake_is_outside_of_the_domain():
    @torch.library.custom_op("tests_covering::scaled", mutates_args=())
    def scaled(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return x * scale

    @scaled.register_fake
    def _(x, scale):
        return torch.empty_like(x)

    assert in_domain(Call.of(scaled, torch.randn(4, 6), torch.randn(6)))
    assert not in_domain(Call.of(scaled, torch.randn(6), torch.randn(4, 6)))
