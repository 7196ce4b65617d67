"""Pages of prose and tables: what was audited and discovered, as one file of the same family as the page of a plan."""

from collections.abc import Iterator

import pytest

from shardwise.auditing import Audit, Wrong
from shardwise.display import Heading, Script, Table
from shardwise.report import audit_markdown, audit_page, plan_page, prose_page

BLOCKS = [
    Heading(1, "A <title>"),
    "Made by `a & b`.",
    Heading(2, "First"),
    Table(("row", "why"), [("`S(0) -> S(0)`", "1 < 2")]),
    Heading(3, "Inside"),
    Script("how", "print('<b>')\n", "<b>\n"),
    Heading(2, "Second"),
    "Nothing.",
]


def test_every_word_is_text_and_every_heading_a_card():
    page = prose_page(BLOCKS)
    assert "<h1>A &lt;title&gt;</h1>" in page
    assert "<p>Made by <code>a &amp; b</code>.</p>" in page
    assert "<td><code>S(0) -&gt; S(0)</code></td><td>1 &lt; 2</td>" in page
    assert "<pre>print(&#x27;&lt;b&gt;&#x27;)\n</pre>" in page
    assert page.count('<section class="wide">') == 2
    assert page.index("Inside") < page.index("</section>")


def test_an_audit_that_found_nothing_says_so():
    page = audit_page(Audit("2.13.0", (), (), (), (), (), (), 0, 0))
    assert page.count("<p>Nothing.</p>") == 3


def test_an_audit_names_what_is_wrong_and_shows_it():
    printed = "DTensor: True\nright:   False\n"
    call, row = "aten.any.default(float32[4])", "P(sum) -> P(sum)"
    wrong = Wrong("aten.any.default", call, "op strategy", row, "print(1)\n", printed)
    found = Audit("2.13.0", (wrong,), (), (), (("aten.any.default", "op strategy"),), (), (), 1, 1)
    text, page = audit_markdown(found, "shardwise audit"), audit_page(found)
    assert "Made by `shardwise audit`." in text
    assert "| `aten.any.default` | `P(sum) -> P(sum)` | op strategy | True | False |" in text
    assert f"```python\n{wrong.script}```" in text
    assert "<code>P(sum) -&gt; P(sum)</code>" in page


@pytest.fixture
def opened(browser, tmp_path) -> Iterator:
    pages = []

    def look(text, scheme):
        path = tmp_path / "page.html"
        path.write_text(text)
        page = browser.new_page(color_scheme=scheme)
        pages.append(page)
        page.on("console", lambda message: pytest.fail(message.text))
        page.on("pageerror", lambda error: pytest.fail(str(error)))
        page.goto(path.as_uri())
        return page

    yield look
    for page in pages:
        page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_looks_like_the_page_of_a_plan(opened, stack, scheme):
    style = "element => { const s = getComputedStyle(element); return [s.backgroundColor, s.color, s.fontFamily] }"
    prose, plan = opened(prose_page(BLOCKS), scheme), opened(plan_page(stack, runners_up=False), scheme)
    for selector in ("body", "section", "h1", "th"):
        assert prose.locator(selector).first.evaluate(style) == plan.locator(selector).first.evaluate(style)


def test_scripts_unfold(opened):
    page = opened(prose_page(BLOCKS), "light")
    assert not page.locator("pre").first.is_visible()
    page.locator("summary").click()
    assert page.locator("pre").first.inner_text() == "print('<b>')\n"
