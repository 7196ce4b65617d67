"""Which rows combine into a choice: said once, and the same for one combination, for many, and for a beginning."""

import random
from itertools import product

import numpy as np
import pytest
import torch

from shardwise import Mesh, Row
from shardwise.calls import Call
from shardwise.expansion import Choice, Combinations, cheapest, expand, is_valid, is_valid_for
from shardwise.experiments import check_choice
from shardwise.graph import attention  # noqa: F401  (it registers the operator)
from shardwise.rules import book_rows, offered_rows

MESH = Mesh.parse("dp=2,tp=2")
PLACEMENTS = ["R", "S(0)", "S(1)", "S(2)", "S(0, sf=2)", "P(sum)", "P(avg)", "P(max)"]


def choice(*texts, mesh=MESH, shards="any"):
    return Choice(mesh, tuple(Row.parse(text, shards) for text in texts))


@pytest.mark.parametrize(
    ("rows", "inputs", "outputs", "valid"),
    [
        (["S(0) -> S(0)", "S(0) -> S(0)"], [(3,)], [(3,)], True),
        (["P(sum) -> P(sum)", "P(avg) -> P(avg)"], [(3,)], [(3,)], True),
        (["P(sum) -> P(sum)", "P(max) -> P(max)"], [(3,)], [(3,)], False),
        (["R -> P(sum)", "R -> P(max)"], [(3,)], [(3,)], False),
        (["S(0) -> S(0), -", "S(0) -> S(0), -"], [(3,)], [(3,), None], True),
        (["S(0) -> S(0), -", "S(0) -> S(0), R"], [(3,)], [(3,), (3,)], False),
        (["S(1) -> S(1)", "R -> R"], [(3,)], [(3,)], False),
        (["R -> S(1)", "R -> R"], [(3,)], [(3,)], False),
        (["R -> S(0) with local sizes", "R -> S(0) with local sizes"], [(1,)], [(4,)], True),
        (["S(0) -> S(0) with local sizes", "R -> S(0)"], [(4,)], [(4,)], True),
        (["S(0) -> S(0) with local sizes", "S(1) -> S(1) with local offset"], [(4, 4)], [(4, 4)], False),
    ],
)
def test_rows_combine_or_not(rows, inputs, outputs, valid):
    assert is_valid(choice(*rows), inputs, outputs) == valid


@pytest.mark.parametrize(
    ("shards", "fitting"), [("any", {2, 3, 4, 5, 8}), ("nonempty", {4, 5, 8}), ("even", {4, 8})]
)
def test_shards_are_judged_by_all_axes_on_a_dim(shards, fitting):
    both = choice("S(0) -> S(0)", "S(0) -> S(0)", shards=shards)
    assert {size for size in (2, 3, 4, 5, 8) if is_valid(both, [(size,)], [(size,)])} == fitting
    assert {size for size in (2, 3, 4, 5, 8) if is_valid(both, [(8,)], [(size,)])} == fitting


def test_no_search_returns_a_choice_of_two_local_forms():
    rows = [Row.parse("S(0), R -> S(0) with local sizes"), Row.parse("R, S(0) -> S(1) with local offset")]
    arguments = (rows, MESH, ["S(0), R", "R, S(0)"], [(8, 8), (8, 8)])
    for found in (*expand(*arguments, outputs=[(8, 8)]), cheapest(*arguments, outputs=[(8, 8)])):
        assert len({row.local for row in found.choice.rows} - {None}) < 2
    assert cheapest(*arguments).price > 0


def random_rows(rng):
    """Of two inputs and two outputs, which some rows do not return."""
    made = []
    for _ in range(rng.randint(2, 6)):
        sides = [", ".join(rng.choice(PLACEMENTS) for _ in range(2)) for _ in range(2)]
        if rng.random() < 0.2:
            sides[1] = f"{rng.choice(PLACEMENTS)}, -"
        form = rng.choice(["", "", " with local sizes", " with local offset"])
        made.append(Row.parse(f"{sides[0]} -> {sides[1]}{form}", rng.choice(["any", "nonempty", "even"])))
    return made


@pytest.mark.parametrize("seed", range(60))
def test_one_many_and_beginnings_are_judged_alike(seed):
    rng = random.Random(seed)
    mesh = Mesh.parse(rng.choice(["a=2,b=2", "a=3,b=2", "a=2,b=2,c=2"]))
    rows = random_rows(rng)
    shapes = [
        [tuple(rng.choice([1, 4, 5, 8, 16]) for _ in range(rng.randint(2, 3))) for _ in "ab"] for _ in "io"
    ]
    combinations = Combinations(rows, mesh, *shapes)
    grid = np.array(list(product(range(len(rows)), repeat=mesh.ndim)))
    valid = {tuple(line) for line in grid[combinations.among(grid)].tolist()}
    assert valid == {tuple(line) for line in grid.tolist() if combinations.holds(line)}
    assert valid == {
        tuple(line) for line in grid.tolist() if is_valid(Choice(mesh, tuple(rows[i] for i in line)), *shapes)
    }
    for line in valid:
        assert all(combinations.holds(line[:length]) for length in range(mesh.ndim))


