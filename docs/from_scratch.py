"""Shardwise from scratch: an executable essay.

Run it (`python docs/from_scratch.py`): every section builds one idea in a few lines, runs it, and compares the
result with the library. Shardwise is imported only for these comparisons. At the end the rows of a two-layer network
have been discovered, and it has been planned and run on four simulated ranks of a 2 x 2 mesh.
"""

# %% 1. Placements -------------------------------------------------------------------------------------------
#
# A tensor is placed on a mesh axis in one of three ways. `S(d)`: sharded along dim d, rank r holds shard r. `R`:
# replicated, every rank holds the whole tensor. `P`: partial, every rank holds a term of a sum. Represented by the
# number d, "R" and "P".

from collections.abc import Callable
from itertools import product

import torch
from torch import Tensor

Placement = int | str


def split(x: Tensor, placement: Placement, ranks: int, seed: int = 0) -> list[Tensor]:
    """The local tensor of each rank. The terms of a partial may be any that add up, so they are random."""
    if placement == "R":
        return [x] * ranks
    if placement == "P":
        generator = torch.Generator().manual_seed(seed)
        terms = [torch.randn(x.shape, generator=generator, dtype=x.dtype) for _ in range(ranks - 1)]
        return [*terms, x - sum(terms)]
    # As torch.chunk splits, with empty shards where it returns fewer than there are ranks.
    pieces = list(x.chunk(ranks, placement))
    return pieces + [x.narrow(placement, 0, 0)] * (ranks - len(pieces))


def join(pieces: list[Tensor], placement: Placement) -> Tensor | None:
    """The global tensor of these local tensors; None if they do not fit together."""
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

# The library splits in the same places, uneven shards included.

from shardwise.layout import Layout  # noqa: E402

assert [tuple(p.shape) for p in split(x, 0, 3)] == [
    Layout.parse("S(0)", "ranks=3").local_shape((5, 4), rank) for rank in range(3)
]

# %% 2. Discovery --------------------------------------------------------------------------------------------
#
# A row says: with inputs placed so, running the op on each rank's local tensors gives an output placed so. To find
# the rows of an op, claim all of them and let experiments refute: one run on local tensors tests every placement of
# the output.

Row = tuple[tuple[Placement, ...], Placement]


def survives(op: Callable, inputs: list[Tensor], placed: tuple[Placement, ...], ranks: int) -> set[Placement]:
    """The placements of the output that one experiment does not refute."""
    whole = op(*inputs)
    shards = [split(x, p, ranks, seed) for seed, (x, p) in enumerate(zip(inputs, placed, strict=True))]
    try:
        results = [op(*tensors) for tensors in zip(*shards, strict=True)]
    except RuntimeError:  # the local shapes do not match
        return set()
    found = set()
    for placement in (*range(whole.ndim), "R", "P"):
        joined = join(results, placement)
        if joined is not None and joined.shape == whole.shape and torch.allclose(joined, whole):
            found.add(placement)
    return found


def discover(op: Callable, shapes: list[tuple[int, ...]]) -> set[Row]:
    """The rows that hold in every experiment, except the fully replicated one."""
    inputs = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    rows = set()
    for placed in product(*((*range(x.ndim), "R", "P") for x in inputs)):
        outputs = set.intersection(*(survives(op, inputs, placed, ranks) for ranks in (2, 3)))
        rows |= {(placed, output) for output in outputs}
    return rows - {(("R",) * len(inputs), "R")}


mm = discover(torch.mm, [(4, 6), (6, 8)])
assert ((0, "R"), 0) in mm  # rows of the first matrix
assert (("R", 1), 1) in mm  # columns of the second
assert ((1, 0), "P") in mm  # the contracted dim: the local products add up
assert (("P", "P"), "P") not in mm  # (a + b)(c + d) is not ac + bd

# The library finds more (averages, maxima and minima, conditions on shards, evidence), and the same rows for sums.


def text(row: Row) -> str:
    name = {"R": "R", "P": "P(sum)"}
    inputs, output = row
    return ", ".join(name.get(p, f"S({p})") for p in inputs) + " -> " + name.get(output, f"S({output})")


import shardwise as sw  # noqa: E402

theirs = {str(row) for row in sw.discover(torch.mm, torch.rand(4, 6), torch.rand(6, 8)).rows}
assert {text(row) for row in mm} == {row for row in theirs if "avg" not in row}

