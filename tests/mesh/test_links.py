"""Measured collectives: curves are followed where there are any, and groups between and beyond follow from them."""

from dataclasses import replace

import numpy as np
import pytest

from shardwise import Cluster, Mesh
from shardwise.errors import UsageError
from shardwise.mesh import Curve, Level, Link, Piece, Span

TWO = Curve("all_gather", 2, (Piece(0, 5e-6, None), Piece(1e5, 4e-6, 1e11), Piece(1e7, 5e-5, 2e11)))
EIGHT = Curve("all_gather", 8, (Piece(0, 2e-5, 5e10),))
LINK = Link(1e11, latency=1e-6, launch=4e-6, measured=(TWO, EIGHT))


def test_a_curve_is_followed_piece_by_piece():
    assert LINK.time("all_gather", 1000, 2) == 5e-6
    assert LINK.time("all_gather", 1e6, 2) == pytest.approx(4e-6 + 1e6 / 1e11)
    assert LINK.time("all_gather", 1e9, 2) == pytest.approx(5e-5 + 1e9 / 2e11)


def test_other_collectives_follow_the_law():
    assert LINK.time("permute", 1e9, 2) == pytest.approx(5e-6 + 1e9 / 1e11)


@pytest.mark.parametrize("size", [100, 1e6, 1e9])
def test_a_group_between_measured_ones_takes_a_time_between(size):
    two, four, eight = (LINK.time("all_gather", size, ranks) for ranks in (2, 4, 8))
    assert four == pytest.approx((two * eight) ** 0.5)


def test_a_larger_group_than_any_measured_changes_as_the_law_does():
    far = LINK.time("all_gather", 0, 16), LINK.time("all_gather", 1e12, 16)
    assert far[0] == pytest.approx(2e-5 * (4 + 15) / (4 + 7))
    assert far[1] == pytest.approx(1e12 / 5e10 * (15 / 16) / (7 / 8), rel=1e-5)


def test_elements_of_one_byte_take_longer_to_add():
    link = Link(1e11, measured=(Curve("all_reduce", 8, (Piece(0, 1e-5, 1e11),), narrow=1.5),))
    assert link.time("all_reduce", 1e9, 8) == pytest.approx(1e-5 + 0.01)
    assert link.time("all_reduce", 1e9, 8, itemsize=1) == pytest.approx(1e-5 + 0.015)


def test_several_sizes_are_priced_as_each_alone():
    sizes = np.array([0.0, 1e3, 1e5, 1e7, 1e9])
    for ranks in (1, 2, 5, 8, 32):
        alone = [LINK.time("all_gather", size, ranks) for size in sizes]
        assert LINK.times("all_gather", sizes, ranks).tolist() == pytest.approx(alone)


def hosts(network, per_host=8):
    laptop = Cluster.preset("laptop").device
    return Cluster("hosts", laptop, (Level(Link(400e9, 1e-6), per_host), Level(network)))


def test_hops_between_hosts_and_inside_them_add_up():
    """As measured with NCCL's ring on hosts of 8 GPUs with 400 Gb/s each: 70, 146 and 297 us."""
    cluster = Cluster.preset("h100")
    for count, microseconds, rate in ((2, 70, 410e9), (4, 146, 396e9), (8, 297, 390e9)):
        link = cluster.link(Mesh.parse(f"d={8 * count}"), "d")
        assert isinstance(link, Span)
        for collective in ("all_gather", "reduce_scatter"):
            assert link.time(collective, 0, 8 * count) == pytest.approx(microseconds * 1e-6, rel=0.03)
            slope = link.time(collective, 2e9, 8 * count) - link.time(collective, 1e9, 8 * count)
            assert 1e9 / slope == pytest.approx(rate, rel=0.03)


def test_one_gpu_of_each_host_has_its_own_card():
    """As measured: 22, 50, 106 and 218 us, and 48 GB/s."""
    cluster = Cluster.preset("h100")
    for count, microseconds in ((2, 22), (4, 50), (8, 106)):
        link = cluster.link(Mesh.parse(f"dp={count},tp=8"), "dp")
        assert link.time("all_gather", 0, count) == pytest.approx(microseconds * 1e-6, rel=0.02)
        slope = link.time("all_gather", 2e9, count) - link.time("all_gather", 1e9, count)
        assert (count - 1) / count * 1e9 / slope == pytest.approx(48e9)


def test_many_hosts_leave_each_other_a_share_of_the_network():
    network = Link(10e9, at_scale=((8, 1.0), (16, 0.75)))
    eight, sixteen, more = (network.time("permute", 1e9, ranks) for ranks in (8, 16, 64))
    assert eight / sixteen == pytest.approx(0.75)
    assert sixteen == more


def test_an_all_to_all_between_hosts_uses_each_card_for_its_own_gpu():
    cluster = hosts(Link(50e9))
    spread = cluster.link(Mesh.parse("d=16"), "d").time("all_to_all", 1e9, 16)
    assert spread == pytest.approx(1e9 * 8 / 16 / 50e9)
    assert cluster.link(Mesh.parse("d=16"), "d").time("all_gather", 1e9, 16) < spread / 3


