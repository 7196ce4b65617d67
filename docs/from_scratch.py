"""Shardwise from scratch: an essay that is a program.

Run it (`python docs/from_scratch.py`): every section builds one idea in a few lines, runs it, and checks what
came out against the library. Nothing is imported from Shardwise but to check. At the end a two-layer network has
been discovered, planned and run on four simulated ranks of a 2 x 2 mesh.
"""

# %% 1. Placements -------------------------------------------------------------------------------------------
#
# A tensor lies on a mesh axis in one of three ways. `S(d)`: cut along dim d, rank r has piece r. `R`: every
# rank has all of it. `P`: every rank has a term, and the terms add up to it. As values: a number d, "R" and
# "P".

from collections.abc import Callable
from itertools import product

import torch
from torch import Tensor

Placement = int | str


def split(x: Tensor, placement: Placement, ranks: int, seed: int = 0) -> list[Tensor]:
    """What each rank holds. A partial is any terms that add up, so they are chosen at random."""
    if placement == "R":
        return [x] * ranks
    if placement == "P":
        generator = torch.Generator().manual_seed(seed)
        terms = [torch.randn(x.shape, generator=generator, dtype=x.dtype) for _ in range(ranks - 1)]
        return [*terms, x - sum(terms)]
    # As torch.chunk cuts, with empty pieces where it gives fewer than there are ranks.
    pieces = list(x.chunk(ranks, placement))
    return pieces + [x.narrow(placement, 0, 0)] * (ranks - len(pieces))


def join(pieces: list[Tensor], placement: Placement) -> Tensor | None:
    """The tensor whose pieces these are; None if they are not pieces of one."""
    if placement == "R":
        same = all(p.shape == pieces[0].shape and torch.allclose(p, pieces[0]) for p in pieces)
        return pieces[0] if same else None
    if placement == "P":
        return sum(pieces[1:], pieces[0]) if len({p.shape for p in pieces}) == 1 else None
    others = {(p.ndim, *(n for d, n in enumerate(p.shape) if d != placement)) for p in pieces}
    return torch.cat(pieces, placement) if len(others) == 1 else None


torch.manual_seed(0)
x = torch.randn(5, 4, dtype=torch.float64)
for placement in (0, 1, "R", "P"):
    for ranks in (2, 3, 4):
        assert torch.allclose(join(split(x, placement, ranks), placement), x)

# The library cuts in the same places, uneven pieces included.

from shardwise.layout import Layout  # noqa: E402

assert [tuple(p.shape) for p in split(x, 0, 3)] == [
    Layout.parse("S(0)", "ranks=3").local_shape((5, 4), rank) for rank in range(3)
]

# %% 2. Discovery --------------------------------------------------------------------------------------------
#
# A row says: inputs placed so, the op run on each rank's pieces, and the outputs come out placed so. To find
# the rows of an op, claim everything and let experiments refute: one run on the pieces serves every claim
# about the output.

Row = tuple[tuple[Placement, ...], Placement]


def survives(op: Callable, inputs: list[Tensor], placed: tuple[Placement, ...], ranks: int) -> set[Placement]:
    """The placements of the output that one experiment does not refute."""
    whole = op(*inputs)
    held = [split(x, p, ranks, seed) for seed, (x, p) in enumerate(zip(inputs, placed, strict=True))]
    try:
        made = [op(*pieces) for pieces in zip(*held, strict=True)]
    except RuntimeError:  # the pieces do not go together
        return set()
    found = set()
    for placement in (*range(whole.ndim), "R", "P"):
        joined = join(made, placement)
        if joined is not None and joined.shape == whole.shape and torch.allclose(joined, whole):
            found.add(placement)
    return found


def discover(op: Callable, shapes: list[tuple[int, ...]]) -> set[Row]:
    """The rows that hold in every experiment, less the one that replicates everything."""
    inputs = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    rows = set()
    for placed in product(*((*range(x.ndim), "R", "P") for x in inputs)):
        outputs = set.intersection(*(survives(op, inputs, placed, ranks) for ranks in (2, 3)))
        rows |= {(placed, output) for output in outputs}
    return rows - {(("R",) * len(inputs), "R")}


