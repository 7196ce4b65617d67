"""Constraints in the middle, barriers, groups, priorities: what each of them does to a small program."""

import pytest
import torch

from shardwise import Mesh, Sharding, discover, propagate
from shardwise.errors import UsageError
from shardwise.propagation import LEVELS, FactorRule, Program, Template, kind_of
from shardwise.propagation._run import _Run
from shardwise.propagation._state import State

MESH = Mesh.parse("a=2,b=2,c=2")


def chain(**shardings):
    """x -> y -> z, pointwise."""
    program = Program(MESH)
    program.input("x", (8, 8), shardings.get("x"))
    program.op("... -> ...", ["x"], name="y", sharding=shardings.get("y"))
    program.op("... -> ...", ["y"], name="z", sharding=shardings.get("z"))
    return program


def found(program, level="user-priority"):
    return {name: str(sharding) for name, sharding in propagate(program, level=level).shardings.items()}


@pytest.mark.parametrize("level", LEVELS)
def test_axes_move_forward_backward_and_sideways(level):
    assert found(chain(x="[{a}, {}]"), level)["z"] == "[{a, ?}, {?}]"
    assert found(chain(z="[{a}, {}]"), level)["x"] == "[{a, ?}, {?}]"
    program = Program(MESH)
    program.input("x", (8,), "[{a}]")
    program.input("y", (8,))
    program.op("i, i -> i", ["x", "y"], name="z")
    assert found(program, level) == {"x": "[{a}]", "y": "[{a, ?}]", "z": "[{a, ?}]"}


@pytest.mark.parametrize("level", LEVELS)
def test_a_value_with_several_users_spreads_from_any_of_them(level):
    program = chain(z="[{a, ?}, {?}]")
    program.op("i j -> j i", ["y"], name="other")
    assert found(program, level)["other"] == "[{?}, {a, ?}]"


@pytest.mark.parametrize("end", ["first", "last"])
def test_the_work_grows_with_the_depth_and_no_faster(end):
    """Every value changes once and the number of sweeps does not depend on the depth, from either end."""
    sweeps = set()
    for depth in (10, 300):
        program = Program(MESH)
        value = program.input("x", (8, 8), "[{a}, {}]" if end == "first" else None)
        for _ in range(depth):
            value = program.op("i j, j k -> i k", [value, program.input(f"w{len(program.values)}", (8, 8))])
        program.result(value, "[{a}, {}]" if end == "last" else None)
        outcome = propagate(program)
        assert outcome.updates == depth + 1
        sweeps.add(outcome.sweeps)
    assert len(sweeps) == 1


def test_one_sweep_may_stop_before_the_fixed_point_and_says_so():
    """Both places of a value in one operation ask for different axes: the last one gets its way first."""
    program = Program(MESH)
    program.input("x", (8, 8))
    program.op("m k, k n -> m n", ["x", "x"], name="y", sharding="[{a}, {b}]")
    once, fully = propagate(program, level="basic", sweeps=1), propagate(program, level="basic")
    assert (str(once["x"]), once.complete) == ("[{?}, {b, ?}]", False)
    assert once.summary.startswith("stopped before the fixed point")
    assert (str(fully["x"]), fully.complete) == ("[{a, ?}, {b, ?}]", True)
    assert propagate(program, level="basic", sweeps=5).complete
    with pytest.raises(UsageError, match="sweeps is 0: it must be at least 1"):
        propagate(program, sweeps=0)


def test_closed_dims_block_and_open_dims_extend():
    assert found(chain(x="[{a}, {}]", y="[{}, {}]"))["y"] == "[{}, {}]"
    assert found(chain(x="[{a, b}, {}]", y="[{a, ?}, {?}]"))["y"] == "[{a, b, ?}, {?}]"
    assert found(chain(x="[{a, b}, {}]", y="[{b, ?}, {?}]"))["y"] == "[{b, ?}, {?}]"


def test_replicated_axes_are_not_used():
    assert (
        found(chain(x="[{a, b}, {}]", y="[{?}, {?}] replicated={b}"))["y"] == "[{a, ?}, {?}] replicated={b}"
    )


def test_sub_axes_follow_the_factors_of_a_view():
    program = Program("a=4")
    program.input("x", (8,), "[{a}]")
    program.op("(p q) -> p q", ["x"], name="y", shape=(2, 4))
    assert found(program)["y"] == "[{a:(1)2, ?}, {a:(2)2, ?}]"
    back = Program("a=4")
    back.input("x", (2, 4), "[{a:(1)2}, {a:(2)2}]")
    back.op("p q -> (p q)", ["x"], name="y")
    assert found(back)["y"] == "[{a, ?}]"


