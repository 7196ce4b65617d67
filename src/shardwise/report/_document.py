"""The content of the page of a plan as one JSON document: every number on the page comes from here.

Repeated items (layouts, shapes, rows, considered choices) are listed once and referred to by index, so that a plan of
nine thousand calls stays a few megabytes and the page can build its tree lazily.
"""

from collections.abc import Hashable, Iterator, Sequence
from math import isinf
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..graph import Input, Node, TensorInfo, pattern
from ..layout import Layout
from ..placements import is_partial
from ..planning import (
    BaselineCost,
    Compute,
    Considered,
    Cost,
    Explainer,
    Move,
    Plan,
    Value,
    Wait,
    departures_text,
)
from ..progress import Progress, silent
from ..rules import book, is_by_hand
from ._lanes import lanes
from ._tree import tree

_POINTS = 400  # of the curve of memory
_SHOWN = 6  # choices of a call


class _Listed:
    """A list of distinct items, looked up by index."""

    def __init__(self) -> None:
        self.numbers: dict[Hashable, int] = {}
        self.all: list[Any] = []

    def of(self, key: Hashable, shown: Any = None) -> int:
        number = self.numbers.setdefault(key, len(self.all))
        if number == len(self.all):
            self.all.append(key if shown is None else shown)
        return number


def document(plan: Plan, *, runners_up: bool = True, progress: Progress = silent) -> dict[str, Any]:
    """The document of a plan. With `runners_up`, the alternatives of each call are priced again."""
    return _Document(plan, runners_up, progress).made()


