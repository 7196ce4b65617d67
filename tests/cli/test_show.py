"""`shardwise show` draws the pieces that DTensor makes, within 80 columns."""

import json
import re

import pytest

from shardwise import Cluster, Mesh
from shardwise.layout import Layout


def cells(out):
    return [re.findall(r"[^│]+", line) for line in out.splitlines() if line.startswith("│")]


def test_each_cell_has_the_rank_that_holds_it(shardwise):
    _, out, _ = shardwise("show", "S(0), S(1)", "--mesh", "dp=2,tp=4", "--shape", "8,8")
    grid = [[cell.strip() for cell in line] for line in cells(out)]
    assert grid[0][1:] == ["0-1", "2-3", "4-5", "6-7"]
    assert grid[1:] == [["0-3", "0", "1", "2", "3"], ["4-7", "4", "5", "6", "7"]]
    assert "a rank holds 4 x 2" in out


def test_uneven_and_empty_pieces_are_those_of_the_shape(shardwise):
    _, out, _ = shardwise("show", "S(0)", "--mesh", "dp=4", "--shape", "5")
    assert [line[0].strip() for line in cells(out)][1:] == ["nothing", "0-1", "2-3", "4"]


@pytest.mark.parametrize(
    ("layout", "mesh", "shape"),
    [
        ("S(1), S(0), R", "dp=16,tp=32,pp=2", "1024,4096,8"),
        ("P(sum), S(2)", "dp=64,tp=64", "7,1,100000"),
        ("R", "dp=1", ""),
        ("[{tp, dp}, {}]", "dp=8,tp=8", "640,4"),
    ],
)
def test_any_layout_fits_80_columns(shardwise, layout, mesh, shape):
    status, out, err = shardwise("show", layout, "--mesh", mesh, "--shape", shape)
    assert (status, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80


def test_json_says_what_every_rank_holds(shardwise):
    _, out, _ = shardwise("show", "S(1), R", "--mesh", "dp=2,tp=2", "--shape", "3,5", "--json")
    layout = Layout.parse("S(1), R", "dp=2,tp=2")
    for held in json.loads(out)["ranks"]:
        assert held["shape"] == list(layout.local_shape((3, 5), held["rank"]))
        assert held["holds"][1] == [list(run) for run in layout.runs(1, 5, held["rank"])]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("S(3), R", "--mesh", "dp=2,tp=2", "--shape", "3,3"), "shards dim 3"),
        (("S(0)", "--mesh", "dp=2", "--shape", "a"), "is not of the form 8,8"),
        (("S(0)", "--mesh", "dp=2", "--shape", "-1"), "negative"),
        (("S(0)", "--mesh", "dp=2", "--shape", "4,4", "--dims", "0"), "give two"),
        (("S(0)", "--mesh", "dp=2", "--shape", "4,4", "--dims", "0,2"), "has no dim 2"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(shardwise, arguments, message):
    status, out, err = shardwise("show", *arguments)
    assert (status, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("name", ["h100", "laptop"])
def test_a_cluster_is_drawn_with_its_origin(shardwise, name):
    status, out, err = shardwise("show", "cluster", name)
    assert (status, err) == (0, "")
    assert f"Cluster {name}" in out and Cluster.preset(name).device.origin[:40] in out
    assert re.search(r"4096 x 4096 x 4096 +[\d.]+ +[\d.]+%  ####", out)
    assert re.search(r"1 GiB +[\d.]+ +100.0%  ########", out)
    assert max(map(len, out.splitlines())) <= 80


def test_a_cluster_as_json_and_as_a_page(shardwise, tmp_path):
    _, out, _ = shardwise("show", "cluster", "h100", "--json", "--html", str(tmp_path / "h100.html"))
    shown = json.loads(out)
    assert Cluster.from_json(shown["cluster"]) == Cluster.preset("h100")
    link = Cluster.preset("h100").link(Mesh.parse("d=8"), "d")
    for row in shown["collectives"]:
        if row["ranks"] == 8:
            assert row["seconds"] == link.time(row["collective"], row["size"], 8)
    assert "All-gather among 8" in (tmp_path / "h100.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("cluster",), "which cluster? Use one of h100"),
        (("cluster", "x"), "unknown cluster 'x'"),
        (("S(0)",), "give --mesh dp=2,tp=4 and --shape 8,8"),
        (("S(0)", "h100", "--mesh", "d=2", "--shape", "4"), "what else is h100?"),
    ],
)
def test_what_to_show_must_be_clear(shardwise, arguments, message):
    status, _, err = shardwise("show", *arguments)
    assert status == 2
    assert message in err
