"""Pipelines: stages with plans that agree, micro-batches in flight, and what is refused."""

from itertools import combinations, pairwise

import pytest
import torch
from torch import nn

import shardwise as sw
from shardwise.graph import Segments
from shardwise.mesh import Cluster, Mesh
from shardwise.planning import Pipeline, Plan, Planner, inner_mesh, load_plan, plan_pipeline
from shardwise.planning._pipelining import Cutting
from shardwise.planning._stages import Stages
from shardwise.planning._stretches import Stretches
from tests.staged import MODELS

LAPTOP = Cluster.of("laptop")


@pytest.fixture(scope="module")
def tied() -> sw.Graph:
    model, args = MODELS["tied"]()
    return sw.capture(model, args, boundaries=True)


def planned(graph: sw.Graph, mesh: str = "pp=2,tp=2", **options) -> Pipeline:
    given = {"cluster": LAPTOP, "memory": 10**9, "micro_batches": 4, "confirm": False, **options}
    return plan_pipeline(graph, mesh=Mesh.of(mesh), **given)


@pytest.fixture(scope="module")
def pipeline(tied) -> Pipeline:
    return planned(tied)


def test_stages_meet_in_one_layout(pipeline):
    for stage, after in pairwise(pipeline.stages):
        given = {o.target: layout for o, layout in zip(stage.graph.outputs, stage.outputs, strict=True)}
        for entry in after.graph.with_role("user_input"):
            if entry.target in given:
                assert after.inputs[entry.name] == given[entry.target]


def test_a_tied_parameter_has_one_layout(pipeline):
    homes = [
        plan.home(entry.name)
        for plan in pipeline.stages
        for entry in plan.graph.with_role("parameter")
        if entry.target == "embedding.weight"
    ]
    assert len(homes) == 2 and homes[0] == homes[1]


def test_a_step_takes_as_long_as_its_schedule_and_no_less_than_its_bound(pipeline):
    assert pipeline.bound is not None
    assert pipeline.bound <= pipeline.seconds * (1 + 1e-9)
    for busy in pipeline.time.busy:
        assert busy <= pipeline.seconds


def stages_of(graph: sw.Graph, mesh: str, memory: int, micro_batches: int) -> Stages:
    return Stages(
        *(Stretches(graph), Mesh.of(mesh), LAPTOP),
        memory=memory,
        pins={},
        of_planner={"optimizer": "adam", "micro_batches": micro_batches},
        of_search={"gap": 0.0},
    )


def every_cut(cutting: Cutting) -> dict[tuple[int, ...], Pipeline]:
    """Every cut of a graph whose stages fit, with the plans of stages of which the best cut was made."""
    planner, found = cutting.planner, {}
    for inner in combinations(range(1, len(planner)), cutting.stages - 1):
        cuts = (0, *inner, len(planner))
        plans = [
            planner.plan(begin, end, number, cutting.share)
            for (begin, end), number in zip(pairwise(cuts), cutting.in_flight, strict=True)
        ]
        stages = tuple(plan for plan in plans if plan is not None)
        if len(stages) == len(plans):
            where = planner.segments.graph.name, planner.mesh, LAPTOP
            found[cuts] = Pipeline(
                *where, cutting.schedule, cutting.micro_batches, cuts, stages, planner.memory
            )
    return found


def test_the_cut_is_the_best_of_all(tied):
    """Of all places to cut at, with the same plans of stages."""
    cutting = Cutting(stages_of(tied, "pp=2,tp=2", 10**9, 4), "1F1B", 2, 4)
    seconds = [made.seconds for made in every_cut(cutting).values()]
    assert cutting.best().seconds == pytest.approx(min(seconds))
    assert len(set(seconds)) > 2


