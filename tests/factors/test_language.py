import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.errors import UsageError
from shardwise.factors import FactorRule, Template, rule_for


@pytest.mark.parametrize(
    ("rule", "inputs", "outputs", "text"),
    [
        (
            "... m k, ... k n -> ... m n",
            [(8, 32, 64), (8, 64, 128)],
            None,
            "([i, m, k], [i, k, n])->([i, m, n]) {i=8, m=32, n=128, k=64} reduction={k}",
        ),
        (
            "... m k, ... k n -> ... m n",
            [(2, 3, 32, 64), (2, 3, 64, 128)],
            None,
            "([i, j, m, k], [i, j, k, n])->([i, j, m, n]) {i=2, j=3, m=32, n=128, k=64} reduction={k}",
        ),
        (
            "... m k, ... k n -> ... m n",
            [(4, 32, 64), (64, 64)],
            None,
            "([i, m, k], [k, n])->([i, m, n]) {i=4, m=32, n=64, k=64} reduction={k}",
        ),
        (
            "..., ... -> ...",
            [(8, 1, 16), (4, 16)],
            None,
            "([i, 1, k], [j, k])->([i, j, k]) {i=8, j=4, k=16}",
        ),
        ("..., ... -> ...", [(16,), (8, 16)], None, "([j], [i, j])->([i, j]) {i=8, j=16}"),
        ("..., ... -> ...", [(1,), ()], None, "([1], [])->([1])"),
        ("(a b) -> a b", [(8,)], [(2, 4)], "([ab])->([a, b]) {a=2, b=4}"),
        ("(a b) -> a b {a=2}", [(8,)], None, "([ab])->([a, b]) {a=2, b=4}"),
        ("a b -> (a b)", [(2, 4)], None, "([a, b])->([ab]) {a=2, b=4}"),
        ("(a b) c -> a (b c)", [(8, 4)], [(2, 16)], "([ab, c])->([a, bc]) {a=2, b=4, c=4}"),
        ("i -> 1", [(8,)], [(1,)], "([i])->([1]) {i=8} reduction={i}"),
        ("i j -> i", [(8, 4)], None, "([i, j])->([i]) {i=8, j=4} reduction={j}"),
        ("i -> ()", [(8,)], None, "([i])->([]) {i=8} reduction={i}"),
        ("... d -> d", [(8, 4, 16)], None, "([i, j, d])->([d]) {d=16, i=8, j=4} reduction={i, j}"),
        ("... -> ...", [(4,)], [(8, 4)], "([j])->([i, j]) {i=8, j=4}"),
        ("1 -> ?", [(1,)], [(8,)], "([1])->([i]) {i=8}"),
        ("-> ? ?", [], [(8, 4)], "()->([i, j]) {i=8, j=4}"),
        ("i ? -> i ?", [(8, 3)], [(8, 5)], "([i, j])->([i, k]) {i=8, k=5, j=3}"),
        ("i j -> i reduction={j:max}", [(8, 4)], None, "([i, j])->([i]) {i=8, j=4} reduction={j:max}"),
        ("i -> (), () reduction={i:min/max}", [(8,)], None, "([i])->([], []) {i=8} reduction={i:min/max}"),
        ("i j -> j i permutation={j}", [(8, 4)], None, "([i, j])->([j, i]) {j=4, i=8} permutation={j}"),
        ("i j -> i j permutation={j}", [(8, 4)], [(8, 3)], "([i, j])->([i, j]) {i=8, j=4} permutation={j}"),
        (
            "heads dim -> (heads dim)",
            [(8, 4)],
            None,
            "([heads, dim])->([(heads dim)]) {heads=8, dim=4}",
        ),
    ],
)
def test_a_rule_on_shapes(rule, inputs, outputs, text):
    made = Template.parse(rule).on(inputs, outputs)
    assert str(made) == text
    assert FactorRule.parse(text) == made


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("... m k,...  k n->... m n", "... m k, ... k n -> ... m n"),
        ("(a b) -> a b", "(a b) -> a b"),
        ("a b -> ( a b )", "a b -> (a b)"),
        ("1 -> ?", "1 -> ?"),
        ("-> ?", "-> ?"),
        ("i, -> i", "i, () -> i"),
        ("i ->", "i -> ()"),
        ("i j -> i {j=4} reduction={j: max}", "i j -> i {j=4} reduction={j: max}"),
    ],
)
def test_rules_print_in_one_form(text, printed):
    assert str(Template.parse(text)) == printed
    assert Template.parse(printed) == Template.parse(text)