mm = discover(torch.mm, [(4, 6), (6, 8)])
assert ((0, "R"), 0) in mm  # rows of the first matrix
assert (("R", 1), 1) in mm  # columns of the second
assert ((1, 0), "P") in mm  # what is summed over: the results of the pieces add up
assert (("P", "P"), "P") not in mm  # (a + b)(c + d) is not ac + bd

# The library has more to say (averages, extremes, shards of any size, evidence), and the same about sums.


def text(row: Row) -> str:
    name = {"R": "R", "P": "P(sum)"}
    inputs, output = row
    return ", ".join(name.get(p, f"S({p})") for p in inputs) + " -> " + name.get(output, f"S({output})")


import shardwise as sw  # noqa: E402

theirs = {str(row) for row in sw.discover(torch.mm, torch.rand(4, 6), torch.rand(6, 8)).rows}
assert {text(row) for row in mm} == {row for row in theirs if "avg" not in row}

# One experiment is not enough, and neither are many tame ones: with inputs that are all positive, relu of
# partial sums looks linear. That is why terms are drawn at random above: some are negative.

assert (("P",), "P") not in discover(torch.relu, [(4, 6)])
assert ((0,), 0) in discover(torch.relu, [(4, 6)])

# %% 3. Factors ----------------------------------------------------------------------------------------------
#
# The rows of mm follow from one line, `m k, k n -> m n`: each letter is a loop. Cut a loop, and every dim
# that carries its letter is cut; an output without the letter is left partial.


def rows_of(equation: str) -> set[Row]:
    left, right = equation.split("->")
    inputs, output = [term.split() for term in left.split(",")], right.split()

    def placed(term: list[str], letter: str, otherwise: str) -> Placement:
        return term.index(letter) if letter in term else otherwise

    letters = dict.fromkeys(letter for term in inputs for letter in term)
    return {
        (tuple(placed(term, letter, "R") for term in inputs), placed(output, letter, "P"))
        for letter in letters
    }


factors = rows_of("m k, k n -> m n")
linear = {(("P", "R"), "P"), (("R", "P"), "P")}  # mm is linear in either matrix
assert factors | linear == mm

# The library reads the same language, and its book holds the rule of mm with the experiments behind it.

from shardwise.propagation import rule_for  # noqa: E402

assert {text(row) for row in factors} == {
    str(row) for row in rule_for("m k, k n -> m n", [(4, 6), (6, 8)]).rows() if not row.is_replicated
}
assert {text(row) for row in mm} <= {
    str(row) for row in sw.rule(torch.mm).rows(torch.rand(4, 6), torch.rand(6, 8))
}

# %% 4. Two axes ---------------------------------------------------------------------------------------------
#
# On a mesh of two axes a tensor has a placement for each: cut for the first, and each piece again for the
# second. A row on each axis makes a choice for the call. There is nothing new to discover, but it can be
# checked the same way.

MESH = (2, 2)
Layout2 = tuple[Placement, Placement]
Choice = tuple[Row, Row]


def split2(x: Tensor, layout: Layout2) -> list[list[Tensor]]:
    return [
        split(piece, layout[1], MESH[1], seed) for seed, piece in enumerate(split(x, layout[0], MESH[0], 9))
    ]


def join2(grid: list[list[Tensor]], layout: Layout2) -> Tensor:
    joined = join([join(line, layout[1]) for line in grid], layout[0])
    assert joined is not None
    return joined


def run(op: Callable, grids: list[list[list[Tensor]]]) -> list[list[Tensor]]:
    """The op on every rank's pieces."""
    return [[op(*(grid[i][j] for grid in grids)) for j in range(MESH[1])] for i in range(MESH[0])]


