"""The document of a plan holds the plan's own numbers, and its tree holds every call once."""

import json
from dataclasses import replace

import pytest
import torch

import shardwise as sw
from shardwise.planning import Move
from shardwise.report import document, plan_page


@pytest.fixture(scope="module")
def made(stack):
    return document(stack)


def numbers(module):
    for part in module["items"]:
        if isinstance(part, int):
            yield part
        else:
            yield from numbers(part)


def test_totals_are_those_of_the_plan(stack, made):
    assert made["cost"]["seconds"] == stack.cost.seconds
    assert sum(made["cost"]["parts"].values()) == pytest.approx(stack.cost.seconds)
    assert max(held for _, held, _ in made["held"]["points"]) == stack.cost.peak
    assert made["tree"]["seconds"] == pytest.approx(sum(stack.cost.entries))
    assert made["tree"]["calls"] == len(stack.graph.nodes)


def test_every_entry_of_the_schedule_stands_in_the_tree_once(stack, made):
    assert sorted(numbers(made["tree"])) == list(range(len(stack.schedule.entries)))


def test_baselines_come_with_their_parts(stack, made):
    for line in made["against"]:
        assert sum(line["parts"].values()) == pytest.approx(line["seconds"])


def test_a_move_stands_with_the_call_that_needs_it(stack, made):
    for number, entry in enumerate(stack.schedule.entries):
        if isinstance(entry, Move) and "for" in made["entries"][number]:
            user = stack.schedule.entries[made["entries"][number]["for"]]
            assert entry.target.ref in {value.ref for value in user.inputs}
    assert any(
        "for" in made["entries"][n] for n, e in enumerate(stack.schedule.entries) if isinstance(e, Move)
    )


def test_equal_layers_are_folded(made):
    [layers] = [
        part for part in made["tree"]["items"] if not isinstance(part, int) and part["name"] == "layers"
    ]
    groups = [part for part in layers["items"] if part.get("alike")]
    assert groups
    assert groups[0]["calls"] == sum(module["calls"] for module in groups[0]["items"])


def test_the_chosen_rows_are_among_those_considered(stack, made):
    for entry in made["entries"]:
        if "op" in entry:
            shown = made["considered"][entry["considered"]]["shown"]
            [chosen] = [rows for rows, _, _, is_chosen, _ in shown if is_chosen]
            assert chosen == str(stack.choices[made["considered"][entry["considered"]]["of"]])


def test_a_plan_that_was_saved_gives_the_same_page(stack, tmp_path):
    stack.save(tmp_path / "plan.json")
    loaded = type(stack).load(tmp_path / "plan.json")
    assert json.dumps(document(loaded)) == json.dumps(document(stack))


def test_the_page_needs_nothing_from_outside(stack):
    page = plan_page(stack, runners_up=False)
    assert "http://www.w3.org/2000/svg" in page  # the name of a namespace, never fetched
    assert page.count("http") == page.count("http://www.w3.org/2000/svg")
    assert "{{" not in page


def test_a_name_cannot_end_the_script(stack):
    graph = replace(stack.graph, name="</script><b>bold")
    page = plan_page(replace(stack, graph=graph), runners_up=False)
    assert page.count("</script>") == 2
    assert "<b>bold" not in page


def test_what_was_propagated_is_noted_with_where_the_plan_departs_from_it():
    program, args = (lambda a, b: (a @ b).relu()), (torch.rand(4, 6), torch.rand(6, 4))
    options = {"mesh": "dp=2", "training": False, "compare": False, "confirm": False}
    for given, noted in (
        ({"a": "[{dp}, {}]"}, "every call follows the propagated shardings"),
        (
            {"a": "[{dp}, {}]", "b": "[{}, {dp}]"},
            "1 of 2 calls depart from the propagated shardings, by price: mm",
        ),
    ):
        [note] = document(sw.plan(program, args, shardings=given, **options), runners_up=False)["notes"]
        assert note.startswith("Propagated from a [{dp}, {}]") and noted in note
