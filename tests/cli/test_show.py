"""`shardwise show` draws the pieces that DTensor makes, within 80 columns."""

import json
import re

import pytest

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
