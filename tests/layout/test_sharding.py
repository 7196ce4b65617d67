import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard

from shardwise import Mesh, Sharding
from shardwise.errors import UsageError
from shardwise.layout import AxisRef, Layout

MESH = Mesh.parse("a=4,b=6,c=2")


@st.composite
def shardings(draw, mesh=MESH, rank=3, sub_axes=True, partials=True):
    """Any valid sharding: each axis, whole or split in two, goes to one place."""
    parts = []
    for name in draw(st.permutations(mesh.names)):
        size = mesh[name]
        divisors = [d for d in range(2, size) if size % d == 0]
        if sub_axes and divisors and draw(st.booleans()):
            pre = draw(st.sampled_from(divisors))
            parts += [AxisRef(name, 1, pre), AxisRef(name, pre, size // pre)]
        else:
            parts.append(AxisRef(name, 1, size))
    dims = [[] for _ in range(rank)]
    replicated, partial = [], []
    places = [*range(rank), "replicated", "nowhere", *(["partial"] if partials else [])]
    for part in parts:
        place = draw(st.sampled_from(places))
        if place == "replicated":
            replicated.append(part.text(mesh))
        elif place == "partial":
            partial.append(part.text(mesh))
        elif place != "nowhere" and not (dims[place] and dims[place][-1].name == part.name):
            dims[place].append(part)
    return Sharding.of(
        mesh,
        [[axis.text(mesh) for axis in dim] for dim in dims],
        open=draw(st.lists(st.booleans(), min_size=rank, max_size=rank)),
        priority=draw(st.none() | st.lists(st.none() | st.integers(0, 5), min_size=rank, max_size=rank)),
        replicated=replicated,
        partial=dict.fromkeys(partial, "sum"),
    )


@given(shardings())
def test_text_and_json_round_trip(sharding):
    assert Sharding.parse(str(sharding), MESH) == sharding
    assert Sharding.from_json(sharding.to_json(), MESH, 3) == sharding
    assert Sharding.from_json(str(sharding), MESH, 3) == sharding


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "[{}]",
        "[{?}]",
        "[{a, ?}p0, {b:(2)3}p2]",
        "[{}, {}] replicated={a, b:(1)2}",
        "[{c}] partial={a:max}",
    ],
)
def test_these_print_as_they_are_written(text):
    assert str(Sharding.parse(text, MESH)) == text


def test_replicated_axes_are_kept_in_the_order_of_the_mesh():
    assert str(Sharding.parse("[{}] replicated={c, b:(2)3, a}", MESH)) == "[{}] replicated={a, b:(2)3, c}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[{a}, {a}]", "axis a is used twice, in dim 0 and dim 1"),
        ("[{a, a}]", "axis a is used twice, in dim 0"),
        ("[{a}] replicated={a}", "axis a is used twice, in dim 0 and replicated"),
        ("[{a}] partial={a:sum}", "axis a is used twice, in dim 0 and partial"),
        ("[{x}]", "has no axis 'x': use one of a, b, c"),
        ("[{a}, {a:(2)2}]", "axes a and a:\\(2\\)2 overlap"),
        ("[{b:(1)2}, {b:(1)3}]", "axes b:\\(1\\)2 and b:\\(1\\)3 overlap"),
        ("[{b:(1)3}, {b:(2)3}]", "overlap"),
        ("[{a:(1)2, a:(2)2}]", "dim 0 lists a:\\(1\\)2 and a:\\(2\\)2 in sequence: write a"),
        ("[{a:(1)4}]", "is the whole axis: write it as 'a'"),
        ("[{a:(2)4}]", "is not a sub-axis of a=4"),
        ("[{a:(1)3}]", "is not a sub-axis of a=4"),
        ("[{a:(2)1}]", "is not a sub-axis of a=4"),
        ("[{a:2}]", "is not an axis"),
        ("[{?, a}]", "is not an axis"),
        ("{a}", "is not a sharding"),
        ("[a]", "is not a sharding"),
        ("[{a}] sideways={b}", "is not a sharding"),
        ("[{a}] replicated={b} replicated={c}", "is not a sharding"),
        ("[{}] partial={a}", "has no reduction"),
        ("[{}] partial={a:mean}", "unknown reduction 'mean'"),
    ],
)
def test_a_wrong_sharding_is_one_sentence(text, message):
    with pytest.raises(UsageError, match=message):
        Sharding.parse(text, MESH)