NAMES = st.sampled_from(["a", "b", "m", "rows", "k2", "z_1"])


@st.composite
def templates(draw):
    def tensor():
        names = draw(st.lists(NAMES, unique=True, max_size=5))
        dims = []
        while names:
            take = draw(st.integers(1, len(names)))
            dims.append(tuple(names[:take]))
            names = names[take:]
        dims += draw(st.lists(st.sampled_from([(), ("?",)]), max_size=2))
        if draw(st.booleans()):
            dims.insert(draw(st.integers(0, len(dims))), ("...",))
        return tuple(dims)

    count = st.integers(1, 3)
    return Template(tuple(tensor() for _ in range(draw(count))), tuple(tensor() for _ in range(draw(count))))


@given(templates())
def test_any_rule_round_trips_through_text(template):
    assert Template.parse(str(template)) == template


@given(templates(), st.data())
def test_on_shapes_that_fit_factors_have_the_sizes_of_their_dims(template, data):
    sizes = {name: data.draw(st.integers(2, 5), label=name) for name in ("a", "b", "m", "rows", "k2", "z_1")}
    batch = data.draw(st.lists(st.integers(1, 4), max_size=2), label="batch")

    def shape(tensor):
        dims = []
        for names in tensor:
            if names == ("...",):
                dims += batch
            elif names in ((), ("?",)):
                dims.append(data.draw(st.integers(1, 3)))
            else:
                product = 1
                for name in names:
                    product *= sizes[name]
                dims.append(product)
        return tuple(dims)

    given_sizes = tuple(
        (name, sizes[name])
        for name in sizes
        if any(name in dim for tensor in (*template.inputs, *template.outputs) for dim in tensor)
    )
    template = Template(template.inputs, template.outputs, given_sizes)
    inputs, outputs = [shape(t) for t in template.inputs], [shape(t) for t in template.outputs]
    rule = template.on(inputs, outputs)
    rule.verify(inputs, outputs)
    assert FactorRule.parse(str(rule)) == rule
    assert all(rule.by_name[name].size == size for name, size in given_sizes)


WRONG_RULES = [
    ("m k, k n", "there is no '->'"),
    ("m m -> m", "factor m is twice in input 0"),
    ("m -> m m", "factor m is twice in output 0"),
    ("... ... -> ...", "'...' is twice in input 0"),
    ("(a b -> a b", r"a '\(' without its '\)' in input 0"),
    ("a b) -> a b", r"a '\)' without its '\(' in input 0"),
    ("((a b) c) -> a", r"a '\(' inside a '\('"),
    ("a () -> a", r"an empty '\(\)' among the dims of input 0"),
    ("(a ...) -> a", r"'...' is inside '\( \)' in input 0"),
    ("(a ?) -> a", r"'\?' is inside '\( \)' in input 0"),
    ("(a 1) -> a", r"'1' is inside '\( \)' in input 0"),
    ("m* -> m", r"'\*' in input 0 is not a factor"),
    ("2 m -> m", "'2' in input 0 is not a factor"),
    ("m .. k -> m", "'..' in input 0 is not a factor"),
    ("m -> m {k=4}", "a size for the unknown factor k"),
    ("m -> m {m}", "size 'm' is not of the form 'i=8'"),
    ("m -> m {m=-1}", "size 'm=-1' is not of the form"),
    ("m -> m {m=2, m=3}", "factor m has two sizes"),
    ("m -> m {m=2", "a '{' without its '}'"),
    ("m -> m reduction={k}", "reduction has the unknown factor 'k'"),
    ("m -> m reductions={m}", "unknown group 'reductions'"),
    ("m -> m reduction={m} reduction={m}", "group reduction is given twice"),
    ("m -> m reduction={m,}", "an empty entry"),
    ("m -> m rows={m}", "only a rule with sizes can have rows"),
]


@pytest.mark.parametrize(("text", "message"), WRONG_RULES, ids=[text for text, _ in WRONG_RULES])
def test_a_wrong_rule_says_what_is_wrong(text, message):
    with pytest.raises(UsageError, match=message) as error:
        Template.parse(text)
    assert repr(text) in str(error.value)


