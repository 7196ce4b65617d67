import json

import pytest

from shardwise import Plan


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    import torch

    from shardwise import plan

    path = tmp_path_factory.mktemp("plan") / "plan.json"
    made = plan(torch.nn.Linear(8, 8), (torch.rand(4, 8),), mesh="dp=2", cluster="laptop", time_limit=300)
    made.save(path)
    return path


def test_the_page_is_written_beside_the_plan(shardwise, saved):
    status, out, err = shardwise("report", saved)
    assert (status, err) == (0, "")
    page = saved.with_suffix(".html")
    assert out.strip() == f"written to {page}"
    assert page.read_text().startswith("<!doctype html>")


def test_json_is_what_the_page_shows(shardwise, saved):
    _, out, _ = shardwise("report", saved, "--json", "--quick")
    assert json.loads(out)["cost"]["seconds"] == Plan.load(saved).cost.seconds


@pytest.mark.parametrize(
    ("text", "out", "message"),
    [
        ("{}", "page.html", "this is not a plan"),
        (
            '{"format": "shardwise.plan/1", "mesh": "d=2", "rows": 3}',
            "page.html",
            "expected the field 'cluster'",
        ),
        ("no json", "page.html", "is not valid JSON"),
        (None, "page.html", "cannot be read"),
        ("plan", "no/such/folder/page.html", "cannot be written"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(shardwise, saved, tmp_path, text, out, message):
    path = tmp_path / "given.json"
    if text is not None:
        path.write_text(saved.read_text() if text == "plan" else text)
    status, printed, err = shardwise("report", path, "--out", tmp_path / out)
    assert (status, printed) == (2, "")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (("torch.softmax", "--shape", "4,6,8", "--kw", "dim=1"), "S(0) -&gt; S(0)"),
        (("torch.abs", "--sweep"), "S(d) -&gt; S(d)"),
    ],
)
def test_what_discovery_found_is_written_as_a_page(shardwise, tmp_path, arguments, found):
    status, _, err = shardwise("discover", *arguments, "--html", tmp_path / "page.html")
    assert (status, err) == (0, "")
    assert f"<td><code>{found}</code></td>" in (tmp_path / "page.html").read_text()
