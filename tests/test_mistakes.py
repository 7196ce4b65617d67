"""What is of the wrong type is refused in one sentence by every public function: what, where, and what is right."""

import pytest
import torch
from torch import nn

import shardwise as sw
from shardwise.propagation import Program
from shardwise.solver import read_problem

X = torch.rand(2, 4)
MODEL = nn.Linear(4, 4)
ROW = "S(0) -> S(0)"
LAPTOP = sw.Cluster.preset("laptop")


@pytest.fixture(scope="module")
def plan():
    return sw.plan(MODEL, (X,), mesh="d=2", cluster="laptop", compare=False)


def planned(**options):
    return sw.plan(MODEL, (X,), **{"mesh": "d=2", "cluster": "laptop", **options})


MISTAKES = [
    # operators
    (lambda: sw.discover("torch.mm", X), "'torch.mm' is not an operator: give a function such as torch.mm"),
    (lambda: sw.discover(torch.neg, X, policy=3), "torch.neg raises .* got an unexpected keyword"),
    (lambda: sw.Policy(partials=3), "partials is 3: give a tuple such as"),
    (lambda: sw.Policy(ranks=3), "ranks is 3: give a tuple such as"),
    (lambda: sw.check(torch.neg, 3, X), "row is 3: give text such as 'S"),
    (lambda: sw.check(3, ROW, X), "3 is not an operator"),
    (lambda: sw.synthesize(3), "3 is not an operator"),
    (lambda: sw.synthesize(torch.neg, [X]), r"torch.neg\(.*\) does not run"),
    (lambda: sw.Policy(examples=3), "examples is 3: give a list of calls"),
    (lambda: sw.Policy(examples=[X]), "an example is not a call: give a tuple of its arguments and a dict"),
    (lambda: sw.Policy(values=3), "values is 3: give a dict such as"),
    (lambda: sw.adversarial(torch.neg), "pattern is of type .*: give a name with"),
    (lambda: sw.rule(3), "the book has no operator '3'"),
    (lambda: sw.rows(3, X), "unknown op 3"),
    (lambda: sw.install(replace=3), "replace=3 is not known"),
    (lambda: sw.audit(3), "pattern is 3: give the name of an OpInfo or overload"),
    (lambda: sw.audit("aten.any.default", jobs="2"), "jobs is '2': give a whole number"),
    (lambda: sw.audit("aten.any.default", samples=0), "samples is 0: give at least 1"),
    # models
    (lambda: sw.capture(3, (X,)), "cannot capture 3: give an nn.Module or a function"),
    (
        lambda: sw.capture(MODEL, X),
        r"args is of type Tensor: give a tuple of the call's arguments, such as \(x,\)",
    ),
    (lambda: sw.capture(MODEL, (X,), 3), "kwargs is 3: give a dict"),
    (lambda: sw.capture(MODEL, (X,), loss=3), "loss is 3: give the name of an output"),
    (lambda: sw.plan(MODEL, X, mesh="d=2"), "args is of type Tensor: give a tuple"),
    (lambda: sw.plan(MODEL, (X,), 3, mesh="d=2"), "kwargs is 3: give a dict"),
    (
        lambda: sw.plan(MODEL, (X,)),
        r"plan needs a mesh: write shardwise.plan\(model, args, mesh='dp=2,tp=2'\)$",
    ),
    (
        lambda: sw.parallelize(MODEL, (X,)),
        r"parallelize needs a mesh or a plan: write shardwise.parallelize\(model, args, mesh='dp=2,tp=2'\)$",
    ),
    (
        lambda: sw.verify(MODEL, (X,)),
        r"verify needs a plan: write shardwise.verify\(model, args, plan=shardwise",
    ),
    (
        lambda: sw.simulate(MODEL, (X,)),
        r"simulate needs a plan: write shardwise.simulate\(model, args, plan=",
    ),
    (lambda: sw.shard_map(torch.neg), "shard_map needs a mesh: write shardwise.shard_map"),
    (lambda: planned(mesh=3), "3 is not a mesh: give a Mesh"),
    (lambda: planned(cluster=3), "unknown cluster '3': use one of"),
    (lambda: planned(memory=[]), r"memory \[\] is not a byte count"),
    (lambda: planned(optimizer=3), "unknown optimizer 3: use none"),
    (lambda: planned(time_limit="1"), "time_limit is '1': give a number"),
    (lambda: planned(pin=3), "pin is 3: give a dict such as"),
    (lambda: planned(pin={3: "R"}), "a name in pin is 3: give a name or a pattern"),
    (lambda: planned(pin={"weight": 3}), "pin 'weight' is 3: give a layout such as"),
    (lambda: sw.parallelize(MODEL, (X,), mesh="d=2"), "there is no process group"),
    (lambda: sw.shard_map(3, mesh="d=2"), "3 cannot be run: give a function"),
    (lambda: sw.shard_map(torch.neg, mesh=3), "3 is not a mesh: give a Mesh"),
    (lambda: sw.shard_map(torch.neg, mesh="d=2", in_specs=3)(X), "pin .* is 3: give a layout"),
    (lambda: sw.redistribute(X, "R"), "tensor is of type Tensor: give a DTensor"),
    (lambda: sw.transfer(X, "d=2", "R"), "cannot transfer Tensor: give a DTensor"),
    # what stands by itself
    (
        lambda: sw.propagate(3),
        "3 cannot be propagated through: give a function, a model",
    ),
    (lambda: sw.propagate(Program("d=2"), sweeps="1"), "sweeps is '1': give a whole number"),
    (lambda: Program("d=2").input("x", 3), "the shape of 'x' is 3: give a tuple"),
    (lambda: sw.solve(3), "problem is 3: give a Problem"),
    (lambda: read_problem(3), "path is 3: give the name of a file"),
    (lambda: sw.Mesh.parse(3), "mesh is 3: give text such as 'dp=2,tp=4'"),
    (lambda: sw.Mesh("d", 2), "names is 'd': give a tuple such as"),
    (lambda: sw.Mesh(("d",), ("2",)), "the size of mesh axis 'd' is '2': give a whole number"),
    (lambda: sw.Cluster("mine", 3, ()), "device is 3: give a Device"),
    (lambda: sw.Cluster("mine", LAPTOP.device, 3), "levels is 3: give a tuple of Levels"),
    (lambda: sw.Cluster("mine", LAPTOP.device, (3,)), "a level is 3: give a Level"),
    (lambda: sw.Sharding.parse(3, "d=2"), "sharding is 3: give text such as"),
    (lambda: sw.Sharding("d=2", ()), "the mesh of a sharding is 'd=2': give a Mesh"),
    (lambda: sw.Sharding(sw.Mesh.parse("d=2"), 3), "dims is 3: give a tuple"),
    (lambda: sw.Row.parse(3), "row is 3: give text such as"),
    (lambda: sw.Row(3, 4), "a row has a tuple of placements on each side, not 3"),
    (lambda: sw.Row((), (), "odd"), "unknown shards 'odd' of a row: use one of any, nonempty, even"),
    (lambda: sw.Rule.from_yaml(3), "rule is 3: give the text of its YAML"),
    (lambda: sw.Plan.load(3), "path is 3: give the name of a file"),
    (lambda: sw.Graph.load(3), "path is 3: give the name of a file"),
]


