"""A plan explains itself, survives JSON, keeps to memory and pins, and says why there is none."""

import json
import time
from dataclasses import replace
from math import isclose

import pytest
import torch
from torch import nn
from torch.distributed.tensor import Replicate, Shard

import shardwise as sw
from shardwise import solver
from shardwise.expansion import Choice
from shardwise.graph import capture
from shardwise.layout import Layout
from shardwise.placements import Row
from shardwise.planning import Compute, Copy, DoesNotFit, Explainer, Planner, _planner, _search, plan_graph
from shardwise.planning._amounts import bytes_of
from shardwise.planning._items import CopyItem
from shardwise.planning._pins import Pins
from shardwise.planning._planner import GAP, cheapest_that_fits
from shardwise.planning._preferences import preferred
from shardwise.planning._summary import exact_bytes_text, time_text

OPTIONS = {"mesh": "dp=2,tp=2", "cluster": "laptop"}


@pytest.fixture(scope="module")
def graph():
    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(512, 512, bias=False) for _ in range(6))

        def forward(self, x):
            for layer in self.layers:
                x = torch.relu(layer(x)) + x
            return x.square().mean()

    with torch.device("meta"):
        return capture(Deep(), (torch.empty(256, 512),))


@pytest.fixture(scope="module")
def best(graph):
    return plan_graph(graph, **OPTIONS)


def test_a_plan_survives_json(best, tmp_path):
    best.save(tmp_path / "plan.json")
    again = sw.Plan.load(tmp_path / "plan.json")
    assert again == sw.Plan.from_json(json.loads(json.dumps(best.to_json())))
    for name in ("optimizer", "memory", "pins", "bound", "share_layers", "baselines"):
        assert getattr(again, name) == getattr(best, name) is not None
    assert again.cost == best.cost
    assert "->" in again.diff(best) and "\n" not in again.diff(best)  # the two times, and no difference


def test_a_difference_names_what_changed_and_what_it_costs(graph, best):
    other = "R, R" if str(best.choices["relu_2"].output_layouts[0]) != "R, R" else "S(0), S(1)"
    pinned = plan_graph(graph, pin={"relu_2": other}, compare=False, **OPTIONS)
    first, *changes = best.diff(pinned, most=1000).splitlines()
    assert first == f"step {time_text(best.cost.seconds)} -> {time_text(pinned.cost.seconds)}"
    assert f"call relu_2: {best.choices['relu_2']} -> {pinned.choices['relu_2']}" in changes
    calls = {line.split(":")[0].removeprefix("call ") for line in changes if line.startswith("call ")}
    assert calls == {name for name in best.choices if str(best.choices[name]) != str(pinned.choices[name])}
    assert best.diff(pinned, most=1).splitlines()[1:] == [changes[0], f"... and {len(changes) - 1} more"]


def test_plans_of_other_graphs_are_not_compared(best):
    other = sw.plan(torch.mm, (torch.rand(64, 64), torch.rand(64, 64)), training=False, **OPTIONS)
    with pytest.raises(sw.UsageError, match="plans of different graphs: Deep and mm"):
        best.diff(other)


@pytest.mark.parametrize(
    "pin",
    [
        "S(0), R",
        Layout.parse("R, S(1)", sw.Mesh.parse("dp=2,tp=2")),
        (Shard(0), Replicate()),
        {"dp": Shard(0)},
        {"tp": "R"},
    ],
)
def test_a_plan_with_a_pin_of_any_form_survives_json(pin, tmp_path):
    plan = sw.plan(
        torch.sin, (torch.rand(64, 64),), training=False, pin={"args.0": pin}, compare=False, **OPTIONS
    )
    plan.save(tmp_path / "plan.json")
    again = sw.Plan.load(tmp_path / "plan.json")
    assert again == plan
    assert again.explain("sin") == plan.explain("sin")


def test_the_cost_is_the_sum_of_its_parts(best):
    cost = best.cost
    assert cost.seconds == pytest.approx(sum(cost.entries) + cost.update)
    assert cost.seconds == pytest.approx(cost.compute + cost.update + sum(cost.communication.values()))
    moves = sum(m.change.price for m in best.schedule.moves)
    assert moves == pytest.approx(sum(cost.communication.values()))


