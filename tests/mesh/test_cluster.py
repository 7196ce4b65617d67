import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shardwise import Cluster, Mesh
from shardwise.errors import UsageError
from shardwise.mesh import COLLECTIVES, Device, Level, Link

LINK = Link(bandwidth=1e9, latency=1e-6, launch=5e-6)
RATES = {"float32": 1e12}
LINKS = [LINK, Link(1e9, 1e-6, 5e-6, all_reduce="tree"), Link(1e9, 1e-6, 5e-6, topology="ring")]


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("collective", COLLECTIVES)
@given(size=st.integers(0, 10**9), ranks=st.integers(2, 64))
def test_a_collective_is_affine_in_bytes(link, collective, size, ranks):
    fixed = link.time(collective, 0, ranks)
    slope = link.time(collective, 1, ranks) - fixed
    assert fixed > 0
    assert slope >= 0
    assert link.time(collective, size, ranks) == pytest.approx(fixed + slope * size, rel=1e-4)


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("collective", [c for c in COLLECTIVES if c != "permute"])
@given(ranks=st.integers(1, 63))
def test_a_collective_grows_with_the_ranks(link, collective, ranks):
    assert link.time(collective, 10**6, ranks) < link.time(collective, 10**6, ranks + 1)


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_a_collective_of_one_rank_is_free(link, collective):
    assert link.time(collective, 10**9, 1) == 0


@given(size=st.integers(0, 10**12), ranks=st.integers(1, 64))
def test_gathering_and_scattering_cost_the_same(size, ranks):
    expected = (ranks - 1) / ranks * size / 1e9 + (5e-6 + (ranks - 1) * 1e-6 if ranks > 1 else 0)
    assert LINK.time("all_gather", size, ranks) == pytest.approx(expected)
    assert LINK.time("reduce_scatter", size, ranks) == pytest.approx(expected)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_double_bandwidth_halves_the_bandwidth_term(collective):
    double = Link(bandwidth=2e9, latency=1e-6, launch=5e-6)
    term = LINK.time(collective, 1e6, 4) - LINK.time(collective, 0, 4)
    assert double.time(collective, 1e6, 4) - double.time(collective, 0, 4) == pytest.approx(term / 2)


@given(size=st.integers(0, 10**12), ranks=st.integers(2, 64))
def test_an_all_reduce_is_no_more_than_scattering_and_gathering(size, ranks):
    for link in LINKS:
        apart = link.time("reduce_scatter", size, ranks) + link.time("all_gather", size, ranks)
        assert link.time("all_reduce", size, ranks) < apart


def test_a_ring_pays_for_distance_in_all_to_all():
    assert LINKS[2].terms("all_to_all", 2)[1] == LINK.terms("all_to_all", 2)[1]
    assert LINKS[2].terms("all_to_all", 16)[1] == pytest.approx(4 / 1e9)


def test_axes_inside_an_island_use_its_link():
    mesh, cluster = Mesh.parse("pp=2,dp=4,tp=8"), Cluster.preset("h100")
    assert cluster.link(mesh, "tp") == cluster.levels[0].link
    assert cluster.link(mesh, "dp") == cluster.levels[1].link
    assert cluster.link(mesh, "pp") == cluster.levels[1].link


def test_an_axis_that_leaves_its_island_uses_all_outer_links_of_its_members():
    cluster = Cluster("c", Cluster.preset("laptop").device, (Level(Link(100.0), 8), Level(Link(10.0))))
    assert cluster.link(Mesh.parse("d=16"), "d").bandwidth == 80
    assert cluster.link(Mesh.parse("d=8,t=2"), "d").bandwidth == 40
    assert cluster.link(Mesh.parse("d=2,t=8"), "d").bandwidth == 10
    faster = Cluster("c", cluster.device, (Level(Link(50.0), 8), Level(Link(10.0))))
    assert faster.link(Mesh.parse("d=16"), "d").bandwidth == 50


def test_groups_that_do_not_divide_an_island_leave_it():
    """Of ranks 0-5, 6-11, 12-17 and 18-23 on islands of 8, the second has two in the first island."""
    cluster = Cluster("c", Cluster.preset("laptop").device, (Level(Link(100.0), 8), Level(Link(10.0))))
    assert cluster.link(Mesh.parse("dp=4,tp=6"), "tp").bandwidth == 20
    assert cluster.link(Mesh.parse("dp=2,cp=3,tp=2"), "cp").bandwidth == 10
    assert cluster.link(Mesh.parse("tp=6"), "tp") == cluster.levels[0].link  # all in one island
    assert cluster.link(Mesh.parse("cp=3,tp=2"), "cp") == cluster.levels[0].link
    assert cluster.link(Mesh.parse("dp=3,tp=4"), "tp") == cluster.levels[0].link


def test_an_axis_may_have_a_link_of_its_own():
    cluster = Cluster.preset("h100").with_axes(tp=LINK)
    assert cluster.link(Mesh.parse("dp=2,tp=4"), "tp") == LINK
    assert cluster.link(Mesh.parse("dp=2,tp=4"), "dp") != LINK


@pytest.mark.parametrize("name", Cluster.presets())
def test_presets_round_trip_through_json(name):
    cluster = Cluster.preset(name).with_axes(tp=LINK)
    again = Cluster.from_json(json.loads(json.dumps(cluster.to_json())))
    assert again == cluster
    assert hash(again) == hash(cluster)


def test_a_cluster_is_read_from_a_file(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(Cluster.preset("tpu").to_json()))
    assert Cluster.of(path) == Cluster.of("tpu")


@pytest.mark.parametrize("name", Cluster.presets())
def test_presets_state_rates_and_memory(name):
    device = Cluster.preset(name).device
    assert device.rate(torch.bfloat16) == device.rate("bfloat16") >= device.rate(torch.float32) > 0
    assert device.memory > 1e9 < device.memory_bandwidth


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Cluster.of("b300"), "unknown cluster 'b300': use one of h100"),
        (lambda: Cluster.of("missing.json"), "cannot be read"),
        (lambda: Cluster.from_json({"name": "c"}), "expected the field 'device', found 'name'"),
        (lambda: Cluster.from_json([1]), "expected an object, found a list of 1"),
        (lambda: Link(0), "must be positive"),
        (lambda: Link(1, -1), "negative latency"),
        (lambda: Link(1, topology="mesh"), "use one of switch, ring"),
        (lambda: LINK.time("broadcast", 1, 2), "unknown collective 'broadcast'"),
        (lambda: Device("d", {}, 1, 1), "no flops for float32"),
        (lambda: Device("d", RATES, 1, 1, {"matmul": 1.0}), "no efficiency for memory"),
        (lambda: Device("d", RATES, 1, 0), "'d' has memory_bandwidth 0: it must be positive"),
        (lambda: Device("d", {"float32": 0}, 1, 1), "flops of float32 0"),
        (lambda: Device("d", RATES, 1, 1, {"memory": 0}), "efficiency of memory 0"),
        (lambda: Device("d", RATES, 1, 1, exposed={"attention": 0}), "exposed of attention 0"),
        (lambda: Cluster("c", Cluster.preset("tpu").device, (Level(LINK, 8),)), "only the last has no size"),
        (
            lambda: Cluster(
                "c", Cluster.preset("tpu").device, (Level(LINK, 8), Level(LINK, 12), Level(LINK))
            ),
            "multiple of the one inside",
        ),
    ],
)
def test_a_wrong_cluster_is_one_sentence(make, message):
    with pytest.raises(UsageError, match=message):
        make()