@pytest.mark.parametrize(("mistake", "sentence"), MISTAKES, ids=[sentence for _, sentence in MISTAKES])
def test_a_mistake_is_one_sentence(mistake, sentence):
    with pytest.raises(sw.UsageError, match=f"^{sentence}") as raised:
        mistake()
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("mistake", "sentence"),
    [
        (lambda plan: sw.verify(MODEL, X, plan=plan), "args is of type Tensor: give a tuple"),
        (lambda plan: sw.verify(MODEL, (X,), 3, plan=plan), "kwargs is 3: give a dict"),
        (lambda plan: sw.verify(MODEL, (X,), plan="plan.json"), "plan is 'plan.json': give a Plan"),
        (lambda plan: sw.verify(MODEL, (X,), plan=plan, steps="1"), "steps is '1': give a whole number"),
        (lambda plan: sw.verify(MODEL, (X,), plan=plan, seed="1"), "seed is '1': give a whole number"),
        (lambda plan: sw.simulate(MODEL, (X,), plan=MODEL), "plan is of type Linear: give a Plan"),
        (lambda plan: sw.simulate(MODEL, X, plan=plan), "args is of type Tensor: give a tuple"),
        (lambda plan: sw.simulate(3, (X,), plan=plan), "cannot capture 3"),
        (lambda plan: sw.parallelize(MODEL, (X,), plan="plan.json"), "plan is 'plan.json': give a Plan"),
        (lambda plan: plan.save(3), "path is 3: give the name of a file"),
        (lambda plan: plan.graph.save(3), "path is 3: give the name of a file"),
        (lambda plan: plan.explain(3), "3 is not a module, node, parameter or input"),
    ],
)
def test_a_mistake_beside_a_plan_is_one_sentence(plan, mistake, sentence):
    with pytest.raises(sw.UsageError, match=f"^{sentence}"):
        mistake(plan)
