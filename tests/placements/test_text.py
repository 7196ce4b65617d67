import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement, _StridedShard

from shardwise import Row
from shardwise.errors import UsageError
from shardwise.placements import PARTIALS, SHARDS, AnyShard, parse_placement, placement_text

PLACEMENTS = st.one_of(
    st.just(Replicate()),
    st.builds(Shard, st.integers(0, 9)),
    st.builds(lambda d, f: _StridedShard(d, split_factor=f), st.integers(0, 9), st.integers(1, 9)),
    st.builds(AnyShard, st.integers(0, 9)),
    st.sampled_from(PARTIALS).map(Partial),
)


@given(PLACEMENTS)
def test_a_placement_round_trips(placement):
    assert parse_placement(placement_text(placement)) == placement


@given(st.lists(PLACEMENTS), st.lists(st.none() | PLACEMENTS, min_size=1))
def test_a_row_round_trips(inputs, outputs):
    row = Row(tuple(inputs), tuple(outputs))
    assert Row.parse(str(row)) == row
    assert Row.from_json(row.to_json()) == row


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("S(1),S(0)->P(sum)", "S(1), S(0) -> P(sum)"),
        ("S( 0 ) -> S(0), -", "S(0) -> S(0), -"),
        ("S(0,sf=*), R -> S( 0, sf = * )", "S(0, sf=*), R -> S(0, sf=*)"),
        ("S(0,sf=2), R -> S(0, sf = 2)", "S(0, sf=2), R -> S(0, sf=2)"),
        ("-> R", "-> R"),
    ],
)
def test_rows_print_in_one_form(text, printed):
    assert str(Row.parse(text)) == printed


def test_an_open_row_can_be_pickled():
    row = Row.parse("S(1, sf=*), R -> S(0, sf=*)")
    assert pickle.loads(pickle.dumps(row)) == row


def test_a_row_of_another_kind_of_placement_says_what_it_would_need():
    class Cyclic(Placement):
        pass

    with pytest.raises(
        UsageError, match=r"^Cyclic is a placement of its own kind: .* split, join, reduce and"
    ):
        Row((Cyclic(),), (Cyclic(),))
    with pytest.raises(UsageError, match=r"^'S' is not a placement: use R, S or P$"):
        Row(("S",), ())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("S(0)", "has no '->'"),
        ("X -> R", "is not a placement"),
        ("S(-1) -> R", "negative dim"),
        ("P(mean) -> R", "unknown reduction 'mean'"),
        ("S(0, sf=0) -> R", "must be at least 1"),
        ("S(0),, R -> R", "is not a placement"),
    ],
)
def test_a_wrong_row_is_one_sentence(text, message):
    with pytest.raises(UsageError, match=message):
        Row.parse(text)


@given(st.sampled_from(SHARDS), st.sampled_from([None, "sizes"]))
def test_the_whole_text_of_a_row_round_trips(shards, local):
    row = Row.parse("S(0), R -> P(avg)", shards, local)
    assert Row.parse(row.text) == row


@pytest.mark.parametrize("row", ["R, R -> S(0)", "P(sum) -> R, S(1)", "-> S(0)"])
def test_a_row_is_impossible_that_shards_an_output_of_whole_tensors(row):
    assert Row.parse(row).is_impossible
    assert not Row.parse(row, local="sizes").is_impossible


@pytest.mark.parametrize("row", ["S(0), R -> S(1)", "R -> R", "R -> P(sum)", "P(sum) -> P(sum)", "S(0) -> -"])
def test_other_rows_are_possible(row):
    assert not Row.parse(row).is_impossible
