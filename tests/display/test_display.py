"""Blocks: the same words as text, as Markdown and as HTML."""

import re

import pytest

from shardwise.display import (
    Bar,
    Bars,
    Heading,
    Outcome,
    Plot,
    Point,
    Script,
    Shown,
    Table,
    as_fragment,
    as_html,
    as_markdown,
    as_text,
    below,
    style,
)

BLOCKS = [
    Heading(1, "softmax of `x`"),
    "Dispatches to `aten._softmax.default`.",
    Bars((Bar("compute", "3.00 ms", 0.75), Bar("all_gather", "1.00 ms", 0.25))),
    Heading(2, "Rows"),
    Table(("row", ">survived"), [("`S(0) -> S(0)`", "36"), ("`S(2) -> S(2)`", "7")]),
    Outcome(False, "one row is refuted"),
]


def test_text_is_in_columns_and_without_marks():
    assert as_text(BLOCKS).splitlines() == [
        "softmax of x",
        "Dispatches to aten._softmax.default.",
        "",
        "  compute     3.00 ms  75.0%  ##################",
        "  all_gather  1.00 ms  25.0%  ######",
        "",
        "Rows",
        "  row           survived",
        "  S(0) -> S(0)        36",
        "  S(2) -> S(2)         7",
        "",
        "one row is refuted",
    ]


def test_markdown_says_the_same():
    text = as_markdown(BLOCKS)
    assert text.startswith("# softmax of `x`\n\nDispatches to `aten._softmax.default`.\n\n")
    assert "| row | survived |\n| --- | ---: |\n| `S(0) -> S(0)` | 36 |" in text
    assert "| compute | 3.00 ms | 75.0% |" in text
    assert "**one row is refuted**" in text


def test_html_says_the_same():
    html = as_html(BLOCKS)
    assert html.startswith("<h1>softmax of <code>x</code></h1>\n<p>Dispatches to <code>")
    assert '<th>row</th><th class="number">survived</th>' in html
    assert '<td><code>S(0) -&gt; S(0)</code></td><td class="number">36</td>' in html
    assert "--colour: var(--part-all_gather, var(--part-other)); width: 25.00%" in html
    assert '<p class="warn">one row is refuted</p>' in html


def test_a_table_without_headings_shows_none():
    table = Table(("", ">"), [("a", "1")])
    assert as_text([table]) == "  a  1"
    assert "<th" not in as_html([table])


def test_a_column_may_be_empty():
    assert as_text([Table(("", "a"), [("", "b")])]).splitlines() == ["    a", "    b"]
    assert as_text([Table(("", ""), [])]) == ""


@pytest.mark.parametrize("width", [40, 80])
def test_text_is_wrapped_within_its_column(width):
    long = "S(d), R, R -> S(d), S(d), S(d) when d < ndim(0)-len(normalized_shape) and not transposed"
    lines = as_text(
        ["word " * 40, Table((">calls", "clause", "why"), [("3", long, "batch dim")])], width
    ).splitlines()
    assert max(map(len, lines)) <= width
    assert " ".join(" ".join(lines).split()).count("batch dim") == 1
    for word in long.split():
        assert any(word in line for line in lines)


HOSTILE = "<script>alert('&\"')</script>"


@pytest.mark.parametrize(
    "block",
    [
        HOSTILE,
        f"`{HOSTILE}`",
        Heading(2, HOSTILE),
        Table((HOSTILE, f">{HOSTILE}"), [(HOSTILE, HOSTILE)]),
        Script(HOSTILE, HOSTILE, HOSTILE),
        Bars((Bar(HOSTILE, HOSTILE, 0.5),)),
        Plot(HOSTILE, HOSTILE, (Point(1, 1, HOSTILE, HOSTILE),)),
        Outcome(True, HOSTILE),
    ],
)
def test_no_word_becomes_markup(block):
    html = as_html([block])
    assert "<script" not in html and "alert(" in html
    for tag in re.findall(r"<[^>]*>", html):
        assert "alert" not in tag.replace("--part--script-alert--------script-", "")


def test_a_plot_is_a_staircase_of_what_is_least():
    points = (Point(1, 3.0, "1 GB", "3 s"), Point(2, 2.0, "2 GB", "2 s"), Point(4, 1.0, "4 GB", "1 s"))
    plot = Plot("memory", "time", points)
    drawn = [line.split("|")[1] for line in as_text([plot]).splitlines() if "|" in line]
    stars = [(line.index("*"), line.count("-")) for line in drawn if "*" in line]
    assert [at for at, _ in stars] == sorted(at for at, _ in stars) and len(stars) == 3
    assert stars[1][1] > stars[0][1] > 0
    html = as_html([plot])
    assert html.count("<circle") == 3 and ">2 s<" in html and ">4 GB<" in html
    assert "| 2 GB | 2 s |" in as_markdown([plot])
    assert as_text([Plot("memory", "time", points[:1])]).count("*") == 1


def test_headings_inside_something_else_are_lower():
    assert [b.level for b in below(BLOCKS, 2) if isinstance(b, Heading)] == [3, 4]
    assert "<h3>softmax of <code>x</code></h3>" in as_fragment(BLOCKS)


def test_what_a_result_shows_is_made_of_its_blocks():
    class Result(Shown):
        def blocks(self):
            return BLOCKS

    assert str(Result()) == as_text(BLOCKS)
    assert Result()._repr_html_() == as_fragment(BLOCKS)


def test_a_fragment_changes_nothing_around_it():
    assert style() in as_fragment(BLOCKS)
    rules = re.sub(r"/\*.*?\*/", "", style(), flags=re.DOTALL)
    selectors = re.findall(r"(?:^|\})\s*([^{}]+)\{", rules)
    assert selectors
    for selector in selectors:
        for each in selector.split(","):
            assert re.match(r"(div)?\.shardwise\b", each.strip()), each