# One experiment is not enough, and neither are many easy ones: with positive terms only, relu of partial sums looks
# linear. That is why the terms above are normally distributed: some are negative.

assert (("P",), "P") not in discover(torch.relu, [(4, 6)])
assert ((0,), 0) in discover(torch.relu, [(4, 6)])

# %% 3. Factors ----------------------------------------------------------------------------------------------
#
# The rows of mm follow from one line, `m k, k n -> m n`: each letter is a loop. Sharding a loop shards every dim that
# carries its letter; an output without the letter is partial.


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

# The library uses the same language, and its book has the rule of mm with its evidence.

from shardwise.propagation import rule_for  # noqa: E402

assert {text(row) for row in factors} == {
    str(row) for row in rule_for("m k, k n -> m n", [(4, 6), (6, 8)]).rows() if not row.is_replicated
}
assert {text(row) for row in mm} <= {
    str(row) for row in sw.rule(torch.mm).rows(torch.rand(4, 6), torch.rand(6, 8))
}

# %% 4. Two axes ---------------------------------------------------------------------------------------------
#
# On a mesh of two axes a tensor has a placement for each: it is split along the first, and each part again along the
# second. A row on each axis is a choice for the call. Nothing new has to be discovered, but choices can be tested in
# the same way.

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
    """The op on every rank's local tensors."""
    return [[op(*(grid[i][j] for grid in grids)) for j in range(MESH[1])] for i in range(MESH[0])]


replicated: Row = (("R", "R"), "R")
choices = list(product([replicated, *sorted(mm, key=str)], repeat=2))
a, b = torch.randn(4, 8, dtype=torch.float64), torch.randn(8, 12, dtype=torch.float64)
for first, second in choices:
    layouts = list(zip(first[0], second[0], strict=True))
    results = run(torch.mm, [split2(x, layout) for x, layout in zip((a, b), layouts, strict=True)])
    assert torch.allclose(join2(results, (first[1], second[1])), a @ b)

from shardwise.expansion import expand  # noqa: E402

known = [sw.Row.parse(text(row)) for row in mm]
assert len(expand(known, "dp=2,tp=2", ["R, R", "R, R"], [(4, 8), (8, 12)])) == len(choices)

# %% 5. A tiny solve -----------------------------------------------------------------------------------------
#
# A program is a list of calls with tensors between them. If the producer of a tensor leaves it in another layout than
# its user needs, it is redistributed, at a cost. So the problem is: one choice for each call, a table of costs for each
# tensor between two calls, and the cheapest combination. The program is a network of two layers, y = relu(x w1) w2.
# Relu's rows were discovered above.

FLOPS, LINK = 1e9, 1e7  # per second: a slow device with slower links


def local_size(layout: Layout2, shape: tuple[int, ...]) -> float:
    """The number of elements of a rank's local tensor."""
    count = 1.0
    for size in shape:
        count *= size
    for placement, ranks in zip(layout, MESH, strict=True):
        count /= ranks if isinstance(placement, int) else 1
    return count


def transfer_time(before: Layout2, after: Layout2, shape: tuple[int, ...]) -> float:
    """Seconds to redistribute: the bytes that a rank receives or reduces, axis by axis. Slicing a replicated tensor is
    free; nothing is redistributed to a partial."""
    seconds = 0.0
    for axis in (0, 1):
        if before[axis] == after[axis] or (before[axis] == "R" and after[axis] != "P"):
            continue
        if after[axis] == "P":
            return float("inf")
        seconds += 8 * local_size(after, shape) / LINK * (2 if before[axis] == "P" else 1)
    return seconds


SIZES = {"x": (64, 32), "w1": (32, 128), "h": (64, 128), "w2": (128, 32), "y": (64, 32)}
relu_choices = list(product([(("R",), "R"), *sorted(discover(torch.relu, [(4, 6)]), key=str)], repeat=2))
CALLS = [choices, relu_choices, choices]
STORED = {
    "x": (0, "R"),
    "w1": ("R", 1),
    "w2": ("R", 0),
    "y": (0, "R"),
}  # the data sharded on one axis, weights on the other


def needed(choice: Choice, argument: int) -> Layout2:
    return choice[0][0][argument], choice[1][0][argument]


def produced(choice: Choice) -> Layout2:
    return choice[0][1], choice[1][1]