def test_measured_full_hosts_tell_about_one_gpu_of_each():
    """The bandwidth of full hosts is that of eight cards."""
    curve = Curve("all_gather", 16, (Piece(0, 1e-4, 1.6e11),), members=8)
    cluster = hosts(Link(25e9, 1e-5, 1e-5, measured=(curve,)))
    full, one = (cluster.link(Mesh.parse(text), 0) for text in ("d=16", "dp=2,tp=8"))
    assert full.time("all_gather", 1e12, 16) == pytest.approx(1e12 / 1.6e11, rel=1e-3)
    assert one.time("all_gather", 1e12, 2) == pytest.approx(8 * 1e12 / 1.6e11 * (1 / 2) / (15 / 16), rel=1e-3)


def test_a_small_message_has_a_share_of_the_latency():
    plain, ramp = Link(1e9, 1e-3), Link(1e9, 1e-3, ramp=(0.25, 1e6))
    assert ramp.time("all_gather", 0, 4) == pytest.approx(0.25 * plain.time("all_gather", 0, 4))
    assert ramp.time("all_gather", 1e6, 4) == plain.time("all_gather", 1e6, 4)
    times = ramp.times("all_reduce", np.geomspace(1, 1e9, 50), 8)
    assert (np.diff(times) > 0).all()
    assert (times <= plain.times("all_reduce", np.geomspace(1, 1e9, 50), 8)).all()


def test_efa_is_as_published():
    """Bus bandwidths of 256 MB on 2 to 32 hosts of 8."""
    cluster = Cluster.preset("h100-efa")
    published = {"all_reduce": (362, 160, 100, 85, 65), "all_gather": (185, 119, 69, 55, 28)}
    for collective, rates in published.items():
        for exponent, rate in enumerate(rates, 1):
            ranks = 8 * 2**exponent
            seconds = cluster.link(Mesh.parse(f"d={ranks}"), "d").time(collective, 256e6, ranks)
            moved = (ranks - 1) / ranks * 256e6 * (2 if collective == "all_reduce" else 1)
            assert moved / seconds == pytest.approx(rate * 1e9, rel=0.02)


@pytest.mark.parametrize("name", ["a100", "h100", "h200", "b200", "l40s"])
def test_presets_have_measured_collectives(name):
    link = Cluster.preset(name).levels[0].link
    assert {curve.ranks for curve in link.measured} == {2, 4, 8}
    assert "aiconfigurator" in link.origin
    for collective in ("all_gather", "reduce_scatter", "all_reduce", "all_to_all"):
        for ranks in (2, 3, 4, 6, 8):
            small, large = (link.time(collective, size, ranks) for size in (2**16, 2**28))
            assert 3e-6 < small < large


def test_in_switch_reduction_makes_all_reduces_of_floats_faster():
    link = Cluster.preset("h100").levels[0].link
    bus = 2 * 7 / 8 * 2**29 / link.time("all_reduce", 2**29, 8)
    assert bus == pytest.approx(450e9, rel=0.05)
    assert link.time("all_reduce", 2**29, 8, itemsize=1) > 1.2 * link.time("all_reduce", 2**29, 8)


def test_pcie_collapses_with_the_group():
    link = Cluster.preset("l40s").levels[0].link
    bus = [(n - 1) / n * 2**28 / link.time("all_gather", 2**28, n) for n in (2, 4, 8)]
    assert bus[0] > 3 * bus[1] > 9 * bus[2]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Curve("broadcast", 2, (Piece(0, 1, 1),)), "unknown collective 'broadcast'"),
        (lambda: Curve("all_gather", 1, (Piece(0, 1, 1),)), "at least 2 ranks"),
        (lambda: Curve("all_gather", 8, (Piece(0, 1, 1),), members=8), "in at least 2 islands"),
        (lambda: Curve("all_gather", 2, ()), "pieces that begin at 0 bytes"),
        (lambda: Curve("all_gather", 2, (Piece(0, 1, 1), Piece(0, 1, 1))), "at growing sizes"),
        (lambda: Curve("all_gather", 2, (Piece(0, 0, None),)), "without a latency and a positive bandwidth"),
        (lambda: Curve("all_gather", 2, (Piece(0, 1, -1),)), "without a latency and a positive bandwidth"),
        (lambda: Link(1, measured=(TWO, TWO)), "two measured curves of all_gather among 2"),
        (lambda: Link(1, at_scale=((8, 1.0), (8, 0.5))), "growing numbers of islands"),
        (lambda: Link(1, latency_inside=-1), "negative latency"),
    ],
)
def test_a_wrong_curve_is_one_sentence(make, message):
    with pytest.raises(UsageError, match=message):
        make()


def test_a_document_may_name_shipped_devices_and_links():
    document = {"name": "mine", "device": "h200", "levels": [{"size": 4, "link": "nvlink4"}, {"link": "efa"}]}
    mine, h200 = Cluster.from_json(document), Cluster.preset("h200")
    assert mine.device == h200.device
    assert mine.levels[0] == replace(h200.levels[0], size=4)
    with pytest.raises(UsageError, match=r"levels\[1\].link: expected one of efa, .*nvlink4.*, found 'x'"):
        Cluster.from_json({**document, "levels": [{"size": 8, "link": "efa"}, {"link": "x"}]})


@pytest.mark.parametrize("name", Cluster.presets())
def test_presets_say_where_they_are_from(name):
    cluster = Cluster.preset(name)
    assert cluster.name == name
    assert cluster.origin and cluster.device.origin
    assert len(cluster.levels) == 1 or all(level.link.origin for level in cluster.levels)
