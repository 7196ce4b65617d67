"""The JSON form of a plan: its graph, and what was chosen; rows are listed once and referred to by number."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from math import isclose
from pathlib import Path
from typing import Any, get_args

from ..documents import Field
from ..errors import UsageError
from ..expansion import Choice, is_valid
from ..files import read_document, write_text
from ..graph import Graph, Node, Ref, TensorInfo, read_graph
from ..layout import Layout
from ..mesh import COLLECTIVES, Cluster, Mesh
from ..placements import Row
from ..propagation import Annotations
from ..rules import offered_rows
from ._candidates import read_candidates
from ._confirm import Confirmation, RefutedChoice
from ._elsewhere import Elsewhere, require_elsewhere
from ._homes import homed, may_be_accumulated, may_be_held
from ._offers import Source
from ._pins import Pins
from ._plan import BaselineCost, Copy, Plan
from ._prices import OptimizerCost

FORMAT = "shardwise.plan/1"


def to_json(plan: Plan) -> dict[str, Any]:
    rows: dict[Row, int] = {}
    choices = {
        name: [[rows.setdefault(row, len(rows)) for row in choice.rows], choice.source]
        for name, choice in plan.choices.items()
    }
    return {
        "format": FORMAT,
        "mesh": str(plan.mesh),
        "cluster": plan.cluster.to_json(),
        "options": {
            "optimizer": plan.optimizer,
            "memory": plan.memory,
            "pins": {name: pin if isinstance(pin, str) else dict(pin) for name, pin in plan.pins.items()},
            "shardings": dict(plan.shardings),
            "elsewhere": {name: place.to_json() for name, place in plan.elsewhere.items()},
            "ahead": plan.ahead,
            "micro_batches": plan.micro_batches,
            "in_flight": plan.in_flight,
            "bound": plan.bound,
            "share_layers": plan.share_layers,
            "baselines": {name: _of_baseline(cost) for name, cost in plan.baselines.items()},
            "confirmation": None if plan.confirmation is None else asdict(plan.confirmation),
            "candidates": [candidate.to_json() for candidate in plan.candidates],
        },
        "cost": _of_cost(plan),
        "rows": [row.to_json() for row in rows],
        "inputs": {name: str(layout) for name, layout in plan.inputs.items()},
        "homes": {name: str(layout) for name, layout in plan.homes.items()},
        "on_host": list(plan.on_host),
        "choices": choices,
        "copies": [
            [copy.ref.name, copy.ref.output, str(copy.layout), list(copy.users)] for copy in plan.copies
        ],
        "outputs": [None if layout is None else str(layout) for layout in plan.outputs],
        "graph": plan.graph.to_json(),
    }


def _of_cost(plan: Plan) -> dict[str, Any]:
    cost = plan.cost
    return {
        "seconds": cost.seconds,
        "compute": cost.compute,
        "update": cost.update,
        "communication": cost.communication,
        "waiting": cost.waiting,
        "hidden": cost.hidden,
        "bytes_per_axis": cost.bytes_per_axis,
        "peak": cost.peak,
    }


def from_json(document: Any) -> Plan:
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise UsageError(f"this is not a plan: its 'format' is not {FORMAT!r}")
    return read_plan(Field(document))


def read_plan(document: Field) -> Plan:
    """The plan in a field of a document."""
    fields = document.object(_FIELDS, ("meshes", "homes", "on_host"))
    graph, mesh = read_graph(fields["graph"]), fields["mesh"].parsed(Mesh.parse)
    reading = _Reading(graph, mesh)
    inputs = reading.inputs(fields["inputs"])
    homes = reading.homes(fields["homes"], inputs) if "homes" in fields else {}
    plan = Plan(
        graph,
        mesh,
        Cluster.read(fields["cluster"]),
        inputs,
        reading.choices(fields["choices"], [Row.read(row) for row in fields["rows"].items()]),
        tuple(reading.copies(fields["copies"])),
        tuple(reading.outputs(fields["outputs"], homes)),
        homes=homes,
        on_host=reading.on_host(fields["on_host"], homes) if "on_host" in fields else (),
        **reading.options(fields["options"]),
    )
    _require_kept(plan, fields)
    return plan


_FIELDS = (
    *("format", "mesh", "cluster", "options", "cost", "rows", "inputs", "choices", "copies", "outputs"),
    "graph",
)


class _Reading:
    """The parts of a plan of a graph on a mesh, read from their fields."""

    def __init__(self, graph: Graph, mesh: Mesh) -> None:
        self.graph, self.mesh = graph, mesh
        self._known: dict[Any, list[Row] | None] = {}

    def layout(self, field: Field, tensor: TensorInfo) -> Layout:
        layout = field.parsed(lambda text: Layout.parse(text, self.mesh))
        with field.checked():
            layout.require_fits(tensor.shape)
        return layout

    def whole(self, field: Field, tensor: TensorInfo) -> Layout:
        """The layout of what the graph is given or gives back, which is not partial."""
        layout = self.layout(field, tensor)
        if layout.reductions:
            raise field.expected("a layout without partials")
        return layout

    def inputs(self, field: Field) -> dict[str, Layout]:
        fields = field.object([entry.name for entry in self.graph.inputs])
        return {entry.name: self.whole(fields[entry.name], entry.tensor) for entry in self.graph.inputs}

    def on_host(self, field: Field, homes: Mapping[str, Layout]) -> tuple[str, ...]:
        return tuple(name.one_of(list(homes)) for name in field.items())

    def homes(self, field: Field, held: Mapping[str, Layout]) -> dict[str, Layout]:
        known = {entry.name: entry for entry in self.graph.inputs if entry.name in homed(self.graph)}
        homes = {}
        for name, layout in field.object((), tuple(known)).items():
            homes[name] = self.whole(layout, known[name].tensor)
            if not may_be_held(homes[name], held[name]):
                raise layout.expected(f"a layout of which {str(held[name])!r} has some axes gathered")
        return homes

    def choices(self, field: Field, rows: list[Row]) -> dict[str, Choice]:
        fields = field.object([node.name for node in self.graph.nodes])
        return {node.name: self._choice(fields[node.name], node, rows) for node in self.graph.nodes}

    def _choice(self, field: Field, node: Node, rows: list[Row]) -> Choice:
        numbers, source = field.items(2)
        chosen = []
        for number in numbers.items(self.mesh.ndim):
            row = rows[number.integer(least=0, most=len(rows) - 1)]
            self._require_row(number, node, row)
            chosen.append(row)
        choice = Choice(self.mesh, tuple(chosen), source.one_of(get_args(Source)))
        inputs = [self.graph.tensor(ref).shape for ref in node.inputs]
        outputs = [None if info is None else info.shape for info in node.outputs]
        call = self.graph.call(node)
        if not is_valid(choice, inputs, outputs, call):
            raise numbers.wrong(f"expected rows that hold together for {call}, found {choice}")
        return choice

    def _require_row(self, field: Field, node: Node, row: Row) -> None:
        """Refuse a row of other tensors than the call's, or one that the book, which knows the call, does not have."""
        returned = [info is not None for info in node.outputs]
        if len(row.inputs) != len(node.inputs) or [p is not None for p in row.outputs] != returned:
            raise field.wrong(
                f"expected a row of {len(node.inputs)} inputs and {sum(returned)} outputs, as {node.op} has, "
                f"found {row}"
            )
        call = self.graph.call(node)
        if call.signature not in self._known:
            self._known[call.signature] = offered_rows(call)
        known = self._known[call.signature]
        if known is not None and not row.is_replicated and row not in known:
            raise field.wrong(f"expected a row that the book has for {call}, found {row.text}")

    def copies(self, field: Field) -> Iterator[Copy]:
        made: set[tuple[Ref, str]] = set()
        for entry in field.items():
            name, output, layout, users = entry.items(4)
            ref = Ref(name.text(), output.integer(least=0))
            known = {node.name for node in self.graph.users.get(ref, ())}
            if not known:
                raise entry.wrong(f"expected a tensor that a node uses, found {ref}")
            for user in users.items():
                if user.text() not in known or (ref, user.text()) in made:
                    raise user.expected(f"a node that uses {ref}, each once")
                made.add((ref, user.text()))
            tensor = self.graph.tensor(ref)
            yield Copy(ref, self.layout(layout, tensor), tuple(user.text() for user in users.items()))

    def outputs(self, field: Field, homes: Mapping[str, Layout]) -> Iterator[Layout | None]:
        own = {entry.target for entry in self.graph.inputs if entry.name in homes}
        for output, entry in zip(self.graph.outputs, field.items(len(self.graph.outputs)), strict=True):
            if output.value is None and entry.value is not None:
                raise entry.expected("null, as the output is no tensor")
            if output.value is None:
                yield None
                continue
            read = self.layout if output.role == "gradient" and output.target in own else self.whole
            yield read(entry, self.graph.tensor(output.value))

    def options(self, field: Field) -> dict[str, Any]:
        """What the plan was made for, and what came of it."""
        fields = field.object(
            ("optimizer", "memory", "pins", "ahead", "bound", "share_layers", "baselines", "confirmation"),
            ("shardings", "elsewhere", "micro_batches", "in_flight", "candidates"),
        )
        optimizer = fields["optimizer"].parsed(OptimizerCost.of).name
        pins = fields["pins"].members()
        with fields["pins"].checked():
            Pins(self.mesh, fields["pins"].value).require_all_used(self.graph)
        return {
            "optimizer": optimizer,
            "memory": fields["memory"].optional(lambda memory: memory.integer(least=0)),
            "pins": {name: pin.value for name, pin in pins.items()},
            "shardings": self._shardings(fields["shardings"]) if "shardings" in fields else {},
            "elsewhere": self._elsewhere(fields["elsewhere"]) if "elsewhere" in fields else {},
            "ahead": fields["ahead"].optional(lambda ahead: ahead.integer(least=0)),
            "micro_batches": fields["micro_batches"].integer(least=1) if "micro_batches" in fields else 1,
            "in_flight": fields["in_flight"].integer(least=1) if "in_flight" in fields else 1,
            "bound": fields["bound"].optional(Field.number),
            "share_layers": fields["share_layers"].flag(),
            "confirmation": fields["confirmation"].optional(_confirmation),
            "candidates": read_candidates(fields["candidates"]) if "candidates" in fields else (),
            "baselines": {
                name: cost.optional(_baseline) for name, cost in fields["baselines"].members().items()
            },
        }

    def _elsewhere(self, field: Field) -> dict[str, Elsewhere]:
        places = {name: Elsewhere.read(place) for name, place in field.members().items()}
        with field.checked():
            require_elsewhere(places, self.graph)
        return places

    def _shardings(self, field: Field) -> dict[str, str]:
        texts = {name: sharding.text() for name, sharding in field.members().items()}
        with field.checked():
            Annotations(self.mesh, texts).require_fit(self.graph)
        return texts