def node_cost(call: int, choice: Choice) -> float:
    """The compute time of a call, and the time to redistribute its stored inputs and the result."""
    if call == 1:
        return local_size(needed(choice, 0), SIZES["h"]) / FLOPS
    data, weight = ("x", "w1") if call == 0 else ("h", "w2")
    columns = local_size(needed(choice, 1), SIZES[weight]) / SIZES[weight][0]
    for placement, ranks in zip(needed(choice, 1), MESH, strict=True):
        columns *= ranks if placement == 0 else 1  # sharding the contracted dim is counted once, in the data
    seconds = 2 * local_size(needed(choice, 0), SIZES[data]) * columns / FLOPS
    seconds += transfer_time(STORED[weight], needed(choice, 1), SIZES[weight])
    if call == 0:
        return seconds + transfer_time(STORED["x"], needed(choice, 0), SIZES["x"])
    return seconds + transfer_time(produced(choice), STORED["y"], SIZES["y"])


costs = [[node_cost(call, choice) for choice in CALLS[call]] for call in range(3)]
between = [
    [
        [transfer_time(produced(producer), needed(user, 0), SIZES["h"]) for user in CALLS[call + 1]]
        for producer in CALLS[call]
    ]
    for call in (0, 1)
]

# A chain is solved backwards: for every choice of a call, the least cost of the rest of the program.

best = [list(costs[2])]
for call in (1, 0):
    onward = [min(m + b for m, b in zip(line, best[0], strict=True)) for line in between[call]]
    best.insert(0, [here + rest for here, rest in zip(costs[call], onward, strict=True)])
chosen = [min(range(len(best[0])), key=best[0].__getitem__)]
for call in (0, 1):
    ways = [m + b for m, b in zip(between[call][chosen[-1]], best[call + 1], strict=True)]
    chosen.append(ways.index(min(ways)))
cheapest = best[0][chosen[0]]

# Real models are not chains and memory is limited, which takes a real solver. On this problem it must agree to the
# nanosecond.

from shardwise.solver import FORBIDDEN, Problem  # noqa: E402


def units(seconds: float) -> int:
    return FORBIDDEN if seconds == float("inf") else round(seconds * 1e12)


solution = sw.solve(
    Problem.build(
        costs=[[units(c) for c in line] for line in costs],
        edges=[[0, 1], [1, 2]],
        tables=[[units(c) for line in table for c in line] for table in between],
    ),
    time_limit=600,
)
assert solution.status == "optimal"
assert abs(solution.cost * 1e-12 - cheapest) < 1e-9

# %% 6. A simulated run --------------------------------------------------------------------------------------
#
# The plan can be run: each rank has its local tensors, calls use local tensors only, and only redistributions combine
# tensors of several ranks. If the result equals that of the unsharded program, for any input, the plan is correct.

moved = []


def redistribute(grid: list[list[Tensor]], before: Layout2, after: Layout2) -> list[list[Tensor]]:
    if before == after:
        return grid
    moved.append((before, after))
    return split2(join2(grid, before), after)


program = [CALLS[call][i] for call, i in enumerate(chosen)]
data = {name: torch.randn(SIZES[name], dtype=torch.float64) for name in ("x", "w1", "w2")}
local = {name: split2(value, STORED[name]) for name, value in data.items()}
layer1, relu, layer2 = program
h = run(
    torch.mm,
    [
        redistribute(local["x"], STORED["x"], needed(layer1, 0)),
        redistribute(local["w1"], STORED["w1"], needed(layer1, 1)),
    ],
)
h = run(torch.relu, [redistribute(h, produced(layer1), needed(relu, 0))])
y = run(
    torch.mm,
    [
        redistribute(h, produced(relu), needed(layer2, 0)),
        redistribute(local["w2"], STORED["w2"], needed(layer2, 1)),
    ],
)
y = redistribute(y, produced(layer2), STORED["y"])
assert torch.allclose(join2(y, STORED["y"]), torch.relu(data["x"] @ data["w1"]) @ data["w2"])

# The solver has found Megatron's sharding of two matrices: the first by columns, the second by rows, relu on local
# tensors, and one all-reduce at the end.

assert text(layer1[1]) == "R, S(1) -> S(1)"
assert text(layer2[1]) == "S(1), S(0) -> P(sum)"
assert moved == [((0, "P"), (0, "R"))]

# The library, with the same layouts pinned, finds the same plan, and verifies it in the same way.


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
