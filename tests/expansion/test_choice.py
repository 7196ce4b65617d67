"""Which rows combine into a choice: said once, and the same for one combination, for many, and for a beginning."""

import random
from itertools import product

import numpy as np
import pytest

from shardwise import Mesh, Row
from shardwise.expansion import Choice, Combinations, cheapest, expand, is_valid

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