def test_an_output_that_is_not_returned_is_left_out():
    program = Program(MESH)
    program.input("x", (8,), "[{a}]")
    program.value("y", (8,))
    program.node(FactorRule.parse("([i])->(-, [i]) {i=8}"), ["x"], ["y"])
    assert found(program)["y"] == "[{a, ?}]"


# -- conflicts


def conflict(left, right, kind=None):
    program = Program(MESH)
    program.input("x", (8, 8), left)
    program.input("y", (8, 8), right)
    program.op("i j, i j -> i j", ["x", "y"], name="z", kind=kind)
    return program


def test_basic_stops_at_a_conflict_and_aggressive_resolves_it():
    program = conflict("[{a}, {}]", "[{}, {a}]")
    assert found(program, "basic")["z"] == "[{?}, {?}]"
    assert found(program, "aggressive")["z"] == "[{a, ?}, {?}]"


def test_along_one_factor_only_what_agrees_is_taken():
    for level in LEVELS:
        assert found(conflict("[{a, b}, {}]", "[{a, c}, {}]"), level)["z"] == "[{a, ?}, {?}]"


def test_the_larger_source_wins_then_in_pointwise_operations_the_one_split_more():
    program = Program(MESH)
    program.input("x", (8, 8), "[{a}, {}]")
    program.input("y", (8, 32), "[{}, {a}]")
    program.op("m k, k n -> m n", ["x", "y"], name="z")
    assert found(program, "aggressive")["z"] == "[{?}, {a, ?}]"
    assert found(conflict("[{a}, {}]", "[{}, {a, b}]"), "aggressive")["z"] == "[{?}, {a, b, ?}]"
    assert found(conflict("[{a}, {}]", "[{}, {a, b}]", kind="other"), "aggressive")["z"] == "[{a, ?}, {?}]"


def test_pointwise_operations_go_before_contractions():
    """The output's sharding reaches the matmul through the pointwise chain before the input's does."""
    program = Program(MESH)
    program.input("x", (8, 8), "[{a, ?}, {?}]")
    program.input("w", (8, 8))
    program.op("m k, k n -> m n", ["x", "w"], name="y")
    program.op("... -> ...", ["y"], name="z")
    program.result("z", "[{?}, {a, ?}]")
    assert found(program, "aggressive")["y"] == "[{a, ?}, {?}]"
    assert found(program, "op-priority")["y"] == "[{?}, {a, ?}]"


def test_a_pass_through_factor_goes_before_a_contracted_one():
    program = Program(MESH)
    program.input("x", (32, 1024))
    program.input("w", (1024, 16), "[{a, ?}, {b, ?}]")
    program.op("m k, k n -> m n", ["x", "w"], name="y", sharding="[{a, ?}, {b, ?}]")
    assert found(program, "op-priority")["x"] == "[{a, ?}, {?}]"


def test_broadcasts_pass_backward_before_they_pass_forward():
    program = Program(MESH)
    program.input("x", (32,), "[{a}]")
    program.op("i -> i j", ["x"], name="y", shape=(32, 16))
    program.op("i j -> i j k", ["y"], name="z", shape=(32, 16, 8))
    program.result("z", "[{}, {a}, {}]")
    assert found(program, "op-priority")["y"] == "[{?}, {a, ?}]"


# -- priorities


def test_a_stronger_priority_goes_first():
    program = Program(MESH)
    program.input("x", (8, 8), "[{a}p1, {}]")
    program.input("y", (8, 8), "[{b}p0, {}]")
    program.op("i j, i j -> i j", ["x", "y"], name="z")
    assert found(program)["z"] == "[{b, ?}, {?}]"
    program = conflict("[{a}p0, {}]", "[{}, {a}p1]")
    assert found(program)["z"] == "[{a, ?}, {?}]"
    assert found(conflict("[{a}p1, {}]", "[{}, {a}p0]"))["z"] == "[{?}, {a, ?}]"


def test_a_weaker_priority_is_not_overridden_while_it_waits():
    program = chain(x="[{a, ?}p1, {?}]", z="[{b, ?}p0, {?}]")
    outcome = found(program)
    assert (outcome["x"], outcome["y"], outcome["z"]) == ("[{a, ?}, {?}]", "[{b, ?}, {?}]", "[{b, ?}, {?}]")


def test_data_then_tensor_parallelism_by_priority():
    """Batch first; then the weights' axis, where the batch has not taken it."""
    program = Program("a=2")
    program.input("x", (8, 8), "[{a}p0, {?}]")
    program.input("w", (8, 16), "[{?}, {a}p1]")
    program.op("m k, k n -> m n", ["x", "w"], name="y")
    assert found(program)["y"] == "[{a, ?}, {?}]"