HEADS, ALIKE, QUERIES = (
    Row.parse("S(1), R, R -> S(1), S(1) for nonempty shards with local heads"),
    Row.parse("S(1), S(1), S(1) -> S(1), S(1) for even shards"),
    Row.parse("S(2), R, R -> S(2), S(2) with local causal"),
)


@pytest.mark.parametrize(
    ("rows", "valid"),
    [
        ([HEADS, ALIKE], False),  # the second axis cuts keys between groups that the first has cut through
        ([ALIKE, HEADS], True),
        ([HEADS, HEADS], True),
        ([HEADS, QUERIES], True),  # two forms that are one for attention
        ([QUERIES, HEADS], True),
    ],
)
def test_local_forms_say_which_rows_hold_after_them(rows, valid):
    query, key = torch.rand(2, 8, 6, 4), torch.rand(2, 4, 6, 4)
    call = Call.of(torch.ops.shardwise.attention.default, query, key, key, None, None, True, 0.5, 0.0)
    choice = Choice(MESH, tuple(rows))
    assert is_valid_for(choice, call, book_rows) == valid
    assert bool(check_choice(call, choice)) == valid


RING, KEYS = (
    Row.parse("S(2), S(2), S(2), S(2), S(2), S(2), S(2) -> S(2), S(2), S(2) with local ring"),
    Row.parse("R, R, S(2), S(2), R, R, S(3) -> P(sum), S(2), S(2)"),
)


@pytest.mark.parametrize(("rows", "valid"), [([RING, KEYS], False), ([KEYS, RING], True)])
def test_after_a_ring_no_axis_cuts_a_mask_by_keys(rows, valid):
    """The keys that reach a rank by the ring are not those of the range that the second axis cuts out of the mask."""
    tensor, allowed = torch.rand(2, 2, 8, 4), torch.arange(64).view(1, 1, 8, 8) % 3 != 1
    made = torch.ops.shardwise.attention.default(tensor, tensor, tensor, allowed, None, False, 0.5, 0.0)
    given = (tensor.flip(2), tensor, tensor, tensor, *made, allowed)
    call = Call.of(torch.ops.shardwise.attention_backward.default, *given, None, False, 0.5, 0.0)
    choice = Choice(MESH, tuple(rows))
    assert is_valid_for(choice, call, offered_rows) == valid
    if valid:
        assert check_choice(call, choice)


def test_a_form_that_needs_positions_takes_no_strided_shards():
    looked_up, strided = "S(0), R -> P(sum) with local lookup", "R, S(0, sf=2) -> S(0, sf=2)"
    assert not is_valid(choice(looked_up, strided), [(8, 4), (8,)], [(8, 4)])
    assert is_valid(choice("-> S(0) with local sizes", "-> S(0, sf=2)"), [], [(8,)])


def shards_of_at_least(size):
    """A rule that shards dims of so many elements."""

    def rows_of(call):
        return [Row.parse(f"S({d}) -> S({d})") for d, n in enumerate(call.shape("self")) if n >= size]

    return rows_of


def test_a_row_must_hold_for_what_the_axes_before_leave():
    call = Call.of(torch.ops.aten.neg.default, torch.rand(8, 8))
    rows = shards_of_at_least(8)(call)
    for line, valid in {(0, 0): False, (0, 1): True, (1, 0): True, (1, 1): False}.items():
        combinations = Combinations.of(call, rows, MESH, shards_of_at_least(8))
        assert combinations.holds(line) == valid
        assert len(combinations.among(np.array([line]))) == valid
        assert Combinations.of(call, rows, MESH).holds(line)
        found = expand(
            rows, MESH, ["R, R"], [(8, 8)], outputs=[(8, 8)], call=call, rows_of=shards_of_at_least(8)
        )
        assert (Choice(MESH, tuple(rows[i] for i in line)) in [p.choice for p in found]) == valid


def test_size_arguments_of_what_is_left_are_local():
    x, weight = torch.rand(2, 4, 5), torch.rand(4, 1, 3)
    call = Call.of(torch.ops.aten.convolution.default, x, weight, None, [1], [1], [1], False, [0], 4)
    seen = []

    def rows_of(left):
        seen.append((left["groups"], left.shape("input"), left.outputs))
        return book_rows(left)

    cut = Row.parse("S(1), S(0) -> S(1) for even shards with local groups")
    assert is_valid_for(Choice(MESH, (cut, cut)), call, rows_of)
    assert seen == [(2, (2, 2, 5), ((2, 2, 5),))]
