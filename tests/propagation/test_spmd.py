import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise import Mesh, Row, Sharding
from shardwise.errors import UsageError
from shardwise.layout import AxisRef, layouts_of
from shardwise.propagation import (
    FactorRule,
    Reshard,
    Template,
    infer_output_sharding,
    local_run,
    reshard_inputs,
)

MESH = Mesh.parse("dp=2,tp=4")
MATMUL = Template.parse("m k, k n -> m n").on([(8, 16), (16, 32)])


def shardings(*texts):
    return [Sharding.parse(text, MESH) for text in texts]


@pytest.mark.parametrize(
    ("inputs", "output", "needed"),
    [
        (["[{dp}, {}]", "[{}, {tp}]"], "[{dp}, {tp}]", ["nothing to do", "nothing to do"]),
        (["[{dp}, {tp}]", "[{tp}, {}]"], "[{dp}, {}] partial={tp:sum}", ["nothing to do", "nothing to do"]),
        (
            ["[{}, {tp}]", "[{}, {}]"],
            "[{}, {}] partial={tp:sum}",
            ["nothing to do", "[{}, {}] -> [{tp}, {}]"],
        ),
        # The weight is the larger one: it stays, and the input moves.
        (
            ["[{}, {dp}]", "[{tp}, {}]"],
            "[{}, {}] partial={tp:sum}",
            ["[{}, {dp}] -> [{}, {tp}]", "nothing to do"],
        ),
        (["[{tp}, {}]", "[{}, {tp}]"], "[{}, {tp}]", ["[{tp}, {}] -> [{}, {}]", "nothing to do"]),
        # Partial inputs are reduced first: no row of this rule carries them.
        (
            ["[{dp}, {}] partial={tp:sum}", "[{}, {}]"],
            "[{dp}, {}]",
            ["[{dp}, {}] partial={tp:sum} -> [{dp}, {}]", "nothing to do"],
        ),
    ],
)
def test_a_matmul(inputs, output, needed):
    assert [str(s) for s in infer_output_sharding(MATMUL, shardings(*inputs))] == [output]
    assert [str(r) for r in reshard_inputs(MATMUL, shardings(*inputs))] == needed


def test_what_the_output_should_have_counts_too():
    [wanted] = shardings("[{dp}, {tp}]")
    plain = shardings("[{}, {}]", "[{}, {}]")
    assert [str(s) for s in infer_output_sharding(MATMUL, plain)] == ["[{}, {}]"]
    assert infer_output_sharding(MATMUL, plain, [wanted]) == (wanted,)
    assert [str(r) for r in reshard_inputs(MATMUL, plain, [wanted])] == [
        "[{}, {}] -> [{dp}, {}]",
        "[{}, {}] -> [{}, {tp}]",
    ]


def test_partials_are_carried_where_a_row_says_so():
    rows = [Row.parse(text) for text in ("S(0), S(0) -> S(0)", "P(sum), P(sum) -> P(sum)")]
    add = FactorRule.from_rows(rows, ([(8,), (8,)], [(8,)]))
    both = shardings("[{dp}] partial={tp:sum}", "[{dp}] partial={tp:sum}")
    assert [str(s) for s in infer_output_sharding(add, both)] == ["[{dp}] partial={tp:sum}"]
    assert not any(reshard.is_needed for reshard in reshard_inputs(add, both))
    # A replicated input becomes partial, which costs nothing.
    one = shardings("[{dp}] partial={tp:sum}", "[{dp}]")
    assert [str(s) for s in infer_output_sharding(add, one)] == ["[{dp}] partial={tp:sum}"]
    assert [str(r) for r in reshard_inputs(add, one)] == [
        "nothing to do",
        "[{dp}] -> [{dp}] partial={tp:sum}",
    ]
    # Another reduction is not carried by this row.
    assert [str(s) for s in infer_output_sharding(add, shardings("[{dp}] partial={tp:max}", "[{dp}]"))] == [
        "[{dp}]"
    ]