# -- constraints


@pytest.mark.parametrize("level", LEVELS)
def test_a_constraint_pins_its_users_and_propagates_to_its_operand(level):
    program = Program(MESH)
    x = program.input("x", (8, 8))
    y = program.op("... -> ...", [x], name="y")
    pinned = program.constrain(y, "[{a}, {}]", name="pinned")
    program.op("... -> ...", [pinned], name="z")
    assert found(program, level) == {
        "x": "[{a, ?}, {?}]",
        "y": "[{a, ?}, {?}]",
        "pinned": "[{a}, {}]",
        "z": "[{a, ?}, {?}]",
    }


def test_a_constraint_that_differs_leaves_each_side_its_own():
    program = Program(MESH)
    x = program.input("x", (8, 8), "[{a}, {}]")
    pinned = program.constrain(x, "[{b}, {}]", name="pinned")
    program.op("... -> ...", [pinned], name="z")
    assert found(program) == {"x": "[{a}, {}]", "pinned": "[{b}, {}]", "z": "[{b, ?}, {?}]"}


def test_an_open_constraint_may_be_extended():
    program = Program(MESH)
    x = program.input("x", (8, 8), "[{a, b}, {c}]")
    program.constrain(x, "[{a, ?}, {}]", name="pinned")
    assert found(program)["pinned"] == "[{a, b, ?}, {}]"


# -- barriers


def around_barrier(direction, x=None, z=None):
    program = Program(MESH)
    program.input("x", (8,), x)
    program.barrier("x", direction, name="y")
    program.op("... -> ...", ["y"], name="z", sharding=z)
    return program


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("direction", "forward", "backward"),
    [("both", True, True), ("forward", True, False), ("backward", False, True), ("none", False, False)],
)
def test_a_barrier_lets_through_what_it_allows(level, direction, forward, backward):
    after = found(around_barrier(direction, x="[{a}]"), level)
    assert after["z"] == ("[{a, ?}]" if forward else "[{?}]")
    before = found(around_barrier(direction, z="[{a}]"), level)
    assert before["x"] == ("[{a, ?}]" if backward else "[{?}]")


# -- groups


@pytest.mark.parametrize("level", LEVELS)
def test_a_group_shares_what_one_of_its_values_gets(level):
    program = Program(MESH)
    program.input("x", (8, 8), "[{a}, {}]")
    program.op("... -> ...", ["x"], name="y")
    program.input("far", (8, 8))
    program.op("i j -> j i", ["far"], name="turned")
    program.group("y", "far")
    assert found(program, level) == {
        "x": "[{a}, {}]",
        "y": "[{a, ?}, {?}]",
        "far": "[{a, ?}, {?}]",
        "turned": "[{?}, {a, ?}]",
    }


def test_a_group_works_across_a_barrier():
    program = around_barrier("none", x="[{a}]")
    program.group("y", "x")
    assert found(program)["z"] == "[{a, ?}]"


def test_a_group_begins_with_what_is_given_to_any_member():
    program = Program(MESH)
    program.input("x", (8, 8), "[{a, ?}, {?}]")
    program.input("y", (8, 8), "[{?}, {b, ?}]")
    program.input("z", (8, 8))
    program.group("x", "y")
    program.group("z", "y")
    assert set(found(program).values()) == {"[{a, ?}, {b, ?}]"}


def test_a_group_whose_values_are_given_contradicting_shardings_is_refused():
    for other in ("[{b, ?}, {?}]", "[{}, {?}]", "[{?}, {a}]", "[{?}, {?}] replicated={a}"):
        program = Program(MESH)
        program.input("x", (8, 8), "[{a, ?}, {?}]")
        program.input("y", (8, 8), other)
        program.group("x", "y")
        with pytest.raises(UsageError, match="the values x, y must share a sharding but have"):
            propagate(program)


# -- rules found by experiment


