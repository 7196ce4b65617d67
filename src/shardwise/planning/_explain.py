"""Why a plan does what it does at one place: the choice, its runner-up, and what that would cost."""

import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..errors import UsageError
from ..graph import Graph, Input, Node, Ref
from ..layout import Layout
from ..propagation import Annotations
from ._candidates import AXIS
from ._choices import Layouts
from ._items import CopyItem, Item, Items
from ._kinds import UNIT
from ._offers import Offers
from ._pins import Pins
from ._prices import OptimizerCost
from ._proposal import agrees, tensors_of, with_shardings
from ._schedule import Compute, Move, Value
from ._summary import bytes_text, describe_move, time_text

if TYPE_CHECKING:
    from ..expansion import Choice
    from ._pipeline import Pipeline
    from ._plan import Plan


@dataclass(frozen=True)
class Considered:
    """One choice for a node: its rows, the seconds of its kernel, and those of the redistributions of its inputs and
    outputs, every other choice as planned; infinite where it is not compatible with the neighbouring choices. `bytes`
    are those of its inputs, outputs (but for views) and scratch memory on the device that holds most."""

    rows: str
    compute: float
    redistribution: float
    chosen: bool
    bytes: int

    @property
    def seconds(self) -> float:
        return self.compute + self.redistribution


def considered(plan: "Plan", name: str) -> list[Considered]:
    """Every choice for one node, the cheapest first."""
    return Explainer(plan).considered(name)


def all_considered(plan: "Plan", most: int = 8) -> str:
    """Every node with the cheapest of what was considered for it, the chosen one marked."""
    explainer = Explainer(plan)
    lines = []
    for node in plan.graph.nodes:
        lines.append(str(node))
        found = explainer.considered(node.name)
        shown = [entry for i, entry in enumerate(found) if i < most or entry.chosen]
        for entry in shown:
            mark = "*" if entry.chosen else " "
            lines.append(f"  {mark} {entry.rows}: {_costs(entry)}")
        if len(found) > len(shown):
            lines.append(f"    ... and {len(found) - len(shown)} more")
    return "\n".join(lines)


def explain(plan: "Plan", place: str) -> str:
    """What was chosen for a node, a module's nodes, a parameter or an input, and what else could have been; for `pp`,
    why the model does not run in stages."""
    if place == AXIS:
        from ._devices import why_stages

        return _filled([why_stages(plan)])
    return _filled(Explainer(plan).lines(place))


def explain_stages(pipeline: "Pipeline", place: str) -> str:
    """The same for the stages of a pipeline that have such a place; for `pp`, why the model runs in stages."""
    if place == AXIS:
        from ._devices import why_stages

        return _filled([why_stages(pipeline)])
    found = []
    for number, stage in enumerate(pipeline.stages):
        if any(_at(stage.graph, place)):
            found.append(f"stage {number}\n{explain(stage, place)}")
    if not found:
        raise UsageError(f"{place!r} is not a module, node, parameter or input of a stage of {pipeline.name}")
    return "\n".join(found)


def _at(graph: Graph, place: str) -> tuple[list[Input], list[Node]]:
    """The inputs that a place names, or the calls."""
    inputs = [entry for entry in graph.inputs if place in (entry.name, entry.target, *entry.aliases)]
    nodes = [node for node in graph.nodes if node.name == place] or [
        node for node in graph.nodes if node.module == place or node.module.startswith(f"{place}.")
    ]
    return inputs, nodes or [node for node in graph.nodes if node.module.endswith(f".{place}")]


def _filled(lines: Iterable[str]) -> str:
    return "\n".join(
        textwrap.fill(line, 80, subsequent_indent=" " * 13, break_long_words=False, drop_whitespace=True)
        for line in lines
    )


