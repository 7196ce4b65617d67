"""Rows of a node that the book does not know: found on the spot, kept where they stay true."""

import json
from pathlib import Path

import pytest
import torch

import shardwise as sw
from shardwise.discover import Crash
from shardwise.graph import capture
from shardwise.plan import Offers, _rows


@torch.library.custom_op("shardwise_tests::halved", mutates_args=())
def halved(x: torch.Tensor) -> torch.Tensor:
    return x / 2


halved.register_fake(torch.empty_like)


def offered(function, folder: Path, *shape: int):
    graph = capture(function, (torch.rand(shape),), training=False)
    return [Offers(graph, folder).of(node) for node in graph.nodes][-1]


@pytest.fixture
def unknown(monkeypatch):
    """A book without any operator, and a process that has found nothing yet."""
    monkeypatch.setattr(_rows, "book_rows", lambda *_: None)
    monkeypatch.setattr(_rows, "_found_here", {})


def test_rows_of_torchs_own_operators_are_kept_on_disk(unknown, tmp_path):
    assert offered(torch.neg, tmp_path, 4, 6).source == "discovered"
    [file] = tmp_path.iterdir()
    assert list(json.loads(file.read_text())) == ["aten.neg.default(float32[4, 6])"]


def test_rows_of_another_operator_are_known_to_this_process_alone(unknown, tmp_path, monkeypatch):
    assert offered(halved, tmp_path, 4, 6).source == "discovered"
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(_rows, "_discover", None)  # it is not asked again
    assert offered(halved, tmp_path, 4, 6).source == "discovered"


def test_rows_refuted_at_one_sizing_are_not_taken_from_another(unknown, tmp_path, monkeypatch):
    answers = [([], "no valid rows"), ([sw.Row.parse("S(0) -> S(0)")], "rows")]
    monkeypatch.setattr(_rows, "_discover", lambda *_: answers.pop(0))
    offer = offered(torch.neg, tmp_path, 4, 6)
    assert (offer.source, offer.note, len(answers)) == ("replicated", "no valid rows", 1)


def test_a_call_that_cannot_be_judged_at_one_sizing_is_judged_at_another(unknown, tmp_path, monkeypatch):
    answers = [(None, "cannot run"), ([sw.Row.parse("S(0) -> S(0)")], "rows")]
    monkeypatch.setattr(_rows, "_discover", lambda *_: answers.pop(0))
    assert offered(torch.neg, tmp_path, 4, 6).source == "discovered"


def test_a_discovery_that_did_not_end_is_tried_again_another_time(unknown, tmp_path, monkeypatch):
    monkeypatch.setattr(_rows, "_discover", lambda *_: Crash("timeout"))
    offer = offered(torch.neg, tmp_path, 4, 6)
    assert (offer.source, offer.note) == ("replicated", "discovery ended with timeout")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("text", "message"), [("{", "is no JSON"), ("[]", "holds none: remove it")])
def test_a_damaged_cache_is_named(unknown, tmp_path, text, message):
    offered(torch.neg, tmp_path, 4, 6)
    [file] = tmp_path.iterdir()
    file.write_text(text)
    with pytest.raises(sw.UsageError, match=message):
        offered(torch.abs, tmp_path, 4, 6)


def test_a_folder_that_cannot_be_made_is_named(unknown, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(sw.UsageError, match="set SHARDWISE_CACHE to one that can be written"):
        offered(torch.neg, tmp_path / "file" / "rows", 4, 6)
