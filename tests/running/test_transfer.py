"""Who sends what between meshes: all arrives, nothing is sent twice, and those who hold the same share the work."""

import math
import random
from collections import Counter

import pytest
import torch

from shardwise import Mesh
from shardwise.layout import Layout, common, length
from shardwise.placements import parse_placement
from shardwise.redistribution import held, parcels, views

MESHES = ["d=1", "d=2", "d=4", "a=2,b=2", "a=2,b=3", "a=2,b=2,c=2"]


def random_layout(rng, mesh, ndim):
    kinds = ["R", *(f"S({dim})" for dim in range(ndim)), *(f"S({dim}, sf=2)" for dim in range(ndim))]
    return Layout(mesh, tuple(parse_placement(rng.choice(kinds)) for _ in mesh.shape))


@pytest.mark.parametrize("seed", range(60))
def test_every_piece_arrives_by_the_fewest_bytes(seed):
    rng = random.Random(seed)
    shape = rng.choice([(), (7,), (8, 12), (5, 9), (4, 6, 10), (0, 3)])
    tensor = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
    source_mesh, target_mesh = (Mesh.parse(rng.choice(MESHES)) for _ in range(2))
    source, target = (
        random_layout(rng, mesh, len(shape)) if shape else Layout.replicated(mesh)
        for mesh in (source_mesh, target_mesh)
    )
    ranks = list(range(12))
    source_ranks, target_ranks = (rng.sample(ranks, mesh.ranks) for mesh in (source_mesh, target_mesh))
    limit = rng.choice([None, 7])
    found = parcels(shape, source, source_ranks, target, target_ranks, limit)

    pieces = dict(zip(source_ranks, source.split(tensor), strict=True))
    arrived = {
        rank: torch.full_like(piece, -1.0)
        for rank, piece in zip(target_ranks, target.split(tensor), strict=True)
    }
    for parcel in found:
        assert limit is None or parcel.numel <= limit or parcel.sender == parcel.receiver
        has = held(source, shape, source_ranks.index(parcel.sender))
        needs = held(target, shape, target_ranks.index(parcel.receiver))
        sizes = [sum(stop - start for start, stop in runs) for runs in parcel.box]
        box = torch.empty(sizes)
        for view, where in views(pieces[parcel.sender], has, parcel.box):
            box[where] = view
        for view, where in views(arrived[parcel.receiver], needs, parcel.box):
            assert (view == -1).all()  # nothing arrives twice
            view.copy_(box[where])
    for rank, piece in zip(target_ranks, target.split(tensor), strict=True):
        assert torch.equal(arrived[rank], piece)
    sent = sum(parcel.numel for parcel in found if parcel.sender != parcel.receiver)
    assert sent == least_elements(shape, source, source_ranks, target, target_ranks)


def least_elements(shape, source, source_ranks, target, target_ranks):
    """How many elements must be sent at least: those that a rank needs and does not hold."""
    own = {rank: held(source, shape, place) for place, rank in enumerate(source_ranks)}
    total = 0
    for place, rank in enumerate(target_ranks):
        needed = held(target, shape, place)
        total += math.prod(map(length, needed))
        if rank in own:
            total -= math.prod(length(common(a, b)) for a, b in zip(needed, own[rank], strict=True))
    return total


def test_replicas_share_the_sending():
    shape, mesh = (64, 64), Mesh.parse("d=4")
    everywhere, sharded = Layout.replicated(mesh), Layout.parse("S(0)", mesh)
    sent = Counter()
    for parcel in parcels(shape, everywhere, [0, 1, 2, 3], sharded, [4, 5, 6, 7]):
        sent[parcel.sender] += parcel.numel
    assert sent == dict.fromkeys(range(4), 64 * 64 // 4)
    one = Layout.replicated(Mesh.parse("d=1"))
    sent = Counter(parcel.sender for parcel in parcels(shape, everywhere, [0, 1, 2, 3], one, [9]))
    assert sent == dict.fromkeys(range(4), 1)