class Explainer:
    """The problem of a plan once more, with the plan's own choices marked in it."""

    def __init__(self, plan: "Plan") -> None:
        self.plan = plan
        self.layouts = Layouts(plan.mesh)
        given = Annotations(plan.mesh, plan.shardings).shardings
        pins = with_shardings(Pins(plan.mesh, plan.pins), given, plan.graph)
        optimizer = OptimizerCost.of(plan.optimizer)
        self.items = Items(
            plan.graph,
            self.layouts,
            plan.cluster,
            Offers(plan.graph),
            optimizer,
            pins,
            elsewhere=plan.elsewhere,
            passes=plan.micro_batches,
            in_flight=plan.in_flight,
            zero=bool(plan.homes),
            offload=bool(plan.on_host),
        )
        self.chosen = [self._choice_of(place) for place in range(len(self.items.all))]
        self.ties: list[list[tuple[np.ndarray, int]]] = [[] for _ in self.items.all]
        for tie in self.items.ties:
            self.ties[tie.a].append((tie.table, tie.b))
            self.ties[tie.b].append((tie.table.T, tie.a))

    def _choice_of(self, place: int) -> int:
        item, plan = self.items.all[place], self.plan
        if isinstance(item, CopyItem) and item.kind == "held":
            moved = item.name in plan.on_host or plan.home(item.name) != plan.inputs[item.name]
            own = slice(item.kept, None) if moved else slice(item.kept)
            return (own.start or 0) + self._place_of(plan.inputs[item.name], item.layouts[own], item)
        if isinstance(item, CopyItem):
            for copy in plan.copies:
                if copy.ref == item.ref and copy.users == item.users:
                    return item.kept + self._place_of(copy.layout, item.layouts[item.kept :], item)
            return self._place_of(plan.layout(item.ref), item.layouts[: item.kept], item)
        if item.kind == "call":
            choices = self.items.choices[item.name]
            wanted = plan.choices[item.name]
            inputs = [self.layouts.of(layout) for layout in wanted.input_layouts]
            outputs = [
                None if layout is None else self.layouts.of(layout) for layout in wanted.output_layouts
            ]
            match = np.ones(len(choices), bool)
            for column, number in zip((*choices.inputs, *choices.outputs), (*inputs, *outputs), strict=True):
                if column is not None:
                    match &= column == number
            return _first(match, item, wanted)
        layout = plan.home(item.name) if item.kind == "input" else plan.outputs[int(item.name)]
        assert layout is not None
        options = self.items.options_of(item)
        if item.kind == "input":
            options = np.where(self.items.on_host(item) == (item.name in plan.on_host), options, -1)
        return self._place_of(layout, options, item)

    def _place_of(self, layout: Layout, options: np.ndarray, item: Item) -> int:
        return _first(options == self.layouts.of(layout), item, layout)

    def considered(self, name: str) -> list[Considered]:
        place = self.items.places.get(("call", name))
        if place is None:
            raise UsageError(f"the plan has no call {name!r}: plan.graph.table() lists them")
        item, choices = self.items.all[place], self.items.choices[name]
        redistribution = np.zeros(len(item))
        for table, other in self.ties[place]:
            column = table[:, self.chosen[other]].astype(float)
            redistribution += np.where(column >= 1e18, np.inf, column)
        names, held = self.plan.mesh.names, self._held(name)
        found = [
            Considered(
                "; ".join(f"{axis}: {row}" for axis, row in zip(names, choices.rows_of(c), strict=True)),
                float(item.cost[c]) * UNIT if item.cost[c] < 1e18 else np.inf,
                float(redistribution[c]) * UNIT,
                c == self.chosen[place],
                int(held[c]),
            )
            for c in range(len(item))
        ]
        return sorted(found, key=lambda entry: (entry.seconds, not entry.chosen))

    def _held(self, name: str) -> np.ndarray:
        """The bytes that a call's tensors and its kernel take, by choice."""
        items, choices = self.items, self.items.choices[name]
        node = self.plan.graph[name]
        assert isinstance(node, Node)
        held = items.scratch.get(name, np.zeros(len(choices), np.int64)).copy()
        used = {(ref, id(column)): column for ref, column in zip(node.inputs, choices.inputs, strict=True)}
        columns = [(self.plan.graph.tensor(ref), column) for (ref, _), column in used.items()]
        made = zip(node.outputs, choices.outputs, strict=True) if not node.facts.view else ()
        columns += [(info, column) for info, column in made if info is not None and column is not None]
        for info, column in columns:
            held += [self.layouts.bytes(number, info) for number in column.tolist()]
        return held

    def lines(self, place: str) -> Iterator[str]:
        plan = self.plan
        inputs, nodes = _at(plan.graph, place)
        if inputs:
            yield from self._input_lines(inputs[0].name)
            return
        if not nodes:
            raise UsageError(
                f"{place!r} is not a module, node, parameter or input of {plan.graph.name}: "
                "plan.graph.table() lists them"
            )
        parameters = [
            i for i in plan.graph.with_role("parameter") if i.target.startswith(f"{nodes[0].module}.")
        ]
        if len(nodes) > 1:
            for entry in parameters:
                yield f"{entry.target} {entry.tensor}: [{plan.home(entry.name)}]"
        for node in nodes:
            yield from self._node_lines(node)

    def _input_lines(self, name: str) -> Iterator[str]:
        plan = self.plan
        entry = plan.graph[name]
        yield f"{entry.target} {entry.tensor}: [{plan.home(name)}]"  # type: ignore[union-attr]
        for verb, moves in (("held as", plan.once.gathers), ("gradient", plan.once.reductions)):
            for change in (move.change for move in moves if move.name == name and move.change.steps):
                kinds = ", ".join(step.kind for step in change.steps)
                text = f"[{change.source}] -> [{change.target}] by {kinds}, {time_text(change.price)} once per step"
                yield f"  {verb:<10} {text}"
        ref = Ref(name)
        yield from self._departure_lines([(ref, plan.home(name))])
        for place, move in enumerate(plan.schedule.entries):
            if isinstance(move, Move) and move.source.ref == ref:
                yield f"  {self._move(place, move)}"
        for node in plan.graph.users.get(ref, ()):
            yield f"  used by {node.name} ({node.op}, {node.phase}): {plan.choices[node.name]}"

    def _node_lines(self, node: Node) -> Iterator[str]:
        found = self.considered(node.name)
        chosen = next(entry for entry in found if entry.chosen)
        yield f"{node}"
        yield f"  chosen     {chosen.rows}: {_costs(chosen)}"
        others = [entry for entry in found if not entry.chosen and np.isfinite(entry.seconds)]
        if others:
            best = others[0]
            more = best.seconds - chosen.seconds
            sign = "+" if more >= 0 else "-"
            yield f"  runner-up  {best.rows}: {sign}{time_text(abs(more))}"
        yield from self._departure_lines(tensors_of(self.plan, node))
        yield from self._move_lines(node)
        source = self.plan.choices[node.name].source
        compatible = f"{len(others) + 1} compatible with the neighbouring choices"
        yield f"  rows       {source}; {len(found)} choices, {compatible}"

    def _move_lines(self, node: Node) -> Iterator[str]:
        """In a plan with overlap, the collectives that a call needs, and those of its results that are given back."""
        if self.plan.ahead is None:
            return
        entries, given = self.plan.schedule.entries, set(self.plan.schedule.outputs)
        (inputs,) = (e.inputs for e in entries if isinstance(e, Compute) and e.node.name == node.name)
        for place, move in enumerate(entries):
            if isinstance(move, Move) and move.change.collectives:
                needed = _whole(move.target) in inputs
                if needed or (_whole(move.target) in given and move.source.ref.name == node.name):
                    yield f"  {'needs' if needed else 'gives':<10} {self._move(place, move)}"

    def _move(self, place: int, move: Move) -> str:
        text = f"{describe_move(self.plan, move)}, {time_text(move.change.price)}"
        bucket = self.plan.schedule.bucket(place)
        if len(bucket) > 1:
            seconds = sum(each.change.price for each in bucket)
            text += f" of {time_text(seconds)} for {len(bucket)} as one"
        if self.plan.ahead is None or not move.change.collectives:
            return text
        waited = self.plan.timeline.waited.get(place, 0.0)
        if not move.begun:
            return f"{text}, waited for at once"
        return f"{text}, beside calls" + (f", which wait {time_text(waited)} for it" if waited else "")

    def _departure_lines(self, tensors: Iterable[tuple[Ref, Layout]]) -> Iterator[str]:
        """Where tensors are not as propagation from the shardings and pins proposes."""
        proposal = self.plan.proposal
        if proposal is None:
            return
        for ref, layout in dict(tensors).items():
            if not agrees(layout, proposal.proposed(ref)):
                name, sharding = proposal.outcome.captured.names[ref], proposal.outcome.sharding(ref)
                yield f"  departs    {name} is [{layout}], and {sharding} is propagated"