def _confirmation(document: Field) -> Confirmation:
    fields = document.object(("confirmed", "undecided", "refuted"))
    refuted = [found.object(("call", "choice", "reason")) for found in fields["refuted"].items()]
    return Confirmation(
        fields["confirmed"].integer(least=0),
        fields["undecided"].integer(least=0),
        tuple(
            RefutedChoice(*(found[name].text() for name in ("call", "choice", "reason"))) for found in refuted
        ),
    )


def _baseline(document: Field) -> BaselineCost:
    fields = document.object(("seconds", "peak", "compute", "update", "communication", "waiting", "hidden"))
    communication = fields["communication"].object((), (*COLLECTIVES, "transfer"))
    cost = BaselineCost(
        fields["compute"].number(),
        fields["update"].number(),
        {kind: seconds.number() for kind, seconds in communication.items()},
        fields["peak"].integer(least=0),
        fields["waiting"].number(),
        fields["hidden"].number(),
    )
    if not isclose(fields["seconds"].number(), cost.seconds, rel_tol=_SAME):
        raise fields["seconds"].expected(f"{cost.seconds}, the sum of the parts")
    return cost


# By how much costs may differ that were computed from the same numbers.
_SAME = 1e-6


def _require_kept(plan: Plan, fields: dict[str, Field]) -> None:
    """Refuse a plan that does not cost what it says, or is not what it says it was made for."""
    stated = fields["cost"].object(tuple(_of_cost(plan)))
    for name, right in _of_cost(plan).items():
        parts = {"": stated[name]} if not isinstance(right, dict) else stated[name].object(tuple(right))
        for part, field in parts.items():
            value = right[part] if isinstance(right, dict) else right
            if not isclose(field.number(), value, rel_tol=_SAME):
                raise field.expected(f"{value}, which is what the choices cost")
    options = fields["options"].members()
    if plan.bound is not None and not plan.share_layers and plan.bound > plan.cost.seconds * (1 + _SAME):
        raise options["bound"].expected(f"at most {plan.cost.seconds}, the seconds of the plan")
    if plan.memory is not None and plan.memory < plan.cost.peak:
        raise options["memory"].expected(f"at least {plan.cost.peak}, the peak of the plan")
    targets = {entry.target: plan.home(entry.name) for entry in plan.graph.inputs if entry.role != "tangent"}
    for output, layout, field in zip(
        plan.graph.outputs, plan.outputs, fields["outputs"].items(), strict=True
    ):
        if layout is None or output.role == "user_output":
            continue
        fits = may_be_accumulated if output.role == "gradient" else Layout.__eq__
        if not fits(targets[output.target], layout):
            raise field.expected(f"{str(targets[output.target])!r}, the layout of {output.target}")


def _of_baseline(cost: BaselineCost | None) -> dict[str, Any] | None:
    if cost is None:
        return None
    parts = {"compute": cost.compute, "update": cost.update, "communication": dict(cost.communication)}
    parts["waiting"], parts["hidden"] = cost.waiting, cost.hidden
    return {"seconds": cost.seconds, "peak": cost.peak, **parts}


def save(plan: Plan, path: Path) -> None:
    write_text(path, json.dumps(to_json(plan)) + "\n")


def load(path: Path) -> Plan:
    return read_document(path, from_json)