def test_layers_that_look_alike_cost_as_much_as_layers_on_their_own(graph, best):
    each = plan_graph(graph, share_layers=False, gap=0.0, **OPTIONS)
    assert each.bound <= best.cost.seconds <= each.cost.seconds * 1.01


def test_less_memory_is_kept_to_and_costs_no_less(graph, best):
    limit = int(0.97 * best.cost.peak)
    tight = plan_graph(graph, memory=limit, compare=False, time_limit=10, **OPTIONS)
    assert tight.cost.peak <= limit
    assert tight.cost.seconds >= best.bound


def test_too_little_memory_is_refused_with_what_is_needed(graph):
    needs = r"fits in 1.00 KB a device: it needs (at least [\d.]+ MB, and )?[\d.]+ MB( is enough)?$"
    with pytest.raises(DoesNotFit, match=needs) as refused:
        plan_graph(graph, memory="1KB", time_limit=8, **OPTIONS)
    assert 1000 < refused.value.at_least <= refused.value.enough


def test_bounds_and_needs_of_the_guide_s_model_are_true(make_mlp):
    """A plan of 22.055 ms fits in 20.448 MB; once a bound was above it, and too little was said to do."""
    model, (x,) = make_mlp(512, 1024, 4096)
    options = {"mesh": "dp=2,tp=4", "cluster": "laptop", "compare": False, "time_limit": 240}
    tight = sw.plan(model, (x.detach(),), memory="20.5MB", **options)
    assert tight.bound <= 22.055e-3 and tight.cost.seconds <= 22.055e-3 * (1 + GAP)
    assert tight.cost.peak <= 20_500_000
    with pytest.raises(DoesNotFit) as refused:
        sw.plan(model, (x.detach(),), memory="18.36MB", **options)
    assert 18_360_000 < refused.value.at_least <= tight.cost.peak
    enough = sw.plan(model, (x.detach(),), memory=refused.value.enough, **options)
    assert enough.cost.peak <= refused.value.enough


def test_a_time_limit_is_that_of_all_searches_together(graph, monkeypatch):
    given, begun = [], []
    real = solver.solve

    def noted(problem, **options):
        given.append(options["time_limit"])
        begun.append(time.monotonic())
        return real(problem, **options)

    for room in (_planner, _search):
        monkeypatch.setattr(room, "solve", noted)
    plan_graph(graph, time_limit=100, **OPTIONS)
    assert len(given) > 4
    assert all(at + limit <= begun[0] + 100 for at, limit in zip(begun, given, strict=True))
    assert given[0] <= 80  # some is left for the others
    assert given[-4] <= 25  # the four baselines share what is left


@pytest.mark.parametrize("count", [7, 999, 1000, 18_354_176, 20_185_088, 80_000_000_000, 15_731_265_536])
def test_an_amount_of_memory_with_all_its_digits_is_read_back(count):
    assert bytes_of(exact_bytes_text(count)) == count


def test_what_is_explained_is_what_was_chosen(best):
    text = best.explain("layers.2")
    assert "layers.2.weight float32[512, 512]" in text and "runner-up" in text
    considered = best.considered("mm")
    [chosen] = [entry for entry in considered if entry.chosen]
    assert chosen.rows == str(best.choices["mm"])
    assert chosen.seconds <= considered[0].seconds * (1 + 1e-6)  # no single change makes it cheaper


def test_what_is_considered_says_how_many_bytes_a_choice_takes():
    made = sw.plan(torch.mm, (torch.rand(8, 4), torch.rand(4, 6)), mesh="d=2", training=False)
    held = {entry.rows: entry.bytes for entry in made.considered("mm")}
    assert held["d: R, R -> R"] == 4 * (8 * 4 + 4 * 6 + 8 * 6)
    assert held["d: S(0), R -> S(0)"] == 4 * (4 * 4 + 4 * 6 + 4 * 6)
    assert held["d: S(1), S(0) -> P(sum)"] == 4 * (8 * 2 + 2 * 6 + 8 * 6)
    assert all(
        entry.bytes and f"{entry.bytes} B" in made.explain("mm") for entry in made.considered("mm")[:1]
    )


