"""The page of a plan: the document of the plan in an HTML template with its style and scripts."""

import json
from html import escape
from importlib.resources import files

from ..display import style
from ..planning import Plan
from ..progress import Progress, silent
from ._document import document

_PAGE = files(__package__) / "page"
_SCRIPTS = ("make.js", "tensor.js", "charts.js", "detail.js", "tree.js", "start.js")


def plan_page(plan: Plan, *, runners_up: bool = True, progress: Progress = silent) -> str:
    """A plan as one self-contained HTML file.

    With `runners_up` (seconds for a large model) the page also shows the alternatives of each call.
    """
    # Inside a script element only `</script` and `<!--` could end it: no `<` is left.
    made = document(plan, runners_up=runners_up, progress=progress)
    data = json.dumps(made, separators=(",", ":")).replace("<", "\\u003c")
    parts = {
        "title": f"{escape(plan.graph.name)} on {plan.mesh}",
        "style": page_style(),
        "script": "\n".join(_read(name) for name in _SCRIPTS),
        "data": data,
    }
    before, *rest = _read("plan.html").split("{{")
    pieces = [before]
    for part in rest:
        name, _, after = part.partition("}}")
        pieces += [parts[name], after]
    return "".join(pieces)


def page_style() -> str:
    """The style of blocks, and that of pages."""
    return style() + _read("plan.css")


def _read(name: str) -> str:
    return (_PAGE / name).read_text()
