"""What holds for every program: nothing is removed, closed dims stay, no axis is used twice, it ends."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise import Mesh, Sharding, propagate
from shardwise.layout import AxisRef, is_prefix
from shardwise.propagation import LEVELS, Program

levels = st.sampled_from(LEVELS)

# -- random programs: a few inputs, operations of all kinds, shardings anywhere

SIZES = st.sampled_from([1, 2, 3, 4, 6, 8, 12])
MESHES = ["a=2", "a=2,b=2", "a=4,b=2", "a=2,b=3", "a=4,b=3,c=2", "a=2,b=2,c=2", "a=8", "a=6,b=4", "a=1,b=2"]


@st.composite
def sharding_of(draw, mesh, rank):
    dims = [[] for _ in range(rank)]
    replicated = []
    for name in draw(st.permutations(mesh.names)):
        size = mesh[name]
        divisors = [d for d in range(2, size) if size % d == 0]
        axis = AxisRef(name, 1, size)
        if divisors and draw(st.integers(0, 3)) == 0:
            cut = draw(st.sampled_from(divisors))
            axis = draw(st.sampled_from([AxisRef(name, 1, cut), AxisRef(name, cut, size // cut)]))
        place = draw(st.integers(-2, rank - 1))
        if place >= 0:
            dims[place].append(axis.text(mesh))
        elif place == -1:
            replicated.append(axis.text(mesh))
    return Sharding.of(
        mesh,
        dims,
        open=[draw(st.integers(0, 2)) > 0 for _ in range(rank)],
        priority=[draw(st.sampled_from([None, None, 0, 1, 2])) for _ in range(rank)],
        replicated=replicated,
    )


@st.composite
def programs(draw, extras=True):
    """With `extras` also constraints, barriers and groups."""
    mesh = Mesh.parse(draw(st.sampled_from(MESHES)))
    program = Program(mesh)

    def sharding(shape, likely):
        return draw(sharding_of(mesh, len(shape))) if draw(st.integers(0, 9)) < likely else None

    for number in range(draw(st.integers(1, 3))):
        shape = tuple(draw(st.lists(SIZES, min_size=1, max_size=3)))
        program.input(f"x{number}", shape, sharding(shape, 7))
    kinds = ["pointwise", "pointwise", "transpose", "reduce", "matmul", "broadcast", "merge", "split", "flip"]
    for _ in range(draw(st.integers(0, 7))):
        kind = draw(st.sampled_from([*kinds, *(["constrain", "barrier"] if extras else [])]))
        _add(draw, program, kind, sharding)
    for value in draw(st.lists(st.sampled_from(list(program.values)), max_size=2)):
        program.result(value, sharding(program.values[value].shape, 4))
    if extras and draw(st.integers(0, 3)) == 0:
        values = draw(st.lists(st.sampled_from(list(program.values)), max_size=3, unique=True))
        free = [v for v in values if program.values[v].sharding.is_unknown]
        alike = [v for v in free if program.values[v].shape == program.values[free[0]].shape]
        if len(alike) > 1:
            program.group(*alike)
    return program


def _add(draw, program, kind, sharding):
    value = draw(st.sampled_from(list(program.values)))
    shape = program.values[value].shape
    names = [f"d{dim}" for dim in range(len(shape))]
    left = " ".join(names) or "()"
    if kind == "constrain":
        program.constrain(value, draw(sharding_of(program.mesh, len(shape))), name=f"v{len(program.values)}")
        return
    if kind == "barrier":
        direction = draw(st.sampled_from(["none", "forward", "backward", "both"]))
        program.barrier(value, direction, name=f"v{len(program.values)}")
        return
    inputs, rule, output = [value], None, None
    if kind == "pointwise":
        alike = [v for v in program.values if program.values[v].shape == shape]
        inputs = [value, draw(st.sampled_from(alike))]
        rule, output = f"{left}, {left} -> {left}", shape
    elif kind == "transpose":
        order = draw(st.permutations(range(len(shape))))
        rule = f"{left} -> {' '.join(names[i] for i in order) or '()'}"
        output = tuple(shape[i] for i in order)
    elif kind == "reduce" and shape:
        dim = draw(st.integers(0, len(shape) - 1))
        rule = f"{left} -> {' '.join(names[:dim] + names[dim + 1 :]) or '()'}"
        output = shape[:dim] + shape[dim + 1 :]
    elif kind == "matmul" and shape:
        other = draw(st.sampled_from([v for v in program.values if program.values[v].shape]))
        size = program.values[other].shape
        if size[0] == shape[-1] and len(shape) + len(size) < 6:
            more = [f"e{dim}" for dim in range(1, len(size))]
            inputs = [value, other]
            rule = f"{left}, {' '.join([names[-1], *more])} -> {' '.join(names[:-1] + more) or '()'}"
            output = shape[:-1] + size[1:]
    elif kind == "broadcast" and len(shape) < 4:
        extra = draw(SIZES)
        rule, output = f"{left} -> n {left if names else ''}", (extra, *shape)
    elif kind == "merge" and len(shape) > 1:
        rule = f"{left} -> ({names[0]} {names[1]}) {' '.join(names[2:])}"
        output = (shape[0] * shape[1], *shape[2:])
    elif kind == "split" and shape:
        cut = draw(st.sampled_from([d for d in range(1, shape[0] + 1) if shape[0] % d == 0]))
        rule = f"(p q) {' '.join(names[1:])} -> p q {' '.join(names[1:])}"
        output = (cut, shape[0] // cut, *shape[1:])
    elif kind == "flip" and shape:
        rule, output = f"{left} -> {left} permutation={{{names[-1]}}}", shape
    if rule is not None and math.prod(output) < 10**6:
        program.op(rule, inputs, shape=output, op=kind, sharding=sharding(output, 2))


# -- the laws


def axes_of(sharding):
    named = [axis for dim in sharding.dims for axis in dim.axes]
    return [*named, *sharding.replicated, *(axis for axis, _ in sharding.partial)]


@given(programs(), levels)
@settings(deadline=None)
def test_no_axis_is_removed_or_reordered(program, level):
    outcome = propagate(program, level=level)
    for name, value in program.values.items():
        for before, after in zip(value.sharding.dims, outcome[name].dims, strict=True):
            assert is_prefix(before.axes, after.axes)


def test_an_axis_of_size_one_is_not_put_before_others_of_its_dim():
    program = Program(Mesh.parse("a=1,b=2"))
    program.input("x", (8,), "[{b, ?}]")
    program.op("(p q) -> p q", ["x"], shape=(1, 8), sharding="[{a, ?}, {?}]", name="y")
    outcome = propagate(program)
    assert (str(outcome["x"]), str(outcome["y"])) == ("[{b, ?}]", "[{a, ?}, {b, ?}]")


@given(programs(), levels)
@settings(deadline=None)
def test_closed_dims_and_replicated_axes_stay(program, level):
    outcome = propagate(program, level=level)
    for name, value in program.values.items():
        for before, after in zip(value.sharding.dims, outcome[name].dims, strict=True):
            assert before.open or (after.axes, after.open) == (before.axes, False)
        assert set(value.sharding.replicated) <= set(outcome[name].replicated)


@given(programs(), levels)
@settings(deadline=None)
def test_no_axis_shards_two_dims_of_a_value(program, level):
    for sharding in [*(outcome := propagate(program, level=level)).shardings.values(), *outcome.results]:
        axes = axes_of(sharding)
        assert not any(a.overlaps(b) for i, a in enumerate(axes) for b in axes[:i])


def again(program, outcome):
    """The same program with the outcome's shardings as what is given."""
    second = Program(program.mesh, nodes=program.nodes, groups=program.groups)
    for name, value in program.values.items():
        second.value(name, value.shape, outcome[name].without_priorities())
    for result, sharding in zip(program.results, outcome.results, strict=True):
        second.result(result.value, sharding.without_priorities())
    return second