class _Document:
    def __init__(self, plan: Plan, runners_up: bool, progress: Progress) -> None:
        self.plan, self.progress = plan, progress
        # Waiting takes no place in the tree: a redistribution is listed once.
        steps = zip(plan.schedule.entries, plan.cost.entries, plan.cost.held, strict=True)
        listed = [(entry, seconds, held) for entry, seconds, held in steps if not isinstance(entry, Wait)]
        self.entries = [entry for entry, _, _ in listed]
        self.seconds, self.held = [each for _, each, _ in listed], [held for _, _, held in listed]
        self.layouts, self.tensors, self.rows = _Listed(), _Listed(), _Listed()
        self.modules, self.considered = _Listed(), _Listed()
        self.notes: list[str] = []
        self.explainer: Explainer | None = None
        if runners_up:
            progress("pricing alternatives")
            try:
                self.explainer = Explainer(plan)
            except UsageError as error:
                self.notes.append(f"Without runners-up: {error}.")
        if plan.shardings:
            given = ", ".join(f"{name} {sharding}" for name, sharding in plan.shardings.items())
            self.notes.append(f"Propagated from {given}; {departures_text(plan)}.")
        self._alike: dict[Hashable, int] = {}

    def made(self) -> dict[str, Any]:
        plan = self.plan
        inputs = [self._input(entry) for entry in plan.graph.inputs]
        entries: list[dict[str, Any]] = []
        for entry, seconds in zip(self.entries, self.seconds, strict=True):
            self.progress("drawing", len(entries), len(self.entries))
            entries.append(
                self._compute(entry, seconds) if isinstance(entry, Compute) else self._move(entry, seconds)
            )
        self._place_moves(entries)
        return {
            "name": plan.graph.name,
            "training": plan.graph.training,
            "mesh": [list(pair) for pair in zip(plan.mesh.names, plan.mesh.shape, strict=True)],
            "cluster": plan.cluster.name,
            "calls": len(plan.graph.nodes),
            "notes": self.notes,
            "cost": self._cost(),
            "against": list(self._against()),
            "limit": plan.memory,
            "bound": plan.bound,
            "held": self._held(),
            "timeline": lanes(plan),
            "tree": tree(plan.graph.name, self.modules.all, inputs, entries),
            "inputs": inputs,
            "entries": entries,
            "modules": self.modules.all,
            "layouts": self.layouts.all,
            "tensors": self.tensors.all,
            "rows": self.rows.all,
            "considered": self.considered.all,
            "rules": {op: _rule(op) for op in sorted({node.op for node in plan.graph.nodes})},
        }

    # -- totals

    def _cost(self) -> dict[str, Any]:
        cost = self.plan.cost
        return {
            "seconds": cost.seconds,
            "parts": _parts(cost),
            "bytes": cost.bytes_per_axis,
            "peak": cost.peak,
            "lasting": cost.lasting,
        }

    def _against(self) -> Iterator[dict[str, Any]]:
        for name, cost in self.plan.baselines.items():
            if cost is None:
                yield {"name": name, "seconds": None}
            else:
                parts = _parts(cost)
                yield {"name": name, "seconds": cost.seconds, "peak": cost.peak, "parts": parts}

    def _held(self) -> dict[str, Any]:
        """Bytes over time: the maximum of each interval, with the entry at which it is reached."""
        held, seconds = self.held, self.seconds
        begun, now = [], 0.0
        for each in seconds:
            begun.append(now)
            now += each
        width = -(-len(held) // _POINTS) or 1
        points = []
        for first in range(0, len(held), width):
            top = max(range(first, min(first + width, len(held))), key=held.__getitem__)
            points.append([begun[first], held[top], top])
        return {"points": points, "until": now}

    # -- tensors

    def _layout(self, layout: Layout) -> int:
        text = str(layout)
        if text in self.layouts.numbers:
            return self.layouts.numbers[text]
        partial = [[a, p.reduce_op] for a, p in enumerate(layout.placements) if is_partial(p)]
        cuts = {str(dim): list(layout.axes(dim)) for dim in layout.sharded_dims}
        return self.layouts.of(text, {"text": text, "cuts": cuts, "partial": partial})

    def _tensor(self, tensor: TensorInfo) -> int:
        return self.tensors.of((str(tensor.dtype)[6:], tensor.shape))

    def _value(self, value: Value) -> list[Any]:
        layout = self._layout(self.plan.schedule.layouts[value])
        maker = self.plan.graph[value.ref.name]
        name = maker.target if isinstance(maker, Input) else str(value.ref)
        return [name, self._tensor(self.plan.graph.tensor(value.ref)), layout]

    def _input(self, entry: Input) -> dict[str, Any]:
        module = entry.target.rpartition(".")[0] if entry.role in ("parameter", "buffer") else ""
        return {
            "name": entry.name,
            "role": entry.role,
            "target": entry.target,
            "module": self.modules.of(module),
            "value": [entry.target, self._tensor(entry.tensor), self._layout(self.plan.inputs[entry.name])],
        }

    # -- entries of the schedule

    def _compute(self, entry: Compute, seconds: float) -> dict[str, Any]:
        node = entry.node
        made = {
            "name": node.name,
            "op": node.op,
            "module": self.modules.of(node.module),
            "phase": node.phase,
            "seconds": seconds,
            "flops": node.flops,
            "text": str(node),
            "source": _nearby(node.source),
            "inputs": [self._value(value) for value in entry.inputs],
            "outputs": [self._value(value) for value in entry.made],
            "rows": self.rows.of(tuple(map(str, entry.choice.rows))),
            "from": entry.choice.source,
            "considered": self._considered(node, entry),
        }
        if entry.choice.local is not None:
            made["local"] = entry.choice.local
        return made

    def _move(self, move: Move, seconds: float) -> dict[str, Any]:
        names = self.plan.mesh.names
        return {
            "moved": self._value(move.source),
            "to": self._layout(move.change.target),
            "steps": [
                [step.kind, [names[a] for a in step.axes], 0 if step.is_local else step.size, step.seconds]
                for step in move.change.steps
            ],
            "seconds": seconds,
        }

    def _place_moves(self, entries: Sequence[dict[str, Any]]) -> None:
        """A redistribution is listed where it is needed: with the call that uses it, or, for an output of the graph,
        with its producer."""
        under_way: dict[Value, int] = {}
        last: dict[Value, int] = {}
        for number, entry in enumerate(self.entries):
            if isinstance(entry, Move):
                under_way[entry.target] = number
                continue
            for value in entry.inputs:
                while (move := under_way.pop(value, None)) is not None:
                    entries[move] |= {"module": entries[number]["module"], "for": number}
                    value = self.entries[move].used[0]
            last |= dict.fromkeys(entry.made, number)
        for number, entry in enumerate(self.entries):
            if isinstance(entry, Move) and "module" not in entries[number]:
                maker = last.get(Value(entry.source.ref))
                place = self.modules.of("") if maker is None else entries[maker]["module"]
                entries[number]["module"] = place

    def _considered(self, node: Node, entry: Compute) -> int | None:
        """The alternatives of the call, computed once for equal calls."""
        if self.explainer is None:
            return None
        layouts = tuple(str(self.plan.schedule.layouts[value]) for value in (*entry.inputs, *entry.made))
        tensors = tuple(map(self.plan.graph.tensor, node.inputs))
        key = (node.op, pattern(node.module), node.phase, entry.choice.rows, layouts, tensors, node.outputs)
        if key not in self._alike:
            found = self.explainer.considered(node.name)
            self._alike[key] = self.considered.of((node.name,), _choices(node.name, found))
        return self._alike[key]


def _nearby(source: str) -> str:
    """A place in a file, relative to the current directory or to site-packages."""
    return source.removeprefix(f"{Path.cwd()}/").rpartition("site-packages/")[2]


def _parts(cost: Cost | BaselineCost) -> dict[str, float]:
    waiting = {"waiting for the host": cost.waiting} if cost.waiting else {}
    sent = sum(cost.communication.values())
    share = 1 - cost.hidden / sent if sent else 1.0  # of collectives, as long as calls wait for them
    exposed = {kind: seconds * share for kind, seconds in cost.communication.items()}
    return {"compute": cost.compute, "optimizer": cost.update, **exposed, **waiting}


def _choices(name: str, found: Sequence[Considered]) -> dict[str, Any]:
    fits = [entry for entry in found if not isinf(entry.seconds)]
    shown = fits[:_SHOWN]
    shown += [entry for entry in found if entry.chosen and entry not in shown]
    return {
        "of": name,
        "all": len(found),
        "fit": len(fits),
        "shown": [
            [entry.rows, _finite(entry.compute), _finite(entry.redistribution), entry.chosen, entry.bytes]
            for entry in shown
        ],
    }


def _finite(seconds: float) -> float | None:
    return None if isinf(seconds) else seconds


def _rule(op: str) -> dict[str, Any] | None:
    """The book's rule of an operator, with its evidence."""
    if is_by_hand(op):
        return {"hand": True}
    entry = book().entry(op)
    if entry is None or entry.rule is None:
        return None
    return {
        "clauses": [[str(clause), clause.reason] for clause in entry.rule.clauses],
        "evidence": {k: v for k, v in entry.rule.evidence.items() if isinstance(v, int | float)},
    }
