"""The JSON form of a plan: its graph, and what was chosen; rows are listed once and referred to by number."""

import json
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..expansion import Choice
from ..files import read_document, write_text
from ..graph import Graph, Ref
from ..layout import Layout
from ..mesh import Cluster, Mesh
from ..placements import Row
from ._plan import Copy, Plan

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
        "options": dict(plan.options),
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
        raise UsageError(f"this is no plan: its 'format' is not {FORMAT!r}")
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
            document["options"],
        )
    except UsageError:
        raise
    except KeyError as error:
        raise UsageError(f"the plan lacks {error}") from None
    except (TypeError, AttributeError, ValueError, IndexError) as error:
        raise UsageError(f"the plan is malformed: {error}") from None


def save(plan: Plan, path: Path) -> None:
    write_text(path, json.dumps(to_json(plan)) + "\n")


def load(path: Path) -> Plan:
    return read_document(path, from_json)
