import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import Placement, _StridedShard

from shardwise import Mesh
from shardwise.errors import UsageError
from shardwise.layout import Layout
from shardwise.placements import is_partial

MESH = Mesh.parse("dp=2,tp=4")
MESHES = ["d=4", "a=2,b=2", "a=2,b=3", "a=3,b=2,c=2"]
PARTIALS = [(), ("sum",), ("avg",), ("max",), ("min",), ("product",), ("sum", "avg")]


@st.composite
def layouts(draw, ndim=3, meshes=MESHES, partials=PARTIALS):
    mesh = Mesh.parse(draw(st.sampled_from(meshes)))
    kinds = [Partial(op) for op in draw(st.sampled_from(partials))]
    choices = [Replicate(), *(Shard(d) for d in range(ndim)), *kinds]
    placements = tuple(draw(st.lists(st.sampled_from(choices), min_size=mesh.ndim, max_size=mesh.ndim)))
    axes = [axis for axis, p in enumerate(placements) if isinstance(p, Shard)]
    return Layout(mesh, placements, tuple(draw(st.permutations(axes))))


@given(layouts())
def test_a_layout_round_trips_through_text(layout):
    assert Layout.parse(str(layout), layout.mesh) == layout


@given(layouts())
def test_a_layout_round_trips_through_dtensor_placements(layout):
    assert Layout(layout.mesh, layout.to_placements()) == layout


@given(layouts())
def test_a_layout_round_trips_through_dims(layout):
    partials = {layout.mesh.names[a]: p for a, p in enumerate(layout.placements) if is_partial(p)}
    assert Layout.from_dims(layout.mesh, layout.dims(3), partials) == layout


@given(layouts(), st.lists(st.integers(0, 13), min_size=3, max_size=3))
def test_pieces_join_to_the_tensor(layout, shape):
    tensor = torch.randn(shape, dtype=torch.float64)
    pieces = layout.split(tensor)
    assert torch.allclose(layout.join(pieces), tensor)
    for rank, piece in enumerate(pieces):
        assert tuple(piece.shape) == layout.local_shape(shape, rank)
        assert all(a <= b for a, b in zip(piece.shape, layout.local_shape(shape), strict=True))
    sizes = [[piece.shape[dim] for piece in pieces] for dim in range(3)]
    assert layout.divides(shape) == all(len(set(s)) == 1 for s in sizes) or not all(shape)
    for dim in layout.sharded_dims:
        assert layout.fills_dim(dim, shape[dim]) == (min(sizes[dim]) > 0)


@given(layouts(), st.lists(st.integers(1, 9), min_size=3, max_size=3))
def test_the_offset_is_where_the_piece_begins(layout, shape):
    positions = torch.arange(torch.Size(shape).numel()).reshape(shape)
    plain = Layout(
        layout.mesh, tuple(Replicate() if is_partial(p) else p for p in layout.placements), layout.order
    )
    for rank, piece in enumerate(plain.split(positions)):
        if piece.numel():
            assert positions[plain.offset(shape, rank)] == piece.flatten()[0]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(layouts(ndim=2, meshes=["a=2,b=2", "a=2,b=3"], partials=[()]), st.sampled_from([(12, 12), (36, 24)]))
def test_pieces_are_those_of_dtensor(simulated_ranks, layout, shape):
    """In any order, where sizes divide: there both of DTensor's readings of strided shards agree."""
    tensor = torch.arange(float(shape[0] * shape[1])).reshape(shape)
    with simulated_ranks(layout.mesh.ranks):
        mesh = init_device_mesh("cpu", layout.mesh.shape)
        local = distribute_tensor(tensor, mesh, layout.to_placements(), src_data_rank=None).to_local()
        expected = [
            local._local_tensors[r] if hasattr(local, "_local_tensors") else local for r in range(mesh.size())
        ]
    for piece, other in zip(layout.split(tensor), expected, strict=True):
        assert torch.equal(piece, other)