replicated: Row = (("R", "R"), "R")
choices = list(product([replicated, *sorted(mm, key=str)], repeat=2))
a, b = torch.randn(4, 8, dtype=torch.float64), torch.randn(8, 12, dtype=torch.float64)
for first, second in choices:
    layouts = list(zip(first[0], second[0], strict=True))
    made = run(torch.mm, [split2(x, layout) for x, layout in zip((a, b), layouts, strict=True)])
    assert torch.allclose(join2(made, (first[1], second[1])), a @ b)

from shardwise.expansion import expand  # noqa: E402

known = [sw.Row.parse(text(row)) for row in mm]
assert len(expand(known, "dp=2,tp=2", ["R, R", "R, R"], [(4, 8), (8, 12)])) == len(choices)

# %% 5. A tiny solve -----------------------------------------------------------------------------------------
#
# A program is calls with tensors between. If the maker of a tensor leaves it in another layout than its user
# wants, it is redistributed, and that costs. So: one choice for each call, a table of costs for each tensor
# between two calls, and the cheapest way through. Here are the two layers of a network, y = relu(x w1) w2.
# Relu's rows were discovered above.

FLOPS, LINK = 1e9, 1e7  # of a device, a second: a slow computer with slower links


def whole(layout: Layout2, shape: tuple[int, ...]) -> float:
    """How many elements a rank holds."""
    count = 1.0
    for size in shape:
        count *= size
    for placement, ranks in zip(layout, MESH, strict=True):
        count /= ranks if isinstance(placement, int) else 1
    return count


def moving(before: Layout2, after: Layout2, shape: tuple[int, ...]) -> float:
    """Seconds to redistribute: what a rank has to fetch or reduce, axis by axis. Making a cut is free, and so is
    calling a whole a sum; a partial is never the aim of a move."""
    seconds = 0.0
    for axis in (0, 1):
        if before[axis] == after[axis] or (before[axis] == "R" and after[axis] != "P"):
            continue
        if after[axis] == "P":
            return float("inf")
        seconds += 8 * whole(after, shape) / LINK * (2 if before[axis] == "P" else 1)
    return seconds


SIZES = {"x": (64, 32), "w1": (32, 128), "h": (64, 128), "w2": (128, 32), "y": (64, 32)}
relu_choices = list(product([(("R",), "R"), *sorted(discover(torch.relu, [(4, 6)]), key=str)], repeat=2))
CALLS = [choices, relu_choices, choices]
STORED = {
    "x": (0, "R"),
    "w1": ("R", 1),
    "w2": ("R", 0),
    "y": (0, "R"),
}  # the data cut on one axis, weights on the other


def wanted(choice: Choice, argument: int) -> Layout2:
    return choice[0][0][argument], choice[1][0][argument]


def left(choice: Choice) -> Layout2:
    return choice[0][1], choice[1][1]


def own(call: int, choice: Choice) -> float:
    """A call's compute, and what its stored inputs and the result cost to move."""
    if call == 1:
        return whole(wanted(choice, 0), SIZES["h"]) / FLOPS
    data, weight = ("x", "w1") if call == 0 else ("h", "w2")
    columns = whole(wanted(choice, 1), SIZES[weight]) / SIZES[weight][0]
    for placement, ranks in zip(wanted(choice, 1), MESH, strict=True):
        columns *= ranks if placement == 0 else 1  # a cut along what is summed over is counted once
    seconds = 2 * whole(wanted(choice, 0), SIZES[data]) * columns / FLOPS
    seconds += moving(STORED[weight], wanted(choice, 1), SIZES[weight])
    if call == 0:
        return seconds + moving(STORED["x"], wanted(choice, 0), SIZES["x"])
    return seconds + moving(left(choice), STORED["y"], SIZES["y"])


costs = [[own(call, choice) for choice in CALLS[call]] for call in range(3)]
between = [
    [[moving(left(maker), wanted(user, 0), SIZES["h"]) for user in CALLS[call + 1]] for maker in CALLS[call]]
    for call in (0, 1)
]

# A chain is solved from its end: the best from here on, for every choice here.