def _whole(target: Value) -> Value:
    """What a move of several collectives, of which a target may be a part, brings about."""
    return Value(target.ref, target.copy.partition("/")[0])


def _costs(entry: Considered) -> str:
    seconds = f"compute {time_text(entry.compute)}, redistribution {time_text(entry.redistribution)}"
    return f"{seconds}, {bytes_text(entry.bytes)}"


def _first(match: np.ndarray, item: Item, wanted: "Choice | Layout") -> int:
    """The first choice for an item that is the plan's."""
    if not match.any():
        name = f"{item.kind} {item.name}" if item.kind == "output" else item.name
        raise UsageError(f"the plan's choice for {name} is none of those known now: {wanted}")
    return int(np.argmax(match))


def diff(plan: "Plan", other: "Plan", most: int = 20) -> str:
    """What another plan of the same graph does differently, and what it costs."""
    if [n.name for n in plan.graph.nodes] != [n.name for n in other.graph.nodes]:
        raise UsageError(f"these are plans of different graphs: {plan.graph.name} and {other.graph.name}")
    lines = [f"step {time_text(plan.cost.seconds)} -> {time_text(other.cost.seconds)}"]
    lines += _changes(
        "input",
        {i.target: plan.home(i.name) for i in plan.graph.inputs},
        {i.target: other.home(i.name) for i in plan.graph.inputs},
    )
    lines += _changes(
        "held",
        {i.target: plan.inputs[i.name] for i in plan.graph.inputs if {*plan.homes, *other.homes} >= {i.name}},
        {i.target: other.inputs[i.name] for i in plan.graph.inputs},
    )
    lines += _changes("call", plan.choices, other.choices)
    if len(lines) > most + 1:
        lines = [*lines[: most + 1], f"... and {len(lines) - most - 1} more"]
    return "\n".join(lines)


def _changes(kind: str, before: Mapping[str, object], after: Mapping[str, object]) -> list[str]:
    return [
        f"{kind} {name}: {before[name]} -> {after[name]}"
        for name in before
        if str(before[name]) != str(after[name])
    ]
