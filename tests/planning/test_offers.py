"""Rows of a node that the book does not know: found on the spot, kept where they stay true."""

import json
from pathlib import Path

import pytest
import torch

import shardwise as sw
from shardwise.experiments import Crash
from shardwise.graph import capture
from shardwise.planning import Offers, Plan, random_plan
from shardwise.planning._discovered import Discovered


@torch.library.custom_op("shardwise_tests::halved", mutates_args=())
def halved(x: torch.Tensor) -> torch.Tensor:
    return x / 2


halved.register_fake(torch.empty_like)


@torch.library.custom_op("shardwise_tests::normed", mutates_args=())
def normed(x: torch.Tensor, width: int) -> torch.Tensor:
    return torch.nn.functional.layer_norm(x, [width])


normed.register_fake(lambda x, width: torch.empty_like(x))


def offered(function, folder: Path, *shape: int, **options):
    graph = capture(function, (torch.rand(shape),), training=False)
    return [Offers(graph, folder, **options).of(node) for node in graph.nodes][-1]


def test_a_number_that_only_the_operator_itself_knows_to_be_a_size_follows_too(tmp_path):
    offer = offered(lambda x: normed(x, 256), tmp_path, 128, 256)
    assert [str(row) for row in offer.rows] == ["R -> R", "S(0) -> S(0)"]


def unknown(function, folder: Path, **options):
    """What is offered for a call that no book knows, in a process that has found nothing yet."""
    found = Discovered(folder, **{"here": {}, **options})
    return offered(function, folder, 4, 6, known=lambda call: None, discovered=found)


def test_rows_of_torchs_own_operators_are_kept_on_disk(tmp_path):
    assert unknown(torch.neg, tmp_path).source == "discovered"
    [file] = tmp_path.iterdir()
    assert list(json.loads(file.read_text())["found"]) == ["aten.neg.default(float32[4, 6])"]
    assert unknown(torch.neg, tmp_path, find=None).source == "discovered"


def test_rows_of_another_operator_are_known_to_this_process_alone(tmp_path):
    here = {}
    assert unknown(halved, tmp_path, here=here).source == "discovered"
    assert not list(tmp_path.iterdir())
    assert unknown(halved, tmp_path, here=here, find=None).source == "discovered"  # without experiments


def test_rows_refuted_at_one_sizing_are_not_taken_from_another(tmp_path):
    answers = [([], "no valid rows"), ([sw.Row.parse("S(0) -> S(0)")], "rows")]
    offer = unknown(torch.neg, tmp_path, find=lambda call: answers.pop(0))
    assert (offer.source, offer.note, len(answers)) == ("replicated", "no valid rows", 1)


def test_a_call_that_cannot_be_judged_at_one_sizing_is_judged_at_another(tmp_path):
    answers = [(None, "cannot run"), ([sw.Row.parse("S(0) -> S(0)")], "rows")]
    assert unknown(torch.neg, tmp_path, find=lambda call: answers.pop(0)).source == "discovered"


def test_a_discovery_that_did_not_end_is_tried_again_another_time(tmp_path):
    offer = unknown(torch.neg, tmp_path, find=lambda call: Crash("timeout"))
    assert (offer.source, offer.note) == ("replicated", "discovery ended with timeout")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "is not valid JSON"), ("[]", "expected an object, found a list of 0; remove")],
)
def test_a_damaged_cache_is_named(tmp_path, text, message):
    unknown(torch.neg, tmp_path)
    [file] = tmp_path.iterdir()
    file.write_text(text)
    with pytest.raises(sw.UsageError, match=message):
        unknown(torch.abs, tmp_path)


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(sw.UsageError, match="set SHARDWISE_CACHE to one that can be written"):
        unknown(torch.neg, tmp_path / "file" / "rows")


def test_discovery_leaves_the_programs_random_numbers_alone(tmp_path):
    graph = capture(lambda x: torch.special.zeta(x, x).sum(), (torch.rand(4, 6),), training=False)
    before = torch.get_rng_state()
    offers = Offers(graph, tmp_path, known=lambda call: None)
    assert any(offers.of(node).source == "discovered" for node in graph.nodes)
    assert torch.equal(torch.get_rng_state(), before)


def test_choices_with_two_local_forms_of_one_operator_are_read_back():
    graph = capture(lambda x: x.select(0, 1).sum(), (torch.rand(4, 6, 8, requires_grad=True),))
    plans = [random_plan(graph, mesh="a=2,b=2", seed=seed) for seed in range(8)]
    forms = [{row.local for row in choice.rows} for plan in plans for choice in plan.choices.values()]
    assert any(len(each - {None}) == 2 for each in forms)
    assert all(Plan.from_json(plan.to_json()) == plan for plan in plans)
