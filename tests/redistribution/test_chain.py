"""Laws of redistribution prices, and the plans of known cases. Running the plans: tests/dtensor."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise import Cluster, Mesh
from shardwise.errors import UsageError
from shardwise.layout import Layout
from shardwise.mesh import Link
from shardwise.placements import parse_placement
from shardwise.redistribution import cheapest_chain, price, price_table

MESHES = [Mesh.parse(text) for text in ("d=4", "a=2,b=2", "a=2,b=4", "a=2,b=3,c=2", "a=1,b=2", "a=8,b=8")]
KINDS = ["R", "S(0)", "S(1)", "S(2)", "S(0, sf=2)", "S(1, sf=3)", "P(sum)", "P(avg)", "P(max)", "P(product)"]


@st.composite
def layouts(draw, mesh, ndim=3):
    kinds = [k for k in KINDS if not k.startswith("S") or int(k[2]) < ndim]
    text = st.lists(st.sampled_from(kinds), min_size=mesh.ndim, max_size=mesh.ndim)

    def fits(texts):
        reductions = {t for t in texts if t.startswith("P")}
        return len(reductions) < 2 or reductions == {"P(sum)", "P(avg)"}

    placements = tuple(parse_placement(t) for t in draw(text.filter(fits)))
    if any(hasattr(p, "split_factor") for p in placements) or draw(st.booleans()):
        return Layout(mesh, placements)
    axes = [axis for axis, p in enumerate(placements) if hasattr(p, "dim")]
    return Layout(mesh, placements, tuple(draw(st.permutations(axes))))


@st.composite
def changes(draw, count=2):
    """Some layouts of one tensor."""
    mesh = draw(st.sampled_from(MESHES))
    shape = tuple(draw(st.lists(st.sampled_from([1, 3, 8, 12, 64, 100]), min_size=3, max_size=3)))
    return shape, [draw(layouts(mesh)) for _ in range(count)]


CLUSTERS = st.sampled_from(Cluster.presets())


@settings(deadline=None, max_examples=200)
@given(changes(count=3), CLUSTERS)
def test_no_detour_is_cheaper(case, cluster):
    shape, (a, b, c) = case
    direct = price(a, c, shape, cluster=cluster)
    detour = price(a, b, shape, cluster=cluster) + price(b, c, shape, cluster=cluster)
    assert direct <= detour * (1 + 1e-12)


@settings(deadline=None, max_examples=200)
@given(changes(), CLUSTERS)
def test_every_change_has_a_price_and_its_steps_add_up_to_it(case, cluster):
    shape, (a, b) = case
    found = cheapest_chain(a, b, shape, cluster=cluster)
    assert math.isfinite(found.price)
    assert found.price == pytest.approx(sum(step.seconds for step in found.steps))
    assert found.price == price(a, b, shape, cluster=cluster)
    for before, after in zip(found.steps, found.steps[1:], strict=False):
        assert before.after == after.before
    if found.steps:
        first, last = (physical(found.steps[0].before), physical(found.steps[-1].after))
        assert (first, last) == (physical(a), physical(b))


def physical(layout):
    """What remains of a layout without the axes of size 1, along which nothing can differ."""
    replicate = parse_placement("R")
    placements = tuple(
        replicate if n == 1 else p for p, n in zip(layout.placements, layout.mesh.shape, strict=True)
    )
    return Layout(layout.mesh, placements, tuple(a for a in layout.order if layout.mesh.shape[a] > 1))


@settings(deadline=None, max_examples=200)
@given(changes())
def test_only_equal_layouts_and_local_steps_are_free(case):
    shape, (a, b) = case
    found = cheapest_chain(a, b, shape)
    if physical(a) == physical(b):
        assert found.steps == ()
    assert (found.price == 0) == all(step.is_local for step in found.steps)
    if found.price == 0:
        for rank in range(a.mesh.ranks):
            before, after = ([set(x.positions(d, n, rank)) for d, n in enumerate(shape)] for x in (a, b))
            assert not all(after) or all(small <= big for small, big in zip(after, before, strict=True))


@settings(deadline=None)
@given(changes(), st.integers(2, 5))
def test_more_bytes_never_cost_less(case, factor):
    shape, (a, b) = case
    even = shape[2] * a.mesh.ranks  # an uneven dim may rule out the steps that are cheapest for its multiple
    less, more = (price(a, b, (*shape[:2], last)) for last in (even, even * factor))
    assert less <= more * (1 + 1e-12)
    assert price(a, b, shape) <= price(a, b, shape, dtype=torch.float64)


@settings(deadline=None)
@given(changes(), st.floats(1.01, 10))
def test_more_bandwidth_never_costs_more(case, factor):
    shape, (a, b) = case

    def links(scale):
        return {name: Link(1e9 * scale, 1e-6, 5e-6) for name in a.mesh.names}

    slow, fast = (Cluster.preset("laptop").with_axes(**links(scale)) for scale in (1, factor))
    assert price(a, b, shape, cluster=fast) <= price(a, b, shape, cluster=slow) * (1 + 1e-12)


@settings(deadline=None)
@given(changes())
def test_mirrored_changes_cost_the_same(case):
    """On a mesh that looks the same from both ends, with equal links, so does every change."""
    _, (a, b) = case
    if a.mesh.shape != a.mesh.shape[::-1]:
        return
    cluster = Cluster.preset("laptop")

    def mirrored(layout):
        order = tuple(a.mesh.ndim - 1 - axis for axis in layout.order)
        return Layout(layout.mesh, layout.placements[::-1], order)

    size = (64, 30, 7)
    there, back = price(a, b, size, cluster=cluster), price(mirrored(a), mirrored(b), size, cluster=cluster)
    assert there == pytest.approx(back)


@pytest.mark.parametrize("cluster", Cluster.presets())
@pytest.mark.parametrize("shape", [(48, 48), (96, 24), (10, 9)])
def test_moving_a_shard_to_another_dim_costs_the_same_both_ways(cluster, shape):
    for one, other in [("S(0)", "S(1)"), ("S(0, sf=3)", "S(1)"), ("S(0)", "S(0, sf=2)")]:
        a, b = Layout.parse(one, "d=4"), Layout.parse(other, "d=4")
        # Where a small tensor is gathered and sliced, for less than an all-to-all, uneven dims are padded differently.
        back = price(b, a, shape, cluster=cluster)
        assert price(a, b, shape, cluster=cluster) == pytest.approx(back, rel=0.01)


@settings(deadline=None, max_examples=40)
@given(changes(count=6), CLUSTERS)
def test_the_table_holds_the_prices_of_all_pairs(case, cluster):
    shape, several = case
    table = price_table(several, shape, cluster=cluster)
    for row, a in enumerate(several):
        for column, b in enumerate(several):
            assert table[row, column] == pytest.approx(price(a, b, shape, cluster=cluster))


@given(changes(count=4), CLUSTERS, st.data())
def test_with_weights_the_table_holds_what_cheapest_chains_count(case, cluster, data):
    """Never more than the chain that is run, and no less than any cheapest chain does."""
    shape, several = case
    masks = 2 ** several[0].mesh.ndim
    weights = tuple(data.draw(st.lists(st.sampled_from([0.0, 0.25, 1.0]), min_size=masks, max_size=masks)))
    table = price_table(several, shape, cluster=cluster, weights=weights)
    all_alike = price_table(several, shape, cluster=cluster, weights=(0.5,) * masks)
    for row, a in enumerate(several):
        for column, b in enumerate(several):
            chain = cheapest_chain(a, b, shape, cluster=cluster)
            counted = sum(
                step.seconds * weights[sum(1 << axis for axis in step.axes)] for step in chain.collectives
            )
            assert table[row, column] <= counted * (1 + 1e-9)
            assert all_alike[row, column] == pytest.approx(0.5 * chain.price)


def test_a_chain_that_counts_less_but_takes_longer_does_not_count():
    """What is run is the cheapest chain, whatever links count: a single all-to-all would count nothing here."""
    pair = [Layout.parse(text, "a=4,b=8") for text in ("S(0), R", "S(1), R")]
    table = price_table(pair, (4096, 4096), cluster="h100", weights=(0.0, 0.0, 1.0, 1.0))
    chain = cheapest_chain(*pair, (4096, 4096), cluster="h100")
    along_b = sum(step.seconds for step in chain.collectives if 1 in step.axes)
    assert along_b and table[0, 1] == pytest.approx(along_b)


def test_an_empty_table_is_empty():
    assert price_table([], (2, 2)).shape == (0, 0)


def kinds(source, target, shape=(16, 16), mesh="dp=2,tp=4"):
    found = cheapest_chain(Layout.parse(source, mesh), Layout.parse(target, mesh), shape)
    return [(step.kind, tuple(found.source.mesh.names[a] for a in step.axes)) for step in found.steps]


# Cases 26, 30-36 of the behaviour cases, and the trouble spots of DTensor's own redistribution.
@pytest.mark.parametrize(
    ("source", "target", "steps"),
    [
        ("R, R", "S(0), S(1)", [("slice", ()), ("slice", ())]),
        ("R, R", "P(sum), P(sum)", [("to_partial", ()), ("to_partial", ())]),
        ("S(0), S(1)", "S(0), R", [("all_gather", ("tp",))]),
        ("R, S(0)", "R, S(1)", [("all_to_all", ("tp",))]),
        ("S(0), R", "S(0), S(0)", [("slice", ())]),
        ("S(0), S(0)", "S(0)[1], S(0)[0]", [("permute", ("dp", "tp"))]),
        ("P(sum), R", "S(0), R", [("reduce_scatter", ("dp",))]),
        ("P(max), R", "R, R", [("all_reduce", ("dp",))]),
        ("P(min), R", "S(1), R", [("reduce_scatter", ("dp",))]),
        ("S(0), S(1)", "S(0), S(1)", []),
        ("R, S(0, sf=3)", "R, S(1)", [("all_to_all", ("tp",))]),
        ("R, S(0, sf=3)", "R, S(0)", [("all_to_all", ("tp",))]),
        ("P(sum), R", "P(max), R", [("all_reduce", ("dp",)), ("to_partial", ())]),
    ],
)
def test_known_changes_take_known_steps(source, target, steps):
    assert kinds(source, target) == steps


def test_equal_axes_exchange_their_shards_by_a_permute():
    assert kinds("S(0), S(1)", "S(1), S(0)", (512, 512), "a=2,b=2") == [("permute", ("a", "b"))]
    assert kinds("S(0), R", "R, S(0)", (4096, 4096), "a=2,b=2") == [("permute", ("a", "b"))]


def test_unequal_axes_exchange_places_only_where_sizes_divide():
    assert kinds("S(0), S(0)", "S(0)[1], S(0)[0]", (17, 16))[0][0] == "all_gather"


def test_a_large_partial_is_scattered_before_the_other_axis_reduces():
    """Reducing along the second axis is cheaper on a half than on the whole."""
    big = kinds("P(sum), P(sum)", "R, R", (4096, 4096))
    assert [kind for kind, _ in big] == ["reduce_scatter", "all_reduce", "all_gather"]
    assert [kind for kind, _ in kinds("P(sum), P(sum)", "R, R", (2, 2))] == ["all_reduce", "all_reduce"]


def test_two_axes_cost_more_than_either():
    mesh = Mesh.parse("dp=2,tp=4")
    shape = (64, 64)
    whole = Layout.replicated(mesh)
    both = price(Layout.parse("P(sum), P(sum)", mesh), whole, shape)
    for one in ("P(sum), R", "R, P(sum)"):
        assert both > price(Layout.parse(one, mesh), whole, shape) > 0


def test_sizes_are_those_of_the_tensors_that_move():
    mesh = "d=4"
    gather = cheapest_chain(Layout.parse("S(0)", mesh), Layout.parse("R", mesh), (9, 5)).steps[0]
    assert gather.size == 4 * 3 * 5 * 4  # four padded pieces of three rows
    scatter = cheapest_chain(
        Layout.parse("P(sum)", mesh), Layout.parse("S(0)", mesh), (9, 5), dtype=torch.float16
    ).steps[0]
    assert scatter.size == 4 * 3 * 5 * 2
    exchange = cheapest_chain(Layout.parse("S(0)", mesh), Layout.parse("S(1)", mesh), (9, 5)).steps[0]
    assert exchange.size == max(3 * 5, 9 * 2) * 4
    assert "all_to_all: S(0) -> S(1) over d (72 bytes" in str(exchange)


def test_bytes_follow_dtype_and_shards():
    """The sum that a matmul (32, 64) @ (64, 128) leaves when k is sharded along tp."""

    def reduced(source, target, dtype):
        moved = cheapest_chain(
            Layout.parse(source, "dp=2,tp=4"), Layout.parse(target, "dp=2,tp=4"), (32, 128), dtype=dtype
        )
        return [(step.kind, step.size) for step in moved.collectives]

    assert reduced("R, P(sum)", "R, R", torch.float32) == [("all_reduce", 32 * 128 * 4)]
    assert reduced("R, P(sum)", "R, R", torch.float16) == [("all_reduce", 32 * 128 * 2)]
    assert reduced("S(0), P(sum)", "S(0), R", torch.float32) == [("all_reduce", 32 * 128 * 4 // 2)]


def test_a_whole_table_of_a_three_axis_mesh_is_consistent():
    mesh = Mesh.parse("a=4,b=4,c=4")
    texts = ("R", "S(0)", "S(1)", "S(2)", "P(sum)")
    every = [Layout.parse(f"{a}, {b}, {c}", mesh) for a in texts for b in texts for c in texts]
    table = price_table(every, (4096, 64, 128))
    assert np.isfinite(table).all()
    assert (np.diag(table) == 0).all()
    assert (table[:, None, :] <= (table[:, :, None] + table[None, :, :]) * (1 + 1e-9) + 1e-18).all()


@pytest.mark.parametrize(
    ("source", "target", "shape", "message"),
    [
        (("S(0)", "d=2"), ("R", "d=4"), (4,), "must be on the same mesh"),
        (("S(1)", "d=2"), ("R", "d=2"), (4,), "shards dim 1"),
        (("R", "d=2"), ("S(1)", "d=2"), (4,), "shards dim 1"),
    ],
)
def test_a_change_that_makes_no_sense_is_one_sentence(source, target, shape, message):
    for function in (cheapest_chain, price):
        with pytest.raises(UsageError, match=message):
            function(Layout.parse(*source), Layout.parse(*target), shape)
