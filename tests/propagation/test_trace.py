import pytest

from shardwise import Mesh, propagate
from shardwise.errors import UsageError
from shardwise.propagation import Program

MESH = Mesh.parse("a=2,b=2")


def two_inputs(x, y, rule="i j, i j -> i j"):
    program = Program(MESH)
    program.input("x", (8, 8), x)
    program.input("y", (8, 8), y)
    program.op(rule, ["x", "y"], name="z", op="add")
    return program


def lines(program, level="aggressive"):
    return [line.strip() for line in str(propagate(program, level=level, debug=True).trace).splitlines()]


def test_a_step_tells_the_op_the_dim_the_factor_and_the_source():
    assert lines(two_inputs("[{a}, {}]", "[{?}, {b}]")) == [
        "stage: all",
        "z = add(x, y)",
        "y dim 0: {} -> {a}, along factor i from x",
        "z dim 0: {} -> {a}, along factor i from x",
        "z dim 1: {} -> {b}, along factor j from y",
        "refused b along factor j on x: the dim is closed",
    ]


@pytest.mark.parametrize(
    ("x", "y", "level", "line"),
    [
        ("[{a}, {}]", "[{}, {?}]", "basic", "refused a along factor i on y: the dim is closed"),
        (
            "[{a}, {}]",
            "[{?}, {?}] replicated={a}",
            "basic",
            "refused a along factor i on y: a is replicated or partial there",
        ),
        ("[{a}, {}]", "[{?}, {a}]", "basic", "refused a along factor i on y: a shards factor j there"),
        ("[{a}, {}]", "[{b}, {}]", "basic", "refused b of y along factor i: other tensors have a there"),
        ("[{a}, {}]", "[{}, {a}]", "aggressive", "refused a along factor j on z: a shards factor i there"),
    ],
)
def test_a_refusal_tells_why(x, y, level, line):
    assert line in lines(two_inputs(x, y), level)


def test_sizes_that_do_not_divide_are_a_reason():
    program = Program("a=3")
    program.input("x", (8,), "[{?}]")
    program.op("(p q) -> p q", ["x"], name="y", shape=(2, 4), sharding="[{a}, {}]")
    assert "refused a along factor p on x: the size 2 of the factor does not allow it" in lines(
        program, "basic"
    )


def test_axes_that_would_leave_stripes_are_refused():
    program = Program("a=2")
    program.input("x", (4, 4), "[{}, {a}]")
    program.op("p q -> (p q)", ["x"], name="y")
    assert lines(program)[-1] == (
        "refused a along factor q on y: a more significant factor of the dim is not fully sharded"
    )


def test_a_refusal_is_listed_once_and_a_run_without_any_says_so():
    text = lines(two_inputs("[{a}, {}]", "[{}, {?}]"), "user-priority")
    assert len([line for line in text if line.startswith("refused")]) == len(
        {line for line in text if line.startswith("refused")}
    )
    assert lines(two_inputs(None, None)) == ["nothing to propagate"]


def test_stages_and_priorities_are_headings():
    program = two_inputs("[{a}p1, {}]", "[{?}, {b}]")
    text = lines(program, "user-priority")
    assert "priority 0, stage: pass-through, single use" in text
    assert "priority 1, stage: pass-through, single use" in text


def test_without_debug_there_is_no_trace():
    outcome = propagate(two_inputs("[{a}, {}]", None))
    assert outcome.trace is None
    assert outcome.summary.startswith("fixed point reached")


def test_a_picture_of_an_operation():
    outcome = propagate(two_inputs("[{a}, {}]", None, "m k, k n -> m n"))
    assert outcome.picture("z").splitlines() == [
        "z = add(x, y)  m    n  k (reduction)",
        "------------------------------------",
        "  input 0: x   a       .",
        "  input 1: y        .  .",
        "  output 0: z  [a]  .",
    ]
    with pytest.raises(UsageError, match="no operation with a rule produces 'x'"):
        outcome.picture("x")


def test_the_trace_changes_nothing():
    program = two_inputs("[{a, ?}, {?}]", "[{?}, {a, b, ?}]")
    assert propagate(program, debug=True).shardings == propagate(program).shardings
