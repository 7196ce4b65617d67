"""Rows of a node that the book does not know: found on the spot, kept where they stay true."""

import json
from pathlib import Path

import pytest
import torch

import shardwise as sw
from shardwise.experiments import Crash
from shardwise.graph import capture
from shardwise.planning import Offers, _rows
from shardwise.planning._rows import described, scaled_down


@torch.library.custom_op("shardwise_tests::halved", mutates_args=())
def halved(x: torch.Tensor) -> torch.Tensor:
    return x / 2


halved.register_fake(torch.empty_like)


@torch.library.custom_op("shardwise_tests::powered", mutates_args=())
def powered(x: torch.Tensor, p: int) -> torch.Tensor:
    return x**p


powered.register_fake(lambda x, p: torch.empty_like(x))


@torch.library.custom_op("shardwise_tests::first", mutates_args=())
def first(x: torch.Tensor, count: int) -> torch.Tensor:
    return x[:, :count].clone()


first.register_fake(lambda x, count: x.new_empty(x.shape[0], count))


@torch.library.custom_op("shardwise_tests::normed", mutates_args=())
def normed(x: torch.Tensor, width: int) -> torch.Tensor:
    return torch.nn.functional.layer_norm(x, [width])


normed.register_fake(lambda x, width: torch.empty_like(x))


def small(function, *args):
    """The arguments of the first small call like one."""
    graph = capture(function, args, training=False)
    node = graph.nodes[-1]
    return next(scaled_down(node, *described(graph, node)))[0]


def offered(function, folder: Path, *shape: int):
    graph = capture(function, (torch.rand(shape),), training=False)
    return [Offers(graph, folder).of(node) for node in graph.nodes][-1]


def test_a_number_that_happens_to_be_a_size_stays_as_it_is():
    x, dim, _ = small(lambda x: torch.softmax(x, 2), torch.rand(2, 128, 256))
    assert (tuple(x.shape), dim) == ((4, 6, 8), 2)
    assert small(lambda x: powered(x, 2), torch.rand(2, 128))[1] == 2


def test_a_number_that_must_follow_the_sizes_does():
    x, count = small(lambda x: first(x, 32), torch.rand(16, 256))
    assert (tuple(x.shape), count) == ((4, 8), 6)


def test_a_number_that_only_the_operator_itself_knows_to_be_a_size_follows_too(tmp_path):
    offer = offered(lambda x: normed(x, 256), tmp_path, 128, 256)
    assert [str(row) for row in offer.rows] == ["R -> R", "S(0) -> S(0)"]


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


@pytest.mark.parametrize(("text", "message"), [("{", "is not valid JSON"), ("[]", "holds none: remove it")])
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
