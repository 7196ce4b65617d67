"""The page of a plan in a real browser: it opens without complaint, folds, searches and shows the plan's numbers."""

import os
import re
from pathlib import Path

import pytest

from shardwise.planning import bytes_text, time_text
from shardwise.report import document, plan_page


@pytest.fixture(scope="module")
def page_file(stack, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "plan.html"
    path.write_text(plan_page(stack))
    return path


@pytest.fixture
def open_page(browser, page_file):
    """Opens the page; whatever it asks from the network or writes to the console fails the test."""
    contexts, complaints = [], []

    def start(path=page_file, **options):
        context = browser.new_context(viewport={"width": 1400, "height": 1500}, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "request",
            lambda request: request.url.startswith(("file:", "data:")) or complaints.append(request.url),
        )
        page.goto(path.as_uri())
        return page

    yield start
    for context in contexts:
        context.close()
    assert complaints == []


def lines(page):
    return page.locator("#tree .line:visible")


def test_it_shows_the_numbers_of_the_plan(open_page, stack):
    page = open_page()
    assert page.locator("h1").inner_text() == "Stack"
    about = page.locator("#about").inner_text()
    assert time_text(stack.cost.seconds) in about
    assert bytes_text(stack.cost.peak) in about
    step = page.locator("#step").inner_text()
    for name, line in stack.baselines.items():
        assert name in step
        assert time_text(line.seconds) in step
    assert f"limit {bytes_text(stack.memory)}" in page.locator("#memory").text_content()


def test_lines_are_built_when_they_are_unfolded(open_page):
    page = open_page()
    before = page.locator("#tree .line").count()
    group = page.locator("#tree .line", has_text=" equal").first
    group.click()
    assert page.locator("#tree .line").count() > before
    shown = lines(page).count()
    group.click()
    assert lines(page).count() < shown


def test_search_leads_to_a_call_with_its_rows_and_runner_up(open_page, stack):
    page = open_page()
    page.keyboard.press("/")
    page.keyboard.type("layers.2.up addmm forward")
    assert page.locator("#found").inner_text() == "1 found"
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    detail = page.locator("#detail").inner_text()
    [node] = [
        n
        for n in stack.graph.nodes
        if (n.op, n.module, n.phase) == ("aten.addmm.default", "layers.2.up", "forward")
    ]
    assert f"%{node.name}: addmm" in detail
    for row in stack.choices[node.name].rows:
        assert str(row) in detail
    assert "Chosen and runners-up" in detail
    assert re.search(r"\+\d+\.\d+ (ns|us|ms)", detail)


def test_a_call_comes_with_what_the_book_knows(open_page, stack):
    known = document(stack, runners_up=False)["rules"]
    op = next(op for op, rule in known.items() if rule and rule.get("clauses"))
    page = open_page()
    page.fill("#search", op.removeprefix("aten.").removesuffix(".default"))
    page.locator("#results button").first.click()
    detail = page.locator("#detail").inner_text()
    assert "The book's rule of" in detail
    assert known[op]["clauses"][0][0] in detail


def test_a_search_for_nothing_known_says_so(open_page):
    page = open_page()
    page.fill("#search", "no such module")
    assert page.locator("#found").inner_text() == "0 found"
    assert page.locator("#results").is_hidden()


def test_redistributions_show_bytes_and_time(open_page, stack):
    made = document(stack, runners_up=False)
    move = max(stack.schedule.moves, key=lambda move: move.change.price)
    [entry] = [e for m, e in zip(stack.schedule.entries, made["entries"], strict=True) if m is move]
    page = open_page()
    kinds = " ".join(step.kind.replace("_", "-") for step in move.change.collectives)
    page.fill("#search", f"{kinds} {entry['moved'][0]}")
    page.locator("#results button").first.click()
    detail = page.locator("#detail").inner_text()
    assert time_text(move.change.price) in detail
    assert bytes_text(sum(step.size for step in move.change.collectives)) in detail


def test_everything_is_reached_by_keyboard(open_page):
    page = open_page()
    page.locator("#tree [role=treeitem][tabindex='0']").focus()
    page.keyboard.press("ArrowLeft")
    assert lines(page).count() == 1
    page.keyboard.press("ArrowRight")
    assert lines(page).count() > 1
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    assert page.locator("#tree [aria-selected=true]").count() == 1
    assert page.locator("#tree [role=treeitem]:focus").get_attribute("aria-selected") == "true"
    page.keyboard.press("Home")
    assert page.locator("#tree [role=treeitem]:focus").get_attribute("aria-level") == "1"


def luminance(colour):
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("text", ["body", ".soft", "#about", "th"])
def test_text_stands_out_in_light_and_dark(open_page, scheme, text):
    page = open_page(color_scheme=scheme)
    colour = page.locator(text).first.evaluate("element => getComputedStyle(element).color")
    for ground in ("body", "section"):
        behind = page.locator(ground).first.evaluate("element => getComputedStyle(element).backgroundColor")
        high, low = sorted((luminance(colour), luminance(behind)), reverse=True)
        assert (high + 0.05) / (low + 0.05) >= 4.5


def test_it_fits_a_telephone(open_page):
    page = open_page()
    page.set_viewport_size({"width": 400, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 400


def test_it_prints(open_page):
    page = open_page(color_scheme="dark")
    page.emulate_media(media="print")
    ground = page.locator("body").evaluate("element => getComputedStyle(element).backgroundColor")
    assert luminance(ground) == pytest.approx(1)
    assert page.locator("#search").is_hidden()
    assert len(page.pdf()) > 10_000


@pytest.mark.skipif(
    "SHARDWISE_SCREENSHOTS" not in os.environ, reason="SHARDWISE_SCREENSHOTS names no folder to write to"
)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_screenshots_for_the_documentation(open_page, scheme):
    page = open_page(color_scheme=scheme)
    page.set_viewport_size({"width": 1400, "height": 1000})
    page.fill("#search", "layers.1.up addmm forward")
    page.locator("#results button").first.click()
    page.fill("#search", "")
    page.evaluate("document.activeElement.blur(); window.scrollTo(0, 0)")
    page.screenshot(path=Path(os.environ["SHARDWISE_SCREENSHOTS"]) / f"report-{scheme}.png", full_page=True)