@pytest.mark.parametrize(
    ("rule", "inputs", "outputs", "text"),
    [
        (
            "i k, k j -> i j",
            [(8, 4), (4, 2)],
            None,
            "([i, k], [k, j])->([i, j]) {i=8, j=2, k=4} reduction={k}",
        ),
        ("([i])->([i]) {i=8}", [(8,)], None, "([i])->([i]) {i=8}"),
        ("([i])->(-, [i]) {i=8}", [(8,)], [(8,)], "([i])->(-, [i]) {i=8}"),
        ("() -> ([i]) {i=8}", [], [(8,)], "()->([i]) {i=8}"),
        ("() -> i", [()], [(8,)], "([])->([i]) {i=8}"),
        ("() -> ()", [()], None, "([])->([])"),
    ],
)
def test_a_rule_may_be_given_in_either_form(rule, inputs, outputs, text):
    assert str(rule_for(rule, inputs, outputs)) == text
    assert str(rule_for(rule_for(rule, inputs, outputs), inputs, outputs)) == text


@pytest.mark.parametrize(
    ("rule", "inputs", "outputs", "message"),
    [
        ("([i])->([i]) {i=8}", [(4,)], None, "factor i is 8 but dim 0 of input 0 is 4"),
        ("([i])->([i]) {i=8}", [(8,)], [(8,), (8,)], "the rule has 1 outputs but there are 2 shapes"),
        ("([i])->([1]) {i=8} reduction={i}", [(8,)], None, "the shapes of its outputs are needed"),
    ],
)
def test_a_rule_with_sizes_must_be_one_for_the_call(rule, inputs, outputs, message):
    with pytest.raises(UsageError, match=message):
        rule_for(rule, inputs, outputs)


WRONG_SHAPES = [
    ("m k, k n -> m n", [(8, 64), (32, 4)], None, "factor k is 64 in input 0 and 32 in input 1"),
    ("m k, k n -> m n", [(8, 64), (64, 4)], [(8, 5)], "factor n is 4 in input 1 and 5 in output 0"),
    ("m k, k n -> m n", [(8, 64)], None, "the rule has 2 inputs but there are 1 shapes"),
    (
        "m k, k n -> m n",
        [(8, 64), (64, 4)],
        [(8, 4), (8, 4)],
        "the rule has 1 outputs but there are 2 shapes",
    ),
    ("m k, k n -> m n", [(8, 64, 2), (64, 4)], None, "input 0 has 3 dims but the rule needs 2"),
    ("... m k -> ... m", [(8,)], None, "input 0 has 1 dims but the rule needs at least 2"),
    ("..., ... -> ...", [(8, 3), (8, 4)], None, "dim -1 of '...' is 3 in input 0 and 4 in input 1"),
    ("... -> ...", [(8, 4)], [(1, 4)], "dim -2 of '...' is 8 in input 0 and 1 in output 0"),
    ("(a b) -> a b", [(8,)], None, "the size of factor a is not determined by dim 0 of input 0"),
    ("(a b) -> a b", [(8,)], [(3, 2)], r"dim 0 of input 0 is 8, which is not \(a b\) = 3 \* 2"),
    ("(a b) -> a b {a=3}", [(8,)], None, r"dim 0 of input 0 is 8, which is not \(a b\) = 3 \* b"),
    ("m -> m n", [(8,)], None, "the size of factor n is unknown"),
    ("-> ?", [], None, "the size of factor i is unknown"),
    ("m -> m {m=4}", [(8,)], None, "factor m is 4 in the sizes and 8 in input 0"),
    ("m k -> m reduction={k:mean}", [(8, 4)], None, "factor k has the unknown reduction 'mean'"),
    ("m k -> m reduction={k:max/min}", [(8, 4)], None, "factor k has 2 reductions but 1 outputs lack it"),
    ("m k -> m reduction={m}", [(8, 4)], None, "factor m is in reduction but every output carries it"),
    (
        "m k -> m k permutation={k} need_replication={k}",
        [(8, 4)],
        None,
        "both need_replication and permutation",
    ),
]


@pytest.mark.parametrize(("text", "inputs", "outputs", "message"), WRONG_SHAPES)
def test_shapes_that_do_not_fit_name_the_rule_the_factor_and_the_shapes(text, inputs, outputs, message):
    with pytest.raises(UsageError, match=message) as error:
        Template.parse(text).on(inputs, outputs)
    assert str(error.value).startswith(f"rule {text!r} on ")
    assert all(str(shape) in str(error.value) for shape in inputs)