def test_companions_and_reductions_per_output():
    rule = FactorRule.parse(
        "([j], [i, k], [k, j])->([i, j]) {i=8, j=32, k=16} reduction={k} companion={k:P(sum)}"
    )
    run = local_run(rule, shardings("[{}]", "[{}, {tp}]", "[{tp}, {}]"))
    assert [str(s) for s in run.inputs] == ["[{}] partial={tp:sum}", "[{}, {tp}]", "[{tp}, {}]"]
    assert [str(s) for s in run.outputs] == ["[{}, {}] partial={tp:sum}"]
    aminmax = FactorRule.parse("([i])->([], []) {i=8} reduction={i:min/max}")
    outputs = infer_output_sharding(aminmax, shardings("[{dp}]"))
    assert [str(s) for s in outputs] == ["[] partial={dp:min}", "[] partial={dp:max}"]


def test_reductions_that_do_not_go_together_are_not_mixed():
    both = FactorRule.parse("([i, j])->([]) {i=8, j=16} reduction={i:sum, j:max}")
    assert [str(s) for s in infer_output_sharding(both, shardings("[{dp}, {tp}]"))] == ["[] partial={dp:sum}"]
    alike = FactorRule.parse("([i, j])->([]) {i=8, j=16} reduction={i:sum, j:avg}")
    assert [str(s) for s in infer_output_sharding(alike, shardings("[{dp}, {tp}]"))] == [
        "[] partial={dp:sum, tp:avg}"
    ]
    # A partial that is carried through counts too.
    rows = [Row.parse(text) for text in ("S(0) -> P(sum)", "P(max) -> P(max)")]
    rule = FactorRule.from_rows(rows, ([(8,)], [()]))
    run = local_run(rule, shardings("[{dp}] partial={tp:max}"))
    assert [str(s) for s in (*run.inputs, *run.outputs)] == ["[{}] partial={tp:max}", "[] partial={tp:max}"]


@pytest.mark.parametrize(
    ("rule", "given", "needed", "why"),
    [
        ("([i, j])->([i, j]) {i=8, j=16} permutation={j}", "[{dp}, {tp}]", "[{dp}, {}]", "flip moves data"),
        (
            "([i, j])->([i, j]) {i=8, j=16} need_replication={j}",
            "[{dp}, {tp}]",
            "[{dp}, {}]",
            "sort needs replication",
        ),
        ("([i, 1])->([i]) {i=8}", "[{dp}, {tp}]", "[{dp}, {}]", "a dim without a factor"),
        ("([i, j])->([i]) {i=8, j=16}", "[{dp}, {tp}]", "[{dp}, {}]", "the reduction of j is unknown"),
        ("([i, j])->([ij]) {i=8, j=16}", "[{dp}, {tp}]", "[{dp}, {}]", "j would be strided"),
        ("([i, j])->([ij]) {i=2, j=16}", "[{dp}, {tp}]", "[{dp}, {tp}]", "i is fully sharded"),
        ("([ij])->([i, j]) {i=2, j=16}", "[{dp, tp}]", "[{dp, tp}]", "axes follow factors"),
        ("([ij])->([i, j]) {i=2, j=16}", "[{tp, dp}]", "[{tp, dp}]", "the first half of tp is i"),
        (
            "([i, j])->([i, j]) {i=6, j=6} shards={i:any, j:even}",
            "[{dp}, {tp}]",
            "[{dp}, {}]",
            "6 on 4 is not even",
        ),
        (
            "([i, j])->([i, j]) {i=6, j=9} shards={j:nonempty}",
            "[{dp}, {tp}]",
            "[{dp}, {}]",
            "9 on 4 is 3, 3, 3, 0",
        ),
    ],
)
def test_what_a_local_run_cannot_have_is_gathered(rule, given, needed, why):
    assert [str(s) for s in local_run(FactorRule.parse(rule), shardings(given)).inputs] == [needed], why


@pytest.mark.parametrize(
    ("before", "after", "kinds"),
    [
        ("[{dp}, {}]", "[{dp}, {}]", []),
        ("[{}, {}]", "[{tp}, {}]", ["slice"]),
        ("[{tp}, {}]", "[{}, {}]", ["all_gather"]),
        ("[{tp}, {}]", "[{}, {tp}]", ["all_to_all"]),
        ("[{}, {}] partial={tp:sum}", "[{}, {}]", ["all_reduce"]),
        ("[{}, {}] partial={tp:sum}", "[{tp}, {}]", ["reduce_scatter"]),
        ("[{tp}, {}]", "[{tp:(1)2}, {}]", ["all_gather"]),
    ],
)
def test_a_change_is_planned_as_collectives(before, after, kinds):
    change = Reshard(*shardings(before, after))
    assert [step.kind for step in change.chain((16, 16)).steps] == kinds
    assert change.is_needed == bool(kinds)