best = [list(costs[2])]
for call in (1, 0):
    onward = [min(m + b for m, b in zip(line, best[0], strict=True)) for line in between[call]]
    best.insert(0, [here + rest for here, rest in zip(costs[call], onward, strict=True)])
chosen = [min(range(len(best[0])), key=best[0].__getitem__)]
for call in (0, 1):
    ways = [m + b for m, b in zip(between[call][chosen[-1]], best[call + 1], strict=True)]
    chosen.append(ways.index(min(ways)))
cheapest = best[0][chosen[0]]

# Real models are no chains and memory is short: that takes a real solver. On this problem it must agree to
# the nanosecond.

from shardwise.solver import FORBIDDEN, Problem  # noqa: E402


def units(seconds: float) -> int:
    return FORBIDDEN if seconds == float("inf") else round(seconds * 1e12)


solution = sw.solve(
    Problem.build(
        costs=[[units(c) for c in line] for line in costs],
        edges=[[0, 1], [1, 2]],
        tables=[[units(c) for line in table for c in line] for table in between],
    ),
    time_limit=60,
)
assert solution.status == "optimal"
assert abs(solution.cost * 1e-12 - cheapest) < 1e-9

# %% 6. A simulated run --------------------------------------------------------------------------------------
#
# What was chosen can be run: each rank has its pieces, calls see pieces only, and a redistribution is the one
# thing that looks at all ranks. If the result is that of the unsharded program, for any input, the plan is
# right.

moved = []


def redistribute(grid: list[list[Tensor]], before: Layout2, after: Layout2) -> list[list[Tensor]]:
    if before == after:
        return grid
    moved.append((before, after))
    return split2(join2(grid, before), after)


program = [CALLS[call][i] for call, i in enumerate(chosen)]
data = {name: torch.randn(SIZES[name], dtype=torch.float64) for name in ("x", "w1", "w2")}
held = {name: split2(value, STORED[name]) for name, value in data.items()}
layer1, relu, layer2 = program
h = run(
    torch.mm,
    [
        redistribute(held["x"], STORED["x"], wanted(layer1, 0)),
        redistribute(held["w1"], STORED["w1"], wanted(layer1, 1)),
    ],
)
h = run(torch.relu, [redistribute(h, left(layer1), wanted(relu, 0))])
y = run(
    torch.mm,
    [
        redistribute(h, left(relu), wanted(layer2, 0)),
        redistribute(held["w2"], STORED["w2"], wanted(layer2, 1)),
    ],
)
y = redistribute(y, left(layer2), STORED["y"])
assert torch.allclose(join2(y, STORED["y"]), torch.relu(data["x"] @ data["w1"]) @ data["w2"])

# This is Megatron's way with two matrices, found and not put in: the first cut by columns, the second by
# rows, relu on the pieces, and one sum at the end.

assert text(layer1[1]) == "R, S(1) -> S(1)"
assert text(layer2[1]) == "S(1), S(0) -> P(sum)"
assert moved == [((0, "P"), (0, "R"))]

# The library, asked for the same with the same layouts pinned, ends in the same place, and proves it the same
# way.


def network(x: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
    return torch.relu(x @ w1) @ w2


pins = {"x": "S(0), R", "w1": "R, S(1)", "w2": "R, S(0)", "output": "S(0), R"}
values = tuple(data.values())
plan = sw.plan(network, values, training=False, mesh="dp=2,tp=2", cluster="laptop", pin=pins)
assert [step.kind for move in plan.schedule.moves for step in move.change.collectives] == ["all_reduce"]
assert sw.verify(network, values, plan=plan).ok

plans = len(choices) ** 2 * len(relu_choices)
print(f"{len(mm)} rows of mm, {len(choices)} choices on a 2 x 2 mesh, the cheapest of {plans:,} plans:")
for name, choice in zip(("layer 1", "relu", "layer 2"), program, strict=True):
    print(f"{name}: dp: {text(choice[0])}; tp: {text(choice[1])}")