@given(programs(), levels)
@settings(deadline=None)
def test_the_outcome_is_a_fixed_point(program, level):
    outcome = propagate(program, level=level)
    second = propagate(again(program, outcome), level=level)
    assert second.updates == 0
    assert second.shardings == {name: s.without_priorities() for name, s in outcome.shardings.items()}


@given(programs())
@settings(deadline=None)
def test_a_stronger_priority_is_not_changed_by_weaker_ones(program):
    """What priority 0 alone decides is there, as a prefix, whatever the other priorities ask for."""
    alone = Program(program.mesh, nodes=program.nodes, groups=program.groups)
    for name, value in program.values.items():
        alone.value(name, value.shape, priority_0(value.sharding))
    for result in program.results:
        alone.result(result.value, priority_0(result.sharding))
    first, full = propagate(alone), propagate(program)
    for name in program.values:
        for before, after in zip(first[name].dims, full[name].dims, strict=True):
            assert is_prefix(cutting(before.axes), cutting(after.axes))


def cutting(axes):
    """The axes without those of size 1, which cut nothing and may be anywhere."""
    return tuple(axis for axis in axes if axis.size > 1)


def priority_0(sharding):
    """A sharding as the first round is to see it, written out by hand."""
    dims, aside = [], list(sharding.replicated)
    for dim in sharding.dims:
        later = bool(dim.priority)
        aside += dim.axes if later else ()
        dims.append(type(dim)(() if later else dim.axes, dim.open and not later))
    return type(sharding)(sharding.mesh, tuple(dims), tuple(aside), sharding.partial)


@given(programs(extras=False))
@settings(deadline=None)
def test_what_agrees_everywhere_is_kept_by_every_level(program):
    """Nothing given, nothing found: propagation invents no axis."""
    bare = Program(program.mesh, nodes=program.nodes)
    for name, value in program.values.items():
        bare.value(name, value.shape)
    for level in LEVELS:
        outcome = propagate(bare, level=level)
        assert outcome.updates == 0
        assert all(sharding.is_unknown for sharding in outcome.shardings.values())


@pytest.mark.long
@given(programs(), levels)
@settings(deadline=None, max_examples=3000)
def test_the_laws_hold_on_many_programs(program, level):
    outcome = propagate(program, level=level)
    for name, value in program.values.items():
        axes = axes_of(outcome[name])
        assert not any(a.overlaps(b) for i, a in enumerate(axes) for b in axes[:i])
        for before, after in zip(value.sharding.dims, outcome[name].dims, strict=True):
            assert is_prefix(before.axes, after.axes)
            assert before.open or after.axes == before.axes
    assert propagate(again(program, outcome), level=level).updates == 0