@pytest.mark.parametrize(
    ("shape", "text"), [((9, 5), "S(0), S(0)"), ((7, 6), "S(1), S(0)"), ((3, 2), "S(0), S(0)")]
)
def test_uneven_nested_pieces_are_those_of_dtensor(simulated_ranks, shape, text):
    layout = Layout.parse(text, "a=2,b=2")
    tensor = torch.arange(float(shape[0] * shape[1])).reshape(shape)
    with simulated_ranks(4):
        mesh = init_device_mesh("cpu", (2, 2))
        local = distribute_tensor(tensor, mesh, layout.to_placements(), src_data_rank=None).to_local()
        expected = [local._local_tensors[rank] for rank in range(4)]
    for piece, other in zip(layout.split(tensor), expected, strict=True):
        assert torch.equal(piece, other)


def test_partials_join_as_full_tensor_does(simulated_ranks):
    layout = Layout.parse("P(max), S(0)", "a=2,b=2")
    pieces = [torch.randn(3, 2) for _ in range(4)]
    with simulated_ranks(4) as mode:
        mesh = init_device_mesh("cpu", (2, 2))
        full = DTensor.from_local(
            mode.rank_map(lambda rank: pieces[rank]), mesh, layout.to_placements()
        ).full_tensor()
        expected = full._local_tensors[0] if hasattr(full, "_local_tensors") else full
    assert torch.equal(layout.join(pieces), expected)


def test_split_factors_are_read_as_an_order():
    assert Layout(MESH, (_StridedShard(0, split_factor=4), Shard(0))).dims(1) == (("tp", "dp"),)
    assert Layout(MESH, (Shard(0), Shard(0))).dims(1) == (("dp", "tp"),)


def test_a_split_factor_that_is_no_order_stays():
    layout = Layout(MESH, (_StridedShard(0, split_factor=3), Shard(1)))
    assert layout.placements[0] == _StridedShard(0, split_factor=3)
    first = layout.piece(torch.arange(12).reshape(12, 1), rank=0)
    assert first.flatten().tolist() == [0, 1, 4, 5, 8, 9]


def test_a_split_factor_of_one_is_a_plain_shard():
    assert Layout(MESH, (_StridedShard(0, split_factor=1), Replicate())) == Layout.parse("S(0), R", MESH)


def test_sizes_of_the_cases():
    assert [Layout.parse("S(0)", "d=4").local_shape((9,), r)[0] for r in range(4)] == [3, 3, 3, 0]
    assert [Layout.parse("S(0), S(0)", "a=2,b=2").local_shape((9,), r)[0] for r in range(4)] == [3, 2, 2, 2]
    assert Layout.parse("S(0)", "d=4").divides((40,))
    assert not Layout.parse("S(0)", "d=4").fills_dim(0, 2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Layout.parse("S(0)", MESH), "has 2 axes but 1 placements"),
        (lambda: Layout.parse("P(sum), P(max)", MESH), "cannot mix P"),
        (lambda: Layout(MESH, (Shard(0), Shard(0)), (0,)), "does not contain each sharding axis once"),
        (lambda: Layout(MESH, (Shard(-1), Replicate())), "negative dim"),
        (lambda: Layout(MESH, ("S(0)", Replicate())), "is not a placement: use R, S or P"),
        (lambda: Layout(MESH, (Placement(), Replicate())), "Placement is a placement of its own kind: rows"),
        (lambda: Layout.from_dims(MESH, [("dp",), ("dp",)]), "used twice"),
        (lambda: Layout.from_dims(MESH, [("pp",)]), "no axis 'pp'"),
        (lambda: Layout.from_dims(MESH, [("dp",)], {"dp": Partial()}), "both shard a dim and be partial"),
        (lambda: Layout.parse("S(2), R", MESH).split(torch.zeros(3, 4)), r"shards dim 2, but the tensor of"),
        (lambda: Layout.parse("S(0), R", MESH).join([torch.zeros(3)]), "1 local tensors were given"),
    ],
)
def test_a_wrong_layout_is_one_sentence(make, message):
    with pytest.raises(UsageError, match=message):
        make()