def test_of_plans_that_take_equally_long_the_smallest_is_chosen():
    model = nn.Sequential(
        *(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(32 * 32 * 32, 10)),
    )
    with torch.device("meta"):
        graph = capture(model.to("meta"), (torch.empty(64, 3, 32, 32),))
    made = plan_graph(graph, mesh="dp=4", cluster="laptop")
    equal = [each for each in made.baselines.values() if isclose(each.seconds, made.cost.seconds)]
    assert len({each.peak for each in equal}) > 1
    assert made.cost.peak == min(each.peak for each in equal)
    alone = plan_graph(graph, mesh="dp=4", cluster="laptop", compare=False)
    assert (alone.cost.seconds, alone.cost.peak) == (made.cost.seconds, made.cost.peak)
    assert alone.bound <= alone.cost.seconds <= alone.bound * (1 + 1e-6)


def test_of_equal_plans_of_one_size_that_with_fewer_collectives_is_preferred(best):
    moved = [move for move in best.schedule.moves if move.change.collectives]
    assert moved
    free = replace(best, inputs=best.inputs)
    object.__setattr__(free, "schedule", replace(best.schedule, entries=()))
    object.__setattr__(free, "cost", best.cost)
    assert preferred(best, free) is free and preferred(free, best) is free
    assert preferred(best, replace(free)) is best  # equal in everything: the first


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"memory": "80GB"}, "options.memory: expected a whole number, at least 0, found '80GB'"),
        ({"bound": []}, "options.bound: expected a number, at least 0, found a list of 0"),
        ({"optimizer": 3}, "options.optimizer: expected text, found 3"),
        ({"baselines": {"FSDP": {"peak": 3}}}, "options.baselines.FSDP: expected the field 'seconds'"),
    ],
)
def test_damaged_options_are_named(best, options, sentence):
    document = best.to_json()
    with pytest.raises(sw.UsageError, match=f"^{sentence}"):
        sw.Plan.from_json({**document, "options": {**document["options"], **options}})


@pytest.mark.parametrize("kind", ["input", "output", "copy", "call"])
def test_a_choice_that_is_not_known_any_more_is_named(best, kind):
    odd = Layout.parse("P(max), R", best.mesh)
    name = best.graph.inputs[0].name
    if kind == "input":
        changed = replace(best, inputs={**best.inputs, name: odd})
    elif kind == "output":
        changed = replace(best, outputs=(odd, *best.outputs[1:]))
    elif kind == "copy":
        items = Explainer(best).items
        copied = next(item for item in items.all if isinstance(item, CopyItem))
        changed = replace(best, copies=(Copy(copied.ref, odd, copied.users),))
    else:
        rows = (Row.parse("P(max) -> P(max)"), Row.parse("R -> R"))
        changed = replace(best, choices={**best.choices, "relu": Choice(best.mesh, rows, "book")})
    with pytest.raises(
        sw.UsageError, match=r"the plan's choice for .* is none of those known now: .*P\(max\)"
    ):
        changed.explain("relu")


def test_debug_prints_what_was_considered_for_every_node(capsys):
    made = sw.plan(torch.mm, (torch.rand(64, 64), torch.rand(64, 64)), training=False, debug=True, **OPTIONS)
    said = capsys.readouterr().out
    assert "%mm = aten.mm.default" in said and f"* {made.choices['mm']}: compute" in said


def test_a_place_that_is_not_there_is_refused(best):
    with pytest.raises(sw.UsageError, match="'nowhere' is not a module, node, parameter or input"):
        best.explain("nowhere")


def test_clashing_pins_are_named(graph):
    pins = {"x": "S(0), R", "relu": "P(max), R", "layers.1.*": "R, S(0)"}
    with pytest.raises(sw.UsageError, match=r"meets these pins together: relu: P\(max\), R$"):
        plan_graph(graph, pin=pins, **OPTIONS)


