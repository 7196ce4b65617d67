"""Sub-axes as intervals, checked against the positions that they name."""

from collections import Counter
from itertools import product

import pytest

from shardwise import Mesh
from shardwise.errors import UsageError
from shardwise.layout import AxisRef, append_axis, is_prefix, is_strict_prefix

SIZE = 12
MESH = Mesh.parse(f"a={SIZE},b=2")
PARTS = [
    AxisRef("a", pre, size)
    for pre in range(1, SIZE + 1)
    for size in range(2, SIZE + 1)
    if SIZE % (pre * size) == 0
]


def digit(axis, position):
    """Which piece of the sub-axis a position along the axis lies in."""
    return position // (SIZE // axis.end) % axis.size


def test_parts_can_be_used_together_if_they_cut_independently():
    for one, other in product(PARTS, PARTS):
        seen = Counter((digit(one, p), digit(other, p)) for p in range(SIZE))
        independent = len(seen) == one.size * other.size and len(set(seen.values())) == 1
        if one.fits_with(other):
            assert independent == (not one.overlaps(other))
        assert one.overlaps(other) == other.overlaps(one)
        assert one.fits_with(other) == other.fits_with(one)


def test_what_comes_before_another_part_is_the_longest_free_prefix():
    for one, other in product(PARTS, PARTS):
        prefixes = [p for p in PARTS if p.is_prefix_of(one) and p.fits_with(one) and not p.overlaps(other)]
        longest = max(prefixes, key=lambda p: p.size, default=None)
        assert one.before(other) == (longest if one.fits_with(other) else None)


def test_a_part_contains_another_if_its_piece_tells_the_other_piece():
    for one, other in product(PARTS, PARTS):
        pairs = {(digit(one, p), digit(other, p)) for p in range(SIZE)}
        if one.fits_with(other):
            assert one.contains(other) == (len(pairs) == one.size)


def test_text_round_trips():
    for part in PARTS:
        assert AxisRef.parse(part.text(MESH), MESH) == part
    assert AxisRef("a", 1, 12).text(MESH) == "a"
    assert AxisRef("a", 2, 3).text(MESH) == "a:(2)3"
    with pytest.raises(UsageError, match="is not an axis"):
        AxisRef.parse("a:", MESH)


def test_consecutive_parts_are_joined():
    axes = [AxisRef("b", 1, 2), AxisRef("a", 1, 2)]
    append_axis(axes, AxisRef("a", 2, 6))
    assert axes == [AxisRef("b", 1, 2), AxisRef("a", 1, 12)]
    append_axis(axes, AxisRef("b", 1, 2))
    assert len(axes) == 3


def test_prefixes_of_lists():
    a, half, b = AxisRef("a", 1, 12), AxisRef("a", 1, 6), AxisRef("b", 1, 2)
    assert is_prefix((), (a,)) and is_prefix((a,), (a, b)) and is_prefix((half,), (a, b))
    assert is_prefix((b, half), (b, a)) and not is_prefix((half, b), (a, b))
    assert not is_prefix((a, b), (a,)) and not is_prefix((b,), (a,))
    assert is_strict_prefix((half,), (a,)) and not is_strict_prefix((a,), (a,))