@pytest.mark.parametrize("name", list(MODELS))
@pytest.mark.parametrize(
    ("mesh", "schedule"),
    [
        ("pp=3", "1F1B"),
        pytest.param("pp=2", "1F1B", marks=pytest.mark.long),
        pytest.param("pp=2", "ZBVZeroBubble", marks=pytest.mark.long),
        pytest.param("pp=3", "GPipe", marks=pytest.mark.long),
    ],
)
def test_no_cut_of_a_small_graph_is_faster_where_memory_binds(name, mesh, schedule):
    """With all memory, and with as little as excludes some cuts."""
    model, args = MODELS[name]()
    graph = sw.capture(model, args, boundaries=True)
    each = 2 if schedule == "ZBVZeroBubble" else 1  # stages of a place, with equal shares of its memory
    count = Mesh.of(mesh)["pp"] * each
    cutting = Cutting(stages_of(graph, mesh, 10**9, 6), schedule, count, 6)
    free = every_cut(cutting)
    assert cutting.best().seconds == pytest.approx(min(made.seconds for made in free.values()))
    needs = sorted(max(plan.cost.peak for plan in made.stages) for made in free.values())
    memory = needs[(len(needs) - 1) // 2] * each
    tight = Cutting(stages_of(graph, mesh, memory, 6), schedule, count, 6)
    fitting = every_cut(tight)
    assert 0 < len(fitting) < len(free) or len(free) == 1
    made = tight.best()
    assert made.seconds == pytest.approx(min(each.seconds for each in fitting.values()))
    assert made.peak <= memory


def test_it_can_be_saved_and_loaded(pipeline, tmp_path):
    path = tmp_path / "pipeline.json"
    pipeline.save(path)
    again = load_plan(path)
    assert isinstance(again, Pipeline)
    assert (again.cuts, again.seconds, again.held) == (pipeline.cuts, pipeline.seconds, pipeline.held)


def test_stages_that_do_not_fit_together_are_refused(pipeline):
    document = pipeline.to_json()
    document["stages"] = document["stages"][::-1]
    with pytest.raises(sw.UsageError, match="stage 1 does not take what stage 0 gives"):
        Pipeline.from_json(document)


def test_schedules_have_stages_of_their_own(tied):
    split = planned(tied, schedule="ZBVZeroBubble", mesh="pp=2")
    assert len(split.stages) == 4 and split.place_of_stage == (0, 1, 1, 0) and split.splits_backward
    best = planned(tied, schedule="auto", mesh="pp=2")
    assert best.seconds <= min(split.seconds, planned(tied, mesh="pp=2").seconds)


def test_alike_stages_have_one_plan():
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(4)))
    graph = sw.capture(model, (torch.rand(4, 8),), boundaries=True)
    made = planned(graph, "pp=4", schedule="1F1B")
    one, other = made.stages[1], made.stages[2]
    assert [choice.rows for choice in one.choices.values()] == [c.rows for c in other.choices.values()]
    assert {n.name for n in one.graph.nodes}.isdisjoint(n.name for n in other.graph.nodes)
    assert other == Plan.from_json(other.to_json())


@pytest.fixture(scope="module")
def stage(tied) -> sw.Graph:
    return Segments(tied).stage(1, 3)


class TestInFlight:
    """What a pass keeps for its backward is held for every pass in flight."""

    def test_memory_grows_by_what_is_kept(self, stage):
        plans = [
            Planner(stage, inner_mesh(Mesh.of("pp=2")), LAPTOP, in_flight=number).plan({}, compare=False)
            for number in (1, 2, 4)
        ]
        one, two, four = (plan.cost.peak for plan in plans)
        assert two > one and four - two == 2 * (two - one)

    def test_no_plan_that_fits_is_lost(self, stage):
        """With a limit of what the cheapest plan holds, it is found; with one byte less, none that holds more is."""
        planner = Planner(stage, Mesh.of("tp=2"), LAPTOP, in_flight=3)
        free = planner.plan({}, compare=False, gap=0.0)
        exact = planner.within(free.cost.peak).plan({}, compare=False, gap=0.0)
        assert exact.cost.seconds == pytest.approx(free.cost.seconds)
        less = planner.within(free.cost.peak - 1).plan({}, compare=False, gap=0.0)
        assert less.cost.peak < free.cost.peak and less.cost.seconds >= free.cost.seconds


class TestRefusals:
    def test_fewer_parts_than_stages(self, tied):
        with pytest.raises(
            sw.UsageError, match="has 5 parts between which it can be cut, fewer than 8 stages"
        ):
            planned(tied, "pp=8", micro_batches=8)

    def test_stages_that_do_not_fit(self, tied):
        with pytest.raises(sw.UsageError, match="no cut of Tied into 2 stages"):
            planned(tied, memory=1000, of_search={"time_limit": 1.0})

    def test_too_few_micro_batches(self, tied):
        with pytest.raises(sw.UsageError, match="micro-batches"):
            planned(tied, micro_batches=1)

    def test_unknown_schedules(self, tied):
        with pytest.raises(sw.UsageError, match="unknown schedule 'fast': use one of 1F1B"):
            planned(tied, schedule="fast")

    def test_what_does_not_go_with_stages(self):
        model, args = MODELS["frozen"]()
        with pytest.raises(sw.UsageError, match="training=False cannot be combined with the axis pp"):
            sw.plan(model, args, mesh="pp=2", training=False)


def test_it_shows_its_stages_and_lanes(pipeline):
    text = str(pipeline)
    assert "2 stages by 1F1B, 4 micro-batches" in text
    assert "embedding to" in text or "embedding  " in text
    lane = next(line for line in text.splitlines() if line.startswith("  pp=1"))
    assert "F" in lane and "BB" in lane and "." in lane