def test_wrong_calls_are_one_sentence():
    with pytest.raises(UsageError, match="has 2 inputs but 1 shardings were given"):
        infer_output_sharding(MATMUL, shardings("[{}, {}]"))
    with pytest.raises(UsageError, match="input 0 has 2 dims but its sharding is"):
        infer_output_sharding(MATMUL, shardings("[{}]", "[{}, {}]"))
    with pytest.raises(UsageError, match="are of 2 meshes"):
        infer_output_sharding(MATMUL, [*shardings("[{}, {}]"), Sharding.parse("[{}, {}]", "dp=3")])
    with pytest.raises(UsageError, match="give the desired sharding of its output"):
        infer_output_sharding(FactorRule.parse("()->([i]) {i=8}"), [])


EINSUMS = [
    "m k, k n -> m n",
    "b m k, b k n -> b m n",
    "m k, m -> k",
    "a b -> b a",
    "a b c -> b",
    "a b, b c, c d -> a d",
]
SMALL = Mesh.parse("x=2,y=2,z=3")


@st.composite
def any_sharding(draw, rank):
    dims = [[] for _ in range(rank)]
    for name in draw(st.permutations(SMALL.names)):
        place = draw(st.integers(-1, rank - 1))
        if place >= 0:
            dims[place].append(name)
    return Sharding.of(SMALL, dims)


@given(st.data())
@settings(deadline=None, max_examples=60)
def test_running_on_local_pieces_gives_the_pieces_of_the_result(data):
    """The proof of the step: einsum on what each rank holds, put together, is einsum of the whole."""
    text = data.draw(st.sampled_from(EINSUMS))
    template = Template.parse(text)
    sizes = {name: data.draw(st.sampled_from([1, 2, 3, 4, 6, 7, 12])) for name in "abcdkmn"}
    shapes = [tuple(sizes[dim[0]] for dim in tensor) for tensor in template.inputs]
    rule = template.on(shapes)
    run = local_run(rule, [data.draw(any_sharding(len(shape))) for shape in shapes])
    tensors = [torch.randint(-4, 5, shape, dtype=torch.float64) for shape in shapes]
    equation = text.replace(" ", "")
    layouts = layouts_of([*run.inputs, *run.outputs])
    pieces = [layout.split(tensor) for layout, tensor in zip(layouts, tensors, strict=False)]
    local = [torch.einsum(equation, *held) for held in zip(*pieces, strict=True)]
    assert torch.equal(layouts[-1].join(local), torch.einsum(equation, *tensors))


@given(st.data())
@settings(deadline=None, max_examples=60)
def test_a_view_on_local_pieces_gives_the_pieces_of_the_result(data):
    sizes = [data.draw(st.sampled_from([2, 3, 4, 6, 12])) for _ in range(3)]
    whole = sizes[0] * sizes[1]
    rule = Template.parse("(a b) c -> a b c").on([(whole, sizes[2])], [tuple(sizes)])
    run = local_run(rule, [data.draw(any_sharding(2))], [data.draw(st.none() | any_sharding(3))])
    tensor = torch.arange(float(whole * sizes[2])).reshape(whole, sizes[2])
    before, after = layouts_of([*run.inputs, *run.outputs])
    local = [
        piece.reshape(run.outputs[0].local_shape(sizes, rank))
        for rank, piece in enumerate(before.split(tensor))
    ]
    assert torch.equal(after.join(local), tensor.reshape(sizes))


def test_axes_of_the_factors_are_listed():
    run = local_run(MATMUL, shardings("[{dp}, {tp}]", "[{tp}, {}]"))
    assert run.axes == {"m": (AxisRef("dp", 1, 2),), "k": (AxisRef("tp", 1, 4),)}
