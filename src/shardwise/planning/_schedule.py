"""The schedule of a plan: its calls and changes of layout, one after another, as every rank runs them.

A tensor is made in the layout that its maker's rows give it. A group of users may share one copy of it in another
layout; what a user needs beyond that, it brings about for itself. The schedule spells this out, so that what is
priced and what is run are the same list. Where a move is to run beside calls, it is begun at one entry and waited for
at another (`_overlap`).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..expansion import Choice
from ..graph import Node, Ref
from ..layout import Layout
from ..redistribution import Chain, Prices

if TYPE_CHECKING:
    from ._plan import Plan


@dataclass(frozen=True)
class Value:
    """A tensor in one layout: as its maker made it, or (`%x@2`) a copy of it."""

    ref: Ref
    copy: str = ""

    def __str__(self) -> str:
        return f"{self.ref}@{self.copy}" if self.copy else str(self.ref)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.ref, self.copy)))

    def __hash__(self) -> int:  # schedules look values up millions of times
        return self._hash  # type: ignore[attr-defined]

    def __reduce__(self) -> tuple[type["Value"], tuple[Ref, str]]:  # hashes of texts differ between processes
        return Value, (self.ref, self.copy)


@dataclass(frozen=True)
class Compute:
    """A node run on the local pieces of `inputs`. `dead` are the values that are released after it."""

    node: Node
    choice: Choice
    inputs: tuple[Value, ...]
    outputs: tuple[Value | None, ...]
    dead: tuple[Value, ...] = ()

    @property
    def used(self) -> tuple[Value, ...]:
        return self.inputs

    @property
    def made(self) -> tuple[Value, ...]:
        return tuple(value for value in self.outputs if value is not None)

    def __str__(self) -> str:
        made, used = ", ".join(map(str, self.made)), ", ".join(map(str, self.inputs))
        return f"{made} = {self.node.op}({used})  # {self.choice}"


@dataclass(frozen=True)
class Move:
    """A value brought from one layout to another: `change` says by which collectives.

    With `begun` it is only begun here: a `Wait` further down is where its target can be used. One that is `joined` is
    begun with the one before it, and runs in the same collective.
    """

    source: Value
    target: Value
    change: Chain
    dead: tuple[Value, ...] = ()
    begun: bool = False
    joined: bool = False

    @property
    def used(self) -> tuple[Value, ...]:
        return (self.source,)

    @property
    def made(self) -> tuple[Value, ...]:
        return (self.target,)

    def __str__(self) -> str:
        steps = "; ".join(step.kind for step in self.change.steps) or "nothing"
        begun, joined = "begin " if self.begun else "", ", joined to the one before" if self.joined else ""
        change = f"{self.change.source} -> {self.change.target}"
        return f"{begun}{self.target} = {self.source}: {change}  # {steps}{joined}"


@dataclass(frozen=True)
class Wait:
    """The end of a move that was begun before: until here its source is read and its target written."""

    move: Move
    dead: tuple[Value, ...] = ()

    @property
    def source(self) -> Value:
        return self.move.source

    @property
    def used(self) -> tuple[Value, ...]:
        return (self.move.source, self.move.target)

    @property
    def made(self) -> tuple[Value, ...]:
        return ()

    def __str__(self) -> str:
        return f"wait for {self.move.target}"


Entry = Compute | Move | Wait


@dataclass(frozen=True)
class Schedule:
    """Calls, moves and waits in order. `outputs` are the values the graph gives back, in the order of its outputs."""

    entries: tuple[Entry, ...]
    outputs: tuple[Value | None, ...]
    layouts: Mapping[Value, Layout]

    @property
    def moves(self) -> tuple[Move, ...]:
        return tuple(entry for entry in self.entries if isinstance(entry, Move))

    def bucket(self, place: int) -> tuple[Move, ...]:
        """The moves that run as one collective with that at a place, itself among them."""
        first, last = place, place + 1
        while getattr(self.entries[first], "joined", False):
            first -= 1
        while last < len(self.entries) and getattr(self.entries[last], "joined", False):
            last += 1
        return tuple(entry for entry in self.entries[first:last] if isinstance(entry, Move))

    def __str__(self) -> str:
        return "\n".join(map(str, self.entries))


def schedule(plan: "Plan") -> Schedule:
    """The schedule of a plan. A copy is made just before its first user; what the graph gives back is brought into
    its layout as soon as it is made."""
    return _Scheduler(plan).schedule()


class _Scheduler:
    def __init__(self, plan: "Plan") -> None:
        self.plan = plan
        self.prices = Prices(plan.cluster)
        self.layouts: dict[Value, Layout] = {}
        self.entries: list[Entry] = []
        self.copies: dict[tuple[Ref, str], tuple[str, Layout]] = {}
        numbers: dict[Ref, int] = {}
        for copy in plan.copies:
            numbers[copy.ref] = numbers.get(copy.ref, 0) + 1
            for user in copy.users:
                self.copies[copy.ref, user] = (str(numbers[copy.ref]), copy.layout)
        self.given: dict[Ref, list[int]] = {}
        for position, output in enumerate(plan.graph.outputs):
            if output.value is not None:
                self.given.setdefault(output.value, []).append(position)
        self.outputs: list[Value | None] = [None] * len(plan.graph.outputs)

    def schedule(self) -> Schedule:
        for entry in self.plan.graph.inputs:
            value = Value(Ref(entry.name))
            self.layouts[value] = self.plan.inputs[entry.name]
            self._give(value)
        for node in self.plan.graph.nodes:
            self._compute(node)
        entries = tuple(with_deaths(self.entries, self.outputs, self.plan.graph.ends))
        return Schedule(entries, tuple(self.outputs), self.layouts)

    def _compute(self, node: Node) -> None:
        choice = self.plan.choices[node.name]
        wanted = choice.input_layouts
        inputs = tuple(
            self._brought(ref, layout, node.name) for ref, layout in zip(node.inputs, wanted, strict=True)
        )
        made = tuple(
            None if info is None else Value(Ref(node.name, i)) for i, info in enumerate(node.outputs)
        )
        self.entries.append(Compute(node, choice, inputs, made))
        for value, layout in zip(made, choice.output_layouts, strict=True):
            if value is not None and layout is not None:
                self.layouts[value] = layout
                self._give(value)

    def _brought(self, ref: Ref, layout: Layout, user: str) -> Value:
        """The value of a tensor in the layout that a user wants, moved there if need be."""
        value = Value(ref)
        if (ref, user) in self.copies:
            number, shared = self.copies[ref, user]
            value = self._moved(value, Value(ref, number), shared)
        if self.layouts[value] == layout:
            return value
        return self._moved(value, Value(ref, f"{value.copy}>{user}:{layout}"), layout)

    def _moved(self, source: Value, target: Value, layout: Layout) -> Value:
        if self.layouts[source] == layout:
            return source
        if target not in self.layouts:
            tensor = self.plan.graph.tensor(source.ref)
            change = self.prices.chain(self.layouts[source], layout, tensor.shape, tensor.dtype.itemsize)
            self.layouts[target] = layout
            self.entries.append(Move(source, target, change))
        return target

    def _give(self, value: Value) -> None:
        for position in self.given.get(value.ref, ()):
            layout = self.plan.outputs[position]
            assert layout is not None
            self.outputs[position] = self._moved(value, Value(value.ref, f"out:{layout}"), layout)


def with_late_views(schedule: Schedule, ends: Mapping[str, str]) -> Schedule:
    """The schedule with views of moved values where they are used first, so that the moves need not have ended before.
    Those of forward are done before backward begins."""
    moved = {move.target for move in schedule.moves if move.change.collectives}
    waiting: dict[Value, Compute] = {}
    entries: list[Entry] = []

    def add(entry: Entry) -> None:
        for value in entry.used:
            if value in waiting:
                flush(waiting[value])
        entries.append(entry)

    def flush(view: Compute) -> None:
        for value in view.made:
            del waiting[value]
        add(view)

    def flush_all() -> None:
        while waiting:
            flush(next(iter(waiting.values())))

    phase: str | None = None
    for entry in schedule.entries:
        if isinstance(entry, Compute):
            if entry.node.phase != phase:
                flush_all()
                phase = entry.node.phase
            source = entry.inputs[0] if entry.inputs and entry.node.facts.view else None
            if source in moved or source in waiting:
                waiting |= dict.fromkeys(entry.made, entry)
                continue
        add(entry)
    flush_all()
    return replace(schedule, entries=tuple(with_deaths(entries, schedule.outputs, ends)))


def with_early_views(schedule: Schedule, ends: Mapping[str, str]) -> Schedule:
    """The schedule with views that moves begin from made as soon as what they view is there, in their phase, so that
    the moves can begin then. Views of moved values stay where they are."""
    entries = schedule.entries
    moving = {move.source for move in schedule.moves if move.change.collectives}
    for entry in reversed(entries):
        if isinstance(entry, Compute) and entry.node.facts.view and not moving.isdisjoint(entry.made):
            moving.add(entry.inputs[0])
    after: list[int] = []  # the place after which each entry stands
    made: dict[Value, int] = {}
    begins: dict[str, int] = {}  # of phases
    moved: set[Value] = set()
    for place, entry in enumerate(entries):
        after.append(place)
        if isinstance(entry, Compute):
            begin = begins.setdefault(entry.node.phase, place)
            if entry.node.facts.view and not moving.isdisjoint(entry.made) and entry.inputs[0] not in moved:
                after[place] = max(made.get(entry.inputs[0], -1), begin - 1)
        if moved.intersection(entry.used) if _is_view(entry) else isinstance(entry, Move):
            moved.update(entry.made)
        made |= dict.fromkeys(entry.made, after[place])
    order = sorted(range(len(entries)), key=lambda place: (after[place], place))
    placed = [entries[place] for place in order]
    return replace(schedule, entries=tuple(with_deaths(placed, schedule.outputs, ends)))


def _is_view(entry: Entry) -> bool:
    return isinstance(entry, Compute) and entry.node.facts.view


def hides(node: Node) -> bool:
    """Whether a call takes long enough to run a collective beside it: products of matrices, attention, convolutions."""
    return node.facts.kernel in ("matmul", "attention")


def backward_entries(schedule: Schedule, results: Iterable[Value]) -> list[bool]:
    """Which entries backward runs: its calls, and moves whose targets forward does not use. `results` are the values
    that forward gives back."""
    needed, backward = set(results), []
    for entry in reversed(schedule.entries):
        if isinstance(entry, Compute):
            later = entry.node.phase == "backward"
        else:
            later = needed.isdisjoint(entry.made or entry.used[1:])
        backward.append(later)
        if not later:
            needed.update(entry.used)
    return backward[::-1]


def after_arguments(backward: Sequence[Entry], wanted: Iterable[Value]) -> list[bool]:
    """Which entries of backward the wanted gradients, those of arguments, do not follow from."""
    needed, later = set(wanted), []
    for entry in reversed(backward):
        later.append(needed.isdisjoint(entry.made or entry.used[1:]))
        if not later[-1]:
            needed.update(entry.used)
    return later[::-1]


def with_deaths(
    entries: Sequence[Entry], kept: Sequence[Value | None], ends: Mapping[str, str]
) -> Iterator[Entry]:
    """The entries, each with the values that are released after it; those given back live on.

    A value is released after its last use, and where that is one of several calls that are done together (`ends`),
    after the last of them.
    """
    calls = {entry.node.name: at for at, entry in enumerate(entries) if isinstance(entry, Compute)}
    last: dict[Value, int] = {}
    for position, entry in enumerate(entries):
        for value in entry.made:
            last[value] = position
        if isinstance(entry, Compute):
            position = calls[ends.get(entry.node.name, entry.node.name)]
        for value in entry.used:
            last[value] = max(position, last.get(value, 0))
    dead: dict[int, list[Value]] = {}
    given = set(kept)
    for value, position in last.items():
        if value not in given:
            dead.setdefault(position, []).append(value)
    for position, entry in enumerate(entries):
        own = tuple(dead.get(position, ()))
        yield entry if entry.dead == own else replace(entry, dead=own)