def test_sizes_need_not_divide():
    sharding = Sharding.parse("[{a}, {}]", MESH)
    with pytest.raises(UsageError, match="has 2 dims but the shape"):
        sharding.local_shape((8,))
    assert sharding.local_shape((6, 3), rank=11) == (2, 3)


def test_a_sub_axis_of_size_2_of_an_axis_of_4_splits_in_2():
    sharding = Sharding.parse("[{a:(2)2}]", "a=4")
    assert sharding.shards(0) == 2
    assert [sharding.local_shape((8,), rank) for rank in range(4)] == [(4,)] * 4
    # Pre-size 2: neighbours differ, ranks 2 apart agree.
    assert [sharding.offset((8,), rank) for rank in range(4)] == [(0,), (4,), (0,), (4,)]
    assert [Sharding.parse("[{a:(1)2}]", "a=4").offset((8,), r) for r in range(4)] == [(0,), (0,), (4,), (4,)]


def test_axes_against_the_order_of_the_mesh_become_strided_shards():
    mesh = Mesh.parse("dp=2,tp=4")
    assert Sharding.parse("[{dp, tp}]", mesh).to_placements() == (Shard(0), Shard(0))
    assert Sharding.parse("[{tp, dp}]", mesh).to_placements() == (_StridedShard(0, split_factor=4), Shard(0))
    assert Sharding.parse("[{}, {tp}] partial={dp:sum}", mesh).to_placements() == (Partial("sum"), Shard(1))


@given(shardings(sub_axes=False))
def test_placements_and_back(sharding):
    plain = Sharding(sharding.mesh, sharding.closed().without_priorities().dims, (), sharding.partial)
    assert Sharding.from_placements(plain.to_placements(), MESH, 3) == plain
    assert Sharding.from_layout(plain.to_layout(), 3) == plain


@given(shardings(partials=False), st.lists(st.integers(1, 3), min_size=3, max_size=3))
def test_pieces_are_those_of_the_axes_in_order(sharding, factors):
    """Sizes that divide: the offset of a rank is read off its coordinates, major axis first."""
    shape = [sharding.shards(dim) * factor for dim, factor in enumerate(factors)]
    for rank in range(0, MESH.ranks, 5):
        coordinate = dict(zip(MESH.names, MESH.coordinate(rank), strict=True))
        for dim, factor in enumerate(factors):
            index = 0
            for axis in sharding.dims[dim].axes:
                post = MESH[axis.name] // axis.end
                index = index * axis.size + coordinate[axis.name] // post % axis.size
            assert sharding.local_shape(shape, rank)[dim] == factor
            assert sharding.offset(shape, rank)[dim] == index * factor


@pytest.mark.parametrize(
    "text", ["[{a, b}, {}]", "[{b, a}, {}]", "[{b}, {a}]", "[{}, {a:(2)2}]", "[{a:(2)2, b, a:(1)2}, {}]"]
)
def test_local_pieces_are_those_of_distribute_tensor(simulated_ranks, text):
    sharding = Sharding.parse(text, "a=4,b=2")
    tensor = torch.arange(96.0).reshape(24, 4)
    mesh = sharding.split_mesh()
    with simulated_ranks(mesh.ranks):
        device_mesh = init_device_mesh("cpu", mesh.shape, mesh_dim_names=mesh.names)
        distributed = distribute_tensor(tensor, device_mesh, sharding.to_placements(), src_data_rank=None)
        local = distributed.to_local()._local_tensors
        assert Sharding.from_placements(distributed.placements, device_mesh, 2) == Sharding.from_layout(
            sharding.to_layout(), 2
        )
    for rank in range(mesh.ranks):
        start, shape = sharding.offset((24, 4), rank), sharding.local_shape((24, 4), rank)
        expected = tensor[start[0] : start[0] + shape[0], start[1] : start[1] + shape[1]]
        assert torch.equal(local[rank], expected)


def test_a_layout_that_no_order_explains_is_refused():
    layout = Layout(Mesh.parse("a=2,b=2"), (_StridedShard(0, split_factor=3), Replicate()))
    with pytest.raises(UsageError, match="corresponds to no order of axes on the dim"):
        Sharding.from_layout(layout, 1)
