import pytest

from shardwise import Sharding
from shardwise.errors import UsageError
from shardwise.layout import picture


@pytest.mark.parametrize(
    ("text", "drawn"),
    [
        ("[{a}, {b}]", ["| 0 | 1 |", "| 2 | 3 |"]),
        ("[{b}, {a}]", ["| 0 | 2 |", "| 1 | 3 |"]),
        ("[{}, {a}]", ["| 0 1 | 2 3 |"]),
        ("[{b, a}]", ["| 0 |", "| 2 |", "| 1 |", "| 3 |"]),
        ("[{}, {a}, {b}]", ["| 0 | 1 |", "| 2 | 3 |"]),
        ("[]", ["| 0 1 2 3 |"]),
    ],
)
def test_blocks_list_their_ranks(text, drawn):
    lines = picture(Sharding.parse(text, "a=2,b=2")).splitlines()
    assert [line for line in lines if line.startswith("|")] == drawn


def test_other_dims_may_be_drawn():
    sharding = Sharding.parse("[{a}, {b}, {}]", "a=2,b=2")
    assert picture(sharding, (0, 1)) == picture(Sharding.parse("[{a}, {b}]", "a=2,b=2"))
    with pytest.raises(UsageError, match="has no dim 3"):
        picture(sharding, (0, 3))
