"""Rules written by hand in the book: refuted is not undecided, and a book with a refuted one is not written."""

import pytest
import torch

from shardwise.book import _entry, build
from shardwise.book._by_hand import by_hand, by_hand_as_given, refusal
from shardwise.calls import Call
from shardwise.errors import UsageError
from shardwise.placements import Row
from shardwise.rules import hand_rows

aten = torch.ops.aten


def counted(entry) -> tuple[int, int, int]:
    return tuple(entry.evidence[kind] for kind in ("agreeing", "refuted", "undecided"))


def test_a_rule_that_holds_agrees():
    calls = [
        Call.of(aten.view.default, torch.rand(8, 6), [48]),
        Call.of(aten.view.default, torch.rand(4), [2, 2]),
    ]
    entry = by_hand("aten.view.default", calls, hand_rows)
    assert counted(entry) == (2, 0, 0) and entry.verdict == "ruled" and refusal([entry]) is None


@pytest.mark.parametrize("wrong", ["S(0) -> S(0)", "S(1) -> S(0)", "P(sum) -> P(max)"])
def test_a_wrong_row_is_refuted_and_named(wrong):
    call = Call.of(aten.flip.default, torch.randn(10, 3), [0])
    for judged in (by_hand, lambda *given: by_hand_as_given(*given, "it crashes")):
        entry = judged("aten.flip.default", [call], lambda _: [Row.parse(wrong)])
        assert counted(entry) == (0, 1, 0)
        assert f"{wrong} does not hold for aten.flip.default" in refusal([entry])


def test_a_row_that_no_experiment_can_tell_is_undecided():
    call = Call.of(aten.hardtanh_backward.default, torch.rand(5, 5), torch.rand(5, 5), 0.0, 0.0)
    entry = by_hand("aten.hardtanh_backward.default", [call], hand_rows)
    assert counted(entry) == (0, 0, 1) and refusal([entry]) is None


def test_a_row_of_certain_sizes_is_tested_at_these():
    """Windows side by side are so at the sizes of the call alone, which experiments change."""
    convolution = (
        torch.rand(2, 3, 32, 32),
        torch.rand(8, 3, 8, 8),
        None,
        [8, 8],
        [0, 0],
        [1, 1],
        False,
        [0, 0],
        1,
    )
    call = Call.of(aten.convolution.default, *convolution)
    assert Row.parse("S(2), R -> S(2) for even shards") in hand_rows(call)
    assert counted(by_hand("aten.convolution.default", [call], hand_rows)) == (1, 0, 0)


def test_a_row_that_holds_for_fewer_shards_than_it_says_is_refuted():
    call = Call.of(aten.amax.default, torch.rand(6, 5), [0])
    assert counted(by_hand("aten.amax.default", [call], lambda _: [Row.parse("S(0) -> P(max)")])) == (0, 1, 0)
    fewer = [Row.parse("S(0) -> P(max) for nonempty shards")]
    assert counted(by_hand("aten.amax.default", [call], lambda _: fewer)) == (1, 0, 0)


def test_a_book_with_a_refuted_rule_is_not_written(tmp_path, monkeypatch):
    def write_by_hand(row: str) -> None:
        monkeypatch.setattr(_entry, "is_by_hand", lambda op: op == "aten.trace.default")
        monkeypatch.setattr(_entry, "book_rows", lambda call: [Row.parse(row)])

    write_by_hand("S(0) -> P(sum)")
    with pytest.raises(UsageError, match=r"hand-written rule of aten\.trace\.default is wrong: S\(0\) -> P"):
        build(tmp_path, workers=1, pattern="trace", whole=True)
    assert not (tmp_path / "index.yaml").exists()
    write_by_hand("P(sum) -> P(sum)")
    build(tmp_path, workers=1, resume=True, whole=True)
    assert (tmp_path / "index.yaml").exists()
