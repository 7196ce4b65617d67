"""The plan problem of a graph, one item per thing to be decided: inputs, calls, copies for groups of users, outputs.

Items are tied by tables indexed by their choices. Between a tensor and several users stands a copy: it keeps the
layout in which the tensor was made, for nothing, or brings it into another one once for all of them, at a price. A
single user pays for its own change on the tie to the maker. What memory it all takes is said in `_memory`.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, Protocol

import numpy as np

from ..graph import Graph, Input, Named, Node, Output, Ref, TensorInfo, block_of, named_tensors, pattern
from ..layout import Layout
from ..mesh import Cluster
from ..placements import parse_placement
from ..solver import FORBIDDEN
from ._again import CopyChoices
from ._baselines import Moves
from ._choices import ABSENT, Choices, Layouts
from ._elsewhere import Elsewhere, place_of
from ._homes import homed, pairs_of
from ._kinds import Kinds, units
from ._move_tables import MoveTables
from ._offers import Offers
from ._pins import Pins
from ._prices import OptimizerCost, accumulation_seconds, cast_seconds
from ._sums import narrow_sums
from ._weights import Weights

FAR = 150  # nodes between two users that do not share a copy
_PARTS = 4  # of blocks that look alike of which not the same is computed again

Kind = Literal["input", "held", "call", "copy", "output", "use"]


@dataclass(eq=False)
class Item:
    """One decision. `label` is equal for items that decide the same, wherever they stand in the graph."""

    kind: Kind
    name: str
    cost: np.ndarray
    label: Any

    def __len__(self) -> int:
        return len(self.cost)


@dataclass(eq=False)
class CopyItem(Item):
    """Choices: first `kept` layouts to keep as made, then those to copy into."""

    ref: Ref = field(default=Ref(""))
    users: tuple[str, ...] = ()
    layouts: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    kept: int = 0


@dataclass(frozen=True)
class Group:
    """Users of a tensor that share a copy of it, or the one user that needs none; `copy` is the place of its item."""

    users: tuple[Node, ...]
    copy: int | None


@dataclass(frozen=True, eq=False)
class Tie:
    """`table[i, j]` is the cost of choices i and j of the two items together."""

    a: int
    b: int
    table: np.ndarray


class Restriction(Protocol):
    """Which choices are left, as masks; None where all are."""

    def of_input(self, entry: Input, options: np.ndarray) -> np.ndarray | None: ...

    def of_output(self, position: int, options: np.ndarray) -> np.ndarray | None: ...

    def of_call(self, node: Node, choices: Choices) -> np.ndarray | None: ...

    def of_move(self, ref: Ref) -> Moves | None: ...


class Items:
    """All items and ties of a graph on a mesh."""

    def __init__(
        self,
        graph: Graph,
        layouts: Layouts,
        cluster: Cluster,
        offers: Offers,
        optimizer: OptimizerCost,
        pins: Pins,
        restriction: Restriction | None = None,
        progress: Callable[[int, int], None] | None = None,
        elsewhere: Mapping[str, Elsewhere] | None = None,
        weights: Weights | None = None,
        kinds: Kinds | None = None,
        copies: Mapping[str, str] | None = None,
        keep: bool = True,
        passes: int = 1,
        in_flight: int = 1,
        zero: bool = False,
        offload: bool = False,
    ) -> None:
        self.in_flight = in_flight  # passes of which forward has run and backward has not
        self.passes = passes  # of a step: costs are those of one, with its share of what happens once
        # Parameters that need not be held as they are at home.
        self.homed = homed(graph) if zero or offload else frozenset()
        self.offload = offload  # whether these may be at home in the memory of the host
        self.kinds = kinds or Kinds(graph, layouts, cluster)
        self.keep = keep  # whether what may be computed again may also be kept
        self.elsewhere = elsewhere or {}
        self.copies = copies or {}  # calls that may be left out, and of which calls they are copies
        self.weights = weights
        self.graph, self.layouts, self.cluster = graph, layouts, cluster
        self.offers, self.optimizer, self.pins, self.restriction = offers, optimizer, pins, restriction
        self.progress = progress or (lambda done, total: None)
        self.all: list[Item] = []
        self.ties: list[Tie] = []
        self.choices: dict[str, Choices] = {}
        self.scratch: dict[str, np.ndarray] = {}  # bytes of each choice, of calls whose kernels hold some
        self.groups: dict[Ref, list[Group]] = {}
        self._copy_choices: dict[Any, CopyChoices] = {}
        self.moving = MoveTables(layouts, cluster, passes)
        self._arrays: dict[Any, np.ndarray] = {}
        self.places: dict[tuple[Kind, str], int] = {}
        self.made: dict[Ref, tuple[int, np.ndarray]] = {}
        self.time = {node.name: t for t, node in enumerate(graph.nodes)}
        outputs = [(output.value, position) for position, output in enumerate(graph.outputs)]
        self.first_given = {value: position for value, position in reversed(outputs) if value is not None}
        self._build()

    # -- items

    def _build(self) -> None:
        for entry in self.graph.inputs:
            self._add_input(entry)
        for done, node in enumerate(self.graph.nodes, 1):
            self._add_call(node)
            self.progress(done, len(self.graph.nodes))
        self._note_layouts()
        self._tie_homes()
        for ref, (maker, face) in self.made.items():
            for users in self._groups(ref):
                self._connect(ref, maker, face, users)
        for position, output in enumerate(self.graph.outputs):
            if output.value is not None:
                self._add_output(position, output, output.value)
        self._tie_partners()

    def options_of(self, item: Item) -> np.ndarray:
        """The layouts among which an input or output chooses."""
        if item.kind == "input":
            entry = self.graph[item.name]
            assert isinstance(entry, Input)
            return self._homes_of(entry)
        return self._given_options(self.graph.outputs[int(item.name)])

    def on_host(self, item: Item) -> np.ndarray:
        """Which choices of an input are homes in the memory of the host."""
        offloaded = self.offload and item.name in self.homed
        return np.arange(len(item)) >= (len(item) // 2 if offloaded else len(item))

    @property
    def lasting(self) -> set[int]:
        """The items that decide what is there throughout a step: parameters at home and held, sums of gradients."""
        sums = (str(at) for at, output in enumerate(self.graph.outputs) if self._is_gradient_at_home(output))
        found = {self.places["input", entry.name] for entry in self.graph.inputs}
        found |= {self.places["held", name] for name in self.homed}
        return found | {self.places["output", position] for position in sums}

    def only_choices(self, restriction: Restriction | None) -> bool:
        """True if a restriction forbids choices, and no redistributions between them."""
        return restriction is None or all(restriction.of_move(ref) is None for ref in self.made)

    def left(self, place: int, restriction: Restriction) -> np.ndarray | None:
        """Which choices of an item a restriction leaves; None if all."""
        item = self.all[place]
        if item.kind == "call":
            node = self.graph[item.name]
            assert isinstance(node, Node)
            return self._restricted(restriction, node)
        if item.kind == "input":
            entry = self.graph[item.name]
            assert isinstance(entry, Input)
            return restriction.of_input(entry, self.options_of(item))
        if item.kind == "output":
            return restriction.of_output(int(item.name), self.options_of(item))
        return None

    def _add(self, item: Item) -> int:
        self.places[item.kind, item.name] = len(self.all)
        self.all.append(item)
        return len(self.all) - 1

    def _add_input(self, entry: Input) -> None:
        options = self._homes_of(entry)
        offloaded = self.offload and entry.name in self.homed
        local = [self.layouts.local(number, entry.tensor) for number in options.tolist()]
        trained, device = (
            self.graph.training and entry.role == "parameter" and entry.trainable,
            self.cluster.device,
        )
        once = [self.optimizer.seconds(part, device) if trained else 0.0 for part in local]
        if offloaded:
            half = len(options) // 2
            once[half:] = [self.optimizer.host_seconds(part, device) for part in local[half:]]
        if (gradient := self.gradient_of(entry)) is not None:
            added = [self.layouts.local(number, gradient) for number in options.tolist()]
            once = [
                own + cast_seconds(part, entry.tensor.dtype, device)
                for own, part in zip(once, added, strict=True)
            ]
            if entry.name not in self.homed:
                more = (accumulation_seconds(part, self.passes, device) for part in added)
                once = [own + seconds for own, seconds in zip(once, more, strict=True)]
        cost = [seconds / self.passes for seconds in once]
        arriving = self._transferring(Named.input(entry), entry.tensor, options, arrives=True)
        cost = [own + moved for own, moved in zip(cost, arriving, strict=True)]
        allowed = self.pins.allowed(Named.input(entry), options, self.layouts)
        if self.restriction is not None:
            allowed = _both(allowed, self.restriction.of_input(entry, options))
        item = Item(
            "input",
            entry.name,
            _units(cost, allowed),
            (
                "input",
                entry.role,
                entry.trainable,
                entry.tensor,
                pattern(entry.target),
                offloaded,
                _key(allowed),
            ),
        )
        place = self._add(item)
        self.made[Ref(entry.name)] = self._held(entry) if entry.name in self.homed else (place, options)

    def _homes_of(self, entry: Input) -> np.ndarray:
        """The layouts of an input's choices: where it may be offloaded, first those on the device, then on the host."""
        options = self._options(entry.tensor)
        if not (self.offload and entry.name in self.homed):
            return options
        return self._array(np.concatenate([options, options]))

    def _held(self, entry: Input) -> tuple[int, np.ndarray]:
        """What every pass has of a parameter: its home, or a copy with some axes gathered; of one that may be offloaded
        also a copy as it is."""
        homes = self._options(entry.tensor)
        pairs = pairs_of(self.layouts, homes, homes, gathered=True) & ~np.eye(len(homes), dtype=bool)
        copies = homes if self.offload else homes[pairs.any(axis=0)]
        layouts = self._array(np.concatenate([homes, copies]))
        label = ("held", id(layouts), entry.tensor, pattern(entry.target))
        cost = np.zeros(len(layouts), np.int64)
        item = CopyItem("held", entry.name, cost, label, Ref(entry.name), (), layouts, len(homes))
        return self._add(item), layouts

    def _add_call(self, node: Node) -> None:
        border = self.graph.kernels.borders.get(node.name)
        choices, cost, scratch = self.kinds.of(node, self.offers)
        weight = 1.0 if self.weights is None else self.weights.of_call(node)
        if weight < 1:
            cost = np.floor(cost * weight).astype(np.int64)
        self.choices[node.name] = choices
        allowed = self._allowed(node, choices)
        if node.name in self.copies:
            own = self.choices[node.name] = self._copied(node, choices)
            cost, scratch = own.extended(cost, 0), own.extended(scratch, 0)
            allowed = None if allowed is None else own.extended(allowed, True)
            choices = own
        if scratch.any():
            self.scratch[node.name] = scratch
        part = self._parts.get(block_of(node.module), 0)
        label = ("call", id(choices), border, node.phase, pattern(node.module), part, weight, _key(allowed))
        place = self._add(Item("call", node.name, cost if allowed is None else _forbid(cost, allowed), label))
        for output, (info, face) in enumerate(zip(node.outputs, choices.outputs, strict=True)):
            if info is not None:
                assert face is not None
                self.made[Ref(node.name, output)] = place, face
        if isinstance(choices, CopyChoices) and choices.kept:
            original = self.copies[node.name]
            key = "kept", id(choices), id(self.choices[original])
            if key not in self._arrays:
                self._arrays[key] = choices.ties(self.choices[original])
            self._tie(self.places["call", original], place, self._arrays[key])

    @cached_property
    def _parts(self) -> Mapping[str, int]:
        """Blocks that look alike by number of a part: half of them, half of the rest and so on. Of each part something
        else may be computed again, though its blocks share their choices."""
        if not self.copies:
            return {}
        alike: dict[str, dict[str, None]] = {}
        for node in self.graph.nodes:
            if block := block_of(node.module):
                alike.setdefault(pattern(block), {})[block] = None
        return {
            block: min(int(math.log2(len(blocks) / (len(blocks) - at))), _PARTS - 1)
            for blocks in alike.values()
            for at, block in enumerate(blocks)
        }

    def _copied(self, node: Node, again: Choices) -> CopyChoices:
        """The choices of a copy: absent where nothing that always runs reads it; kept unless it is a view, which takes
        no time to make again."""
        keep = self.keep and not node.facts.view
        readers = (user for ref in node.results for user in self.graph.users.get(ref, ()))
        absent = all(user.name in self.copies for user in readers)
        original = self.choices[self.copies[node.name]]
        key = id(again), id(original), absent, keep
        if key not in self._copy_choices:
            self._copy_choices[key] = CopyChoices.of(again, original, absent=absent, kept=keep)
        return self._copy_choices[key]

    def _restricted(self, restriction: Restriction, node: Node) -> np.ndarray | None:
        """Which choices of a call a restriction leaves; it does not speak of copies that do not run."""
        choices = self.choices[node.name]
        if not isinstance(choices, CopyChoices):
            return restriction.of_call(node, choices)
        again, _, _ = self.kinds.of(node, self.offers)
        mask = restriction.of_call(node, again)
        return None if mask is None else choices.extended(mask, True)

    def _allowed(self, node: Node, choices: Choices) -> np.ndarray | None:
        """Which choices the restriction and the pins on the node's outputs leave."""
        allowed = self.restriction.of_call(node, choices) if self.restriction is not None else None
        for column in choices.outputs:
            if column is not None:
                allowed = _both(allowed, self.pins.allowed(Named("node", node.name), column, self.layouts))
        return allowed

    def _groups(self, ref: Ref) -> Iterator[tuple[Node, ...]]:
        """The users of a tensor that would share a copy: those of one phase that are not far apart."""
        group: list[Node] = []
        for node in self.graph.users.get(ref, ()):
            if group and (
                node.phase != group[-1].phase or self.time[node.name] - self.time[group[-1].name] > FAR
            ):
                yield tuple(group)
                group = []
            group.append(node)
        if group:
            yield tuple(group)

    def _connect(self, ref: Ref, maker: int, face: np.ndarray, users: tuple[Node, ...]) -> None:
        tensor, moves = self.graph.tensor(ref), self._moves(ref)
        wanted = [
            (self.places["call", node.name], [self.choices[node.name].inputs[i] for i in _uses(node, ref)])
            for node in users
        ]
        columns = [column for _, each in wanted for column in each]
        rates = [None if self.weights is None else self.weights.of_uses(ref, [node]) for node in users]
        shared = None if self.weights is None else self.weights.of_uses(ref, users)
        if len(columns) == 1 and self.all[maker].kind == "call":
            self._tie(maker, wanted[0][0], self.moving.between(tensor, face, columns[0], moves, shared))
            self.groups.setdefault(ref, []).append(Group(users, None))
            return
        kept = self._array(np.unique(face))
        wanted_at_all = np.unique(np.concatenate(columns))
        into = self._array(wanted_at_all[wanted_at_all != ABSENT])
        layouts = self._array(np.concatenate([kept, into]))
        item = CopyItem(
            "copy",
            f"{ref}@{users[0].name}",
            np.zeros(len(layouts), np.int64),
            ("copy", id(layouts), len(kept), tensor, users[0].phase),
            ref,
            tuple(node.name for node in users),
            layouts,
            len(kept),
        )
        place = self._add(item)
        self.groups.setdefault(ref, []).append(Group(users, place))
        self._tie(maker, place, self.moving.kept_or_moved(tensor, face, kept, into, moves, shared))
        for (user, each), own in zip(wanted, rates, strict=True):
            self._tie(place, user, self.moving.all_of(tensor, layouts, each, moves, own))

    def _add_output(self, position: int, output: Output, value: Ref) -> None:
        tensor = self.graph.tensor(value)
        options = self._given_options(output)
        allowed = None
        if output.role == "user_output":
            allowed = self.pins.allowed(Named("output", output.target), options, self.layouts)
        if self.restriction is not None:
            allowed = _both(allowed, self.restriction.of_output(position, options))
        label = ("output", output.role, tensor, pattern(output.target), _key(allowed))
        leaving = [0.0] * len(options)
        if output.role == "user_output":
            leaving = self._transferring(Named("output", output.target), tensor, options, arrives=False)
        elif self._is_gradient_at_home(output):
            local = (self.layouts.local(number, tensor) for number in options.tolist())
            added = (accumulation_seconds(part, self.passes, self.cluster.device) for part in local)
            leaving = [seconds / self.passes for seconds in added]
        place = self._add(Item("output", str(position), _units(leaving, allowed), label))
        first = self.first_given[value]
        if first == position:
            maker, face = self.made[value]
            rates = None if self.weights is None else self.weights.of_output(output)
            self._tie(maker, place, self.moving.between(tensor, face, options, self._moves(value), rates))
        else:
            self._tie_again(self.places["output", str(first)], place)

    def _transferring(
        self, named: Named, tensor: TensorInfo, options: np.ndarray, *, arrives: bool
    ) -> list[float]:
        """The seconds of the transfer from or to another mesh, by layout on this one."""
        place = place_of(self.elsewhere, named) if named.kind == ("input" if arrives else "output") else None
        if place is None:
            return [0.0] * len(options)
        layouts = [self.layouts.all[number] for number in options.tolist()]
        return [place.seconds(tensor, layout, self.cluster, arrives=arrives) for layout in layouts]

    def _tie_again(self, first: int, again: int) -> None:
        """What is given back twice is brought into one layout once, and has one unless pins or partners want two.

        The price of the second, which three choices would decide, is left out: bounds stay bounds.
        """
        one, two = self.all[first], self.all[again]
        users = all(self.graph.outputs[int(item.name)].role == "user_output" for item in (one, two))
        alike = users and bool(((one.cost < FORBIDDEN) & (two.cost < FORBIDDEN)).any())
        same = self.options_of(one)[:, None] == self.options_of(two)[None, :]
        differs = self._array(np.where(same, 0, FORBIDDEN if alike else 1))
        self._tie(first, again, differs)

    def _tie_partners(self) -> None:
        """A gradient has the layout of what it is the gradient of, a new value that of the old one, and what comes
        back for an output that of the output."""
        by_target = {(i.role == "tangent", i.target): i for i in self.graph.inputs}
        for position, output in enumerate(self.graph.outputs):
            if output.value is None:
                continue
            partner = by_target.get((output.role == "user_output", output.target))
            if partner is None or partner.tensor.shape != self.graph.tensor(output.value).shape:
                continue
            options = self._options(partner.tensor)
            table = self._array(np.where(np.eye(len(options), dtype=bool), 0, FORBIDDEN))
            if self._is_gradient_at_home(output):
                tensor = self.graph.tensor(output.value)
                table = self.moving.once(tensor, self._homes_of(partner), self._given_options(output))
            self._tie(self.places["input", partner.name], self.places["output", str(position)], table)

    def _tie_homes(self) -> None:
        """A parameter is held as it is at home, for nothing, or gathered once per step."""
        for entry in self.graph.inputs:
            if entry.name not in self.homed:
                continue
            home, held = self.places["input", entry.name], self.places["held", entry.name]
            item = self.all[held]
            assert isinstance(item, CopyItem)
            table = self.moving.once(
                *(entry.tensor, self._homes_of(entry), item.layouts),
                kept=item.kept,
                on_host=self.on_host(self.all[home]),
            )
            self._tie(home, held, table)

    def gradient_of(self, entry: Input) -> TensorInfo | None:
        """The gradient of a parameter, if it has one."""
        value = self._gradients.get(entry.target) if entry.name in self.graph.accumulated else None
        return None if value is None else self.graph.tensor(value)

    @cached_property
    def _gradients(self) -> Mapping[str, Ref | None]:
        return self.graph.gradients

    def _is_gradient_at_home(self, output: Output) -> bool:
        """Whether an output is the gradient of a parameter that has a home."""
        return output.role == "gradient" and output.target in self._homed_targets

    @cached_property
    def _homed_targets(self) -> frozenset[str]:
        return frozenset(entry.target for entry in self.graph.inputs if entry.name in self.homed)

    def _given_options(self, output: Output) -> np.ndarray:
        """The layouts that an output may have: gradients of several passes are added up before they are reduced."""
        assert output.value is not None
        tensor = self.graph.tensor(output.value)
        if self.passes == 1 or not self._is_gradient_at_home(output):
            return self._options(tensor)
        key = "accumulated", tensor.shape
        if key not in self._arrays:
            usual = self._options(tensor).tolist()
            self._arrays[key] = np.array(list(dict.fromkeys([*usual, *self.layouts.with_sums(tensor.shape)])))
        return self._arrays[key]

    def _tie(self, a: int, b: int, table: np.ndarray) -> None:
        self.ties.append(Tie(a, b, table))

    def _moves(self, ref: Ref) -> Moves | None:
        moves = None if self.restriction is None else self.restriction.of_move(ref)
        if ref not in self._narrow_sums:
            return moves
        return replace(moves or Moves((None,) * self.layouts.mesh.ndim, False), sums=True)

    @cached_property
    def _narrow_sums(self) -> frozenset[Ref]:
        return narrow_sums(self.graph, self.offers)

    def _note_layouts(self) -> None:
        """Which layouts tensors of each size may have, so that their prices are worked out together."""
        for ref, (_, face) in self.made.items():
            self.moving.note(self.graph.tensor(ref), face)
        for node in self.graph.nodes:
            for ref, column in zip(node.inputs, self.choices[node.name].inputs, strict=True):
                self.moving.note(self.graph.tensor(ref), column)
        for output in self.graph.outputs:
            if output.value is not None:
                tensor = self.graph.tensor(output.value)
                self.moving.note(tensor, self._given_options(output))

    def _options(self, tensor: TensorInfo) -> np.ndarray:
        key = "options", tensor.shape
        if key not in self._arrays:
            usual, wanted = self.layouts.without_partials(tensor.shape), self._pinned.get(tensor.shape, [])
            self._arrays[key] = np.array(list(dict.fromkeys([*usual, *wanted])))
        return self._arrays[key]

    @cached_property
    def _pinned(self) -> dict[tuple[int, ...], list[int]]:
        """By shape, the layouts of inputs and outputs that pins want. They may be such that no plan would choose: with
        axes in another order, strided, partial, or with more pieces than a dim has elements."""
        found: dict[tuple[int, ...], list[int]] = {}
        mesh = self.layouts.mesh
        for named, ref in named_tensors(self.graph):
            wanted = self.pins.placements(named) if named.kind != "node" else {}
            if wanted:
                placed = tuple(wanted.get(axis, parse_placement("R")) for axis in range(mesh.ndim))
                found.setdefault(self.graph.tensor(ref).shape, []).append(
                    self.layouts.of(Layout(mesh, placed))
                )
        return found

    def _array(self, array: np.ndarray) -> np.ndarray:
        """One object for all arrays of the same content, so that tables are shared by identity."""
        return self._arrays.setdefault((array.shape, array.tobytes()), array)


def _uses(node: Node, ref: Ref) -> list[int]:
    """The positions at which a node takes a tensor."""
    return [position for position, used in enumerate(node.inputs) if used == ref]


def _units(seconds: Sequence[float], allowed: np.ndarray | None) -> np.ndarray:
    cost = units(np.array(seconds, float))
    return cost if allowed is None else _forbid(cost, allowed)


def _forbid(cost: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    return np.where(allowed, cost, FORBIDDEN)


def _both(a: np.ndarray | None, b: np.ndarray | None) -> np.ndarray | None:
    if a is None or b is None:
        return b if a is None else a
    return a & b


def _key(allowed: np.ndarray | None) -> bytes | None:
    return None if allowed is None else allowed.tobytes()
