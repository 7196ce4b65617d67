"""The JSON form of a plan: its graph, and what was chosen; rows are listed once and referred to by number."""

import json
from dataclasses import asdict
from pathlib import Path
from types import NoneType
from typing import Any

from ..errors import UsageError, require
from ..expansion import Choice
from ..files import read_document, write_text
from ..graph import Graph, Ref
from ..layout import Layout
from ..mesh import Cluster, Mesh
from ..placements import Row
from ._confirm import confirmation_from_json
from ._plan import BaselineCost, Copy, Plan

FORMAT = "shardwise.plan/1"


def to_json(plan: Plan) -> dict[str, Any]:
    rows: dict[Row, int] = {}
    choices = {
        name: [[rows.setdefault(row, len(rows)) for row in choice.rows], choice.source]
        for name, choice in plan.choices.items()
    }
    cost = plan.cost
    return {
        "format": FORMAT,
        "mesh": str(plan.mesh),
        "cluster": plan.cluster.to_json(),
        "options": {
            "optimizer": plan.optimizer,
            "memory": plan.memory,
            "pins": {name: pin if isinstance(pin, str) else dict(pin) for name, pin in plan.pins.items()},
            "bound": plan.bound,
            "alike": plan.alike,
            "baselines": {name: _of_baseline(cost) for name, cost in plan.baselines.items()},
            "confirmation": None if plan.confirmation is None else asdict(plan.confirmation),
        },
        "cost": {
            "seconds": cost.seconds,
            "compute": cost.compute,
            "update": cost.update,
            "communication": cost.communication,
            "bytes_per_axis": cost.bytes_per_axis,
            "peak": cost.peak,
        },
        "rows": [row.to_json() for row in rows],
        "inputs": {name: str(layout) for name, layout in plan.inputs.items()},
        "choices": choices,
        "copies": [
            [copy.ref.name, copy.ref.output, str(copy.layout), list(copy.users)] for copy in plan.copies
        ],
        "outputs": [None if layout is None else str(layout) for layout in plan.outputs],
        "graph": plan.graph.to_json(),
    }


def from_json(document: Any) -> Plan:
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise UsageError(f"this is not a plan: its 'format' is not {FORMAT!r}")
    try:
        mesh = Mesh.parse(document["mesh"])
        rows = [Row.from_json(row) for row in document["rows"]]
        return Plan(
            Graph.from_json(document["graph"]),
            mesh,
            Cluster.from_json(document["cluster"]),
            {name: Layout.parse(text, mesh) for name, text in document["inputs"].items()},
            {
                name: Choice(mesh, tuple(rows[number] for number in numbers), source)
                for name, (numbers, source) in document["choices"].items()
            },
            tuple(
                Copy(Ref(name, output), Layout.parse(layout, mesh), tuple(users))
                for name, output, layout, users in document["copies"]
            ),
            tuple(None if text is None else Layout.parse(text, mesh) for text in document["outputs"]),
            **_options(document["options"]),
        )
    except UsageError:
        raise
    except KeyError as error:
        raise UsageError(f"the plan lacks {error}") from None
    except (TypeError, AttributeError, ValueError, IndexError) as error:
        raise UsageError(f"the plan is malformed: {error}") from None


def _of_baseline(cost: BaselineCost | None) -> dict[str, Any] | None:
    if cost is None:
        return None
    parts = {"compute": cost.compute, "update": cost.update, "communication": dict(cost.communication)}
    return {"seconds": cost.seconds, "peak": cost.peak, **parts}


def _options(document: dict[str, Any]) -> dict[str, Any]:
    """The fields of a plan that say what it was planned for and what came of it."""
    optimizer, memory, bound = (document.get(name) for name in ("optimizer", "memory", "bound"))
    alike = document.get("alike", False)
    require(optimizer, (str, NoneType), "the plan's optimizer", "a name such as 'adam'")
    require(memory, (int, NoneType), "the plan's memory", "a number of bytes")
    require(bound, (int, float, NoneType), "the plan's bound", "a number of seconds")
    require(alike, bool, "the plan's alike", "true or false")
    baselines = {
        name: None
        if cost is None
        else BaselineCost(cost["compute"], cost["update"], cost["communication"], cost["peak"])
        for name, cost in document.get("baselines", {}).items()
    }
    given = {"optimizer": optimizer or "none", "memory": memory, "bound": bound, "alike": alike}
    confirmation = confirmation_from_json(document.get("confirmation"))
    return {**given, "pins": document.get("pins", {}), "baselines": baselines, "confirmation": confirmation}


def save(plan: Plan, path: Path) -> None:
    write_text(path, json.dumps(to_json(plan)) + "\n")


def load(path: Path) -> Plan:
    return read_document(path, from_json)