@pytest.mark.parametrize(
    ("pins", "complaint"),
    [
        ({"y": "R, R"}, "pin 'y' matches no parameter"),
        ({"x": "S(2), R"}, "shards dim 2 of x, which has shape"),
        ({"x": "R"}, "has 2 axes but 1 placements"),
        ({"x": {"pp": "R"}}, "pin 'x': mesh dp=2,tp=2 has no axis 'pp'"),
        ({"x": {"tp": Shard(-1)}}, r"pin 'x': placement 'S\(-1\)' has a negative dim"),
        (
            {"x": Layout.parse("S(0)", "dp=4")},
            "pin 'x': it is a layout on mesh dp=4, and the plan is for dp=2,tp=2",
        ),
    ],
)
def test_pins_that_cannot_be_are_refused(graph, pins, complaint):
    with pytest.raises(sw.UsageError, match=complaint):
        plan_graph(graph, pin=pins, **OPTIONS)


@pytest.mark.parametrize(
    "memory", ["much", "80 apples", "GB", "infGB", "-1GB", -1, float("nan"), float("inf")]
)
def test_memory_is_an_amount(graph, memory):
    with pytest.raises(sw.UsageError, match="is not a byte count"):
        plan_graph(graph, memory=memory, **OPTIONS)


@pytest.mark.parametrize(
    ("text", "size"), [("80GB", 80e9), ("1.5 MiB", 1.5 * 2**20), ("2TiB", 2**41), ("7b", 7), (9, 9)]
)
def test_memory_has_units(text, size):
    assert bytes_of(text) == size


def test_an_operator_without_rows_is_replicated_and_named():
    @torch.library.custom_op("shardwise_tests::ranked", mutates_args=())
    def ranked(x: torch.Tensor) -> torch.Tensor:
        return x.flatten().sort().values.square().cumsum(0).view(x.shape)

    @ranked.register_fake
    def _(x):
        return torch.empty_like(x)

    made = sw.plan(lambda x: ranked(x) + 1, (torch.rand(8, 8),), training=False, **OPTIONS)
    assert made.choices["ranked"].source == "replicated"
    assert (
        "replicated for want of rows" in made.summary() and "shardwise_tests.ranked.default" in made.summary()
    )


def test_a_plan_keeps_what_its_baselines_cost(graph, best):
    planner = Planner(graph, best.mesh, best.cluster)
    tried = planner.baselines(Pins(planner.mesh))
    kept = best.baselines
    assert {name: line.seconds for name, line in kept.items()} == {
        name: made.cost.seconds for name, made in tried.items()
    }
    assert list(kept) == ["data parallel", "FSDP", "tensor parallel", "FSDP x TP"]
    alone = planner.plan({}, compare=False)
    assert all(alone.cost.seconds <= line.seconds * (1 + GAP) for line in kept.values())


def test_a_baseline_that_beats_a_search_cut_short_is_the_plan(graph):
    planner = Planner(graph, sw.Mesh.parse("d=4"), sw.Cluster.of("laptop"))
    tried = planner.baselines(Pins(planner.mesh)).values()
    poor = max(tried, key=lambda made: made.cost.seconds)
    cheapest = min(tried, key=lambda made: made.cost.seconds)
    made = cheapest_that_fits(poor, [None, *tried], cheapest.cost.peak)
    assert made.cost.seconds == cheapest.cost.seconds < poor.cost.seconds
    assert made.bound == min(poor.bound, made.cost.seconds)
    assert cheapest_that_fits(poor, tried, memory=0) is poor


def test_in_data_parallelism_calls_see_whole_weights(graph):
    planner = Planner(graph, sw.Mesh.parse("d=4"), sw.Cluster.of("laptop"))
    fsdp = planner.baselines(Pins(planner.mesh))["FSDP"]
    weights = {i.name for i in graph.with_role("parameter")}
    assert all(str(fsdp.inputs[name]).startswith("S(") for name in weights)
    for entry in fsdp.schedule.entries:
        if isinstance(entry, Compute):
            for value, layout in zip(entry.inputs, entry.choice.input_layouts, strict=True):
                assert value.ref.name not in weights or layout.is_replicated