def test_rules_that_were_discovered_propagate():
    """A perceptron whose rules nobody wrote: rows from experiments, as factors."""
    x, w, v = torch.randn(8, 4), torch.randn(4, 12), torch.randn(12, 4)
    program = Program("dp=2,tp=4")
    program.input("x", x.shape, "[{dp}, {}]")
    program.input("w", w.shape, "[{?}, {tp, ?}]")
    program.input("v", v.shape)
    calls = [
        (torch.mm, ["x", "w"], "h", (x, w)),
        (torch.relu, ["h"], "a", (x @ w,)),
        (torch.mm, ["a", "v"], "y", (x @ w, v)),
        (torch.softmax, ["y"], "p", (x @ w @ v, -1)),
    ]
    for function, inputs, name, arguments in calls:
        shapes = [tuple(a.shape) for a in arguments if isinstance(a, torch.Tensor)]
        output = tuple(function(*arguments).shape)
        rows = discover(function, *arguments).rows
        rule = FactorRule.from_rows(rows, (shapes, [output]))
        assert rule.rows() == list(rows)
        program.op(rule, inputs, name=name, shape=output, op=function.__name__)
    assert [node.kind for node in program.nodes] == ["other", "elementwise", "other", "other"]
    assert found(program) == {
        "x": "[{dp}, {}]",
        "w": "[{?}, {tp, ?}]",
        "v": "[{tp, ?}, {?}]",
        "h": "[{dp, ?}, {tp, ?}]",
        "a": "[{dp, ?}, {tp, ?}]",
        "y": "[{dp, ?}, {?}]",
        "p": "[{dp, ?}, {?}]",
    }


def test_a_run_that_does_not_end_is_an_error():
    """It cannot happen; if it did, it would not go unnoticed."""
    flip = [State.of(Sharding.parse(text, MESH)) for text in ("[{a, ?}, {?}]", "[{b, ?}, {?}]")]
    run = _Run(
        chain(x="[{a}, {}]"),
        "user-priority",
        debug=False,
        most_sweeps=None,
        step=lambda op, states, *_: [None, flip[states[1] == flip[0]]],
    )
    with pytest.raises(RuntimeError, match="did not terminate"):
        run.all_rounds()


# -- mistakes


def test_mistakes_are_one_sentence():
    program = chain()
    with pytest.raises(UsageError, match="there is no value 'w'"):
        program.op("... -> ...", ["w"])
    with pytest.raises(UsageError, match="value 'x' already exists"):
        program.input("x", (8,))
    with pytest.raises(UsageError, match="is produced twice"):
        program.node(None, ["x"], ["z"])
    with pytest.raises(UsageError, match="is produced twice"):
        program.node(None, ["z"], ["x"])
    with pytest.raises(UsageError, match=r"their shapes are \(8, 8\) and \(4,\)"):
        program.group("x", program.input("small", (4,)))
    with pytest.raises(UsageError, match="unknown kind of operation 'pointwise'"):
        program.op("... -> ...", ["x"], kind="pointwise")
    with pytest.raises(UsageError, match="unknown direction 'up'"):
        program.barrier("x", "up")
    with pytest.raises(UsageError, match="is of mesh a=2 but the program's is a=2,b=2,c=2"):
        program.result("x", Sharding.parse("[{}, {}]", "a=2"))
    with pytest.raises(UsageError, match="has 1 dims but the shape"):
        program.input("short", (8, 8), "[{}]")
    with pytest.raises(UsageError, match="factor i is 8 but dim 0 of output 0 is 4"):
        program.node(
            FactorRule.parse("([i])->([i]) {i=8}"), [program.input("v", (8,))], [program.value("o", (4,))]
        )
    with pytest.raises(UsageError, match="the shapes of its outputs are needed"):
        program.op(FactorRule.parse("([i, j])->([i, 1]) {i=8, j=8} reduction={j}"), ["x"])
    with pytest.raises(UsageError, match="unknown level 'quick'"):
        propagate(program, level="quick")


@pytest.mark.parametrize(
    ("rule", "inputs", "outputs", "kind"),
    [
        ("... -> ...", [(8, 4)], None, "elementwise"),
        ("..., ... -> ...", [(8, 4), (8, 4)], None, "elementwise"),
        ("..., ... -> ...", [(8, 4), (4,)], None, "elementwise"),
        ("..., ... -> ...", [(8, 4), ()], None, "elementwise"),
        ("i j -> j i", [(8, 4)], None, "transpose"),
        ("i j -> (i j)", [(8, 4)], None, "reshape"),
        ("(i j) k -> i (j k)", [(8, 4)], [(2, 16)], "reshape"),
        ("j -> i j", [(4,)], [(8, 4)], "broadcast"),
        ("m k, k n -> m n", [(8, 4), (4, 2)], None, "other"),
        ("i j -> i", [(8, 4)], None, "other"),
        ("-> ?", [], [(4,)], "other"),
        ("i j -> i j permutation={j}", [(8, 4)], None, "other"),
    ],
)
def test_the_kind_of_an_operation_is_read_off_its_rule(rule, inputs, outputs, kind):
    assert kind_of(Template.parse(rule).on(inputs, outputs)) == kind
