import pytest

from shardwise import Mesh
from shardwise.errors import UsageError


def test_text_round_trips():
    assert str(Mesh.parse("dp=2, tp=4")) == "dp=2,tp=4"


def test_coordinates_are_row_major():
    mesh = Mesh.parse("dp=2,tp=3")
    assert [mesh.coordinate(r) for r in range(6)] == [
        (0, 0),
        (0, 1),
        (0, 2),
        (1, 0),
        (1, 1),
        (1, 2),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dp", "not of the form"),
        ("dp=2,dp=2", "occurs twice"),
        ("dp=0", "at least 1"),
        ("", "not of the form"),
    ],
)
def test_a_wrong_mesh_is_one_sentence(text, message):
    with pytest.raises(UsageError, match=message):
        Mesh.parse(text)


def test_an_unknown_axis_names_the_axes():
    with pytest.raises(UsageError, match="use one of dp, tp"):
        Mesh.parse("dp=2,tp=4")["pp"]


@pytest.mark.parametrize("mesh", [3, None, {"dp": 2}])
def test_what_is_no_mesh_is_refused(mesh):
    with pytest.raises(UsageError, match="is not a mesh: give a Mesh, a DeviceMesh or text"):
        Mesh.of(mesh)
