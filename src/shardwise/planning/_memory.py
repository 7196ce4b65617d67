"""The bytes that choices hold, and when: what the problem knows of the memory that `_evaluate` counts.

Time is a row of points, one for each entry that a schedule can have: before a call the shared redistribution and the
user's own of each of its inputs, the call itself, and after it those of results that are given back. A holding says
that a choice of an item holds so many bytes over some points. Every holding is certain: a plan with that choice holds
those bytes, besides those of all other holdings, at an entry of its schedule. So what the problem counts is never
more than what the plan holds: no plan that fits is lost, and bounds and needs that follow from the problem are true.

How a call comes by an input depends on two choices, where the tensor is and where it is wanted. A `use` item, which
costs nothing, sees both: the call uses the group's shared redistribution (SHARED), one of its own (OWN), or the tensor
as it was made. The result of a view lies in the memory of what it is a view of: a tensor as it was made lies in that of
the tensor at the ROOT of its views (a parameter's is held anyway), or in a redistribution that such a view was given
(OF_SHARED, OF_OWN). Memory in which several tensors may lie is counted until the last certain use of any, and once.

What is left out is what more choices than these decide: which of several views of a view lie in which memory, and a
value that is given back in two layouts. Without `use` items, in large graphs, only what one choice tells is counted: a
call holds its inputs as it wants them, wherever they lie (ANY), once nothing else counts them.

Of a copy that may be left out (`_again`) it is not known when it runs, only that it does before what reads it, and not
before where it stands in the graph with all copies. Its own points do not count; what it makes counts from the first to
the last call that always runs and reads it, what it keeps from the end of the call's own, and what forward made and
copies alone read up to the first of those that run (a `needed` item sees whether one does).
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from typing import Any

import numpy as np

from ..graph import Input, Node, Ref, TensorInfo
from ..solver import FORBIDDEN
from ._again import CopyChoices
from ._choices import ABSENT, Layouts
from ._items import CopyItem, Group, Item, Items, Tie
from ._prices import workspace_bytes

ROOT, OF_SHARED, OF_OWN, SHARED, OWN, ANY = range(6)  # where a call finds an input
_RESULT = np.array([ROOT, OF_SHARED, OF_OWN, OF_SHARED, OF_OWN])  # where then the result of a view is
_MOST_HOLDERS = 6  # of one piece of memory that are told apart
LASTING = ("parameter", "buffer", "constant")


@dataclass(frozen=True, eq=False)
class Holding:
    """Bytes by the choice of an item, held from point `begin` to before point `end`."""

    usage: np.ndarray
    begin: int
    end: int


class Points:
    """The entries that a schedule can have, in order. `moves[node]` are the points of its first input's entries."""

    def __init__(self, items: Items) -> None:
        graph = items.graph
        self.ends = graph.ends
        given: dict[Ref, list[int]] = {}
        for position, output in enumerate(graph.outputs):
            if output.value is not None:
                given.setdefault(output.value, []).append(position)
        self.gives: dict[int, int] = {}
        self.moves: dict[str, int] = {}
        self.calls: dict[str, int] = {}
        self._count = 1  # the first is the beginning

        def give(ref: Ref) -> None:
            for position in given.get(ref, ()):
                self.gives[position] = self._count
                self._count += 1

        for entry in graph.inputs:
            give(Ref(entry.name))
        for node in graph.nodes:
            self.moves[node.name] = self._count
            self._count += 2 * len(node.inputs)
            self.calls[node.name] = self._count
            self._count += 1
            for place in range(len(node.outputs)):
                give(Ref(node.name, place))
        self.end = self._count
        backward = (node.name for node in graph.nodes if node.phase == "backward")
        self.turn = self.moves.get(next(backward, ""), self.end)  # where backward begins

    def of(self, nodes: Collection[str]) -> np.ndarray:
        """The beginning and the points of some nodes, in order."""
        order = [*self.moves.items(), ("", self.end)]
        spans = [range(at, order[i + 1][1]) for i, (name, at) in enumerate(order[:-1]) if name in nodes]
        return np.unique([*range(order[0][1]), *chain.from_iterable(spans)])

    def shared(self, node: Node, ref: Ref) -> int:
        """When a shared redistribution is made, if this is its first user."""
        return self.moves[node.name] + 2 * node.inputs.index(ref)

    def own(self, node: Node, ref: Ref) -> int:
        """When a user's own redistribution is made."""
        return self.shared(node, ref) + 1

    def released(self, node: Node) -> int:
        """The point from which on a user does not hold what it used."""
        return self.calls[self.ends.get(node.name, node.name)] + 1


@dataclass
class _Tree:
    """A tensor with all views of it: what lies in one piece of memory as long as nothing is redistributed."""

    root: Ref
    last: int  # up to this point its memory is counted with its maker
    lasting: bool  # it takes none of its own: a parameter's or buffer's is counted anyway
    memory: "_Pool"


class _Pool:
    """Holdings of one piece of memory by several items: (begin, end, place, usage). At each point it is the largest."""

    def __init__(self) -> None:
        self.segments: list[tuple[int, int, int, np.ndarray]] = []

    def add(self, place: int, usage: np.ndarray, begin: int, end: int) -> None:
        if begin < end and usage.any():
            self.segments.append((begin, end, place, usage))

    def spans(self) -> Iterator[tuple[int, int, list[tuple[int, np.ndarray]]]]:
        """From point to point the items that may hold the memory."""
        longest = sorted(self.segments, key=lambda segment: (-segment[1], segment[2]))[:_MOST_HOLDERS]
        points = sorted({point for begin, end, *_ in longest for point in (begin, end)})
        for begin, end in pairwise(points):
            holders = [(place, usage) for b, e, place, usage in longest if b <= begin and end <= e]
            if holders:
                yield begin, end, holders


@dataclass(frozen=True, eq=False)
class _Use:
    """The place of a `use` item, and the layout and the state of each of its choices."""

    place: int
    layouts: np.ndarray
    states: np.ndarray


@dataclass(frozen=True)
class _Base:
    """For the result of a view: what it is `of`, the use of that, and the redistributions that it may lie in.

    By state, what is held of each, and the point up to which that is counted already.
    """

    of: Ref
    use: _Use
    pools: dict[int, _Pool]
    counted: dict[int, int]


class Memory:
    """The holdings of all items, and the `use` items and ties that they need beside the problem's own."""

    def __init__(self, items: Items, *, pairs: bool = True) -> None:
        self.items, self.graph, self.layouts = items, items.graph, items.layouts
        self.pairs = pairs  # whether there are `use` items
        self.points = Points(items)
        self.uses: list[Item] = []
        self.ties: list[Tie] = []
        self.held: dict[int, list[Holding]] = {}
        self._cache: dict[Any, Any] = {}
        self._pools: list[_Pool] = []
        self._copies = {original: copy for copy, original in items.copies.items()}
        self._last = {ref: self._last_certain_use(ref) for ref in items.made}
        if items.all and (kept := workspace_bytes(self.graph, items.cluster.device)):
            self._hold(0, np.full(len(items.all[0]), kept), 0, self.points.end)  # whatever is chosen
        for entry in self.graph.inputs:
            self._add_tree(Ref(entry.name))
        for node in self.graph.nodes:
            call, place = self.points.calls[node.name], items.places["call", node.name]
            if node.name in items.copies:
                if not _shares(node):
                    self._add_copy(node, place)
                continue
            if node.name in items.scratch:
                self._hold(place, items.scratch[node.name], call, call + 1)
            if not _shares(node):
                for output, info in enumerate(node.outputs):
                    if info is not None:
                        self._add_tree(Ref(node.name, output))

    # -- one piece of memory

    def _last_certain_use(self, ref: Ref) -> int:
        """The last point at which a tensor itself is there, whatever is redistributed."""
        points = self.points
        maker = self.graph[ref.name]
        found = [0 if isinstance(maker, Input) else points.calls[maker.name]]
        for group in self._groups(ref):
            first = group.users[0]
            found.append(points.own(first, ref) if group.copy is None else points.shared(first, ref))
        if ref in self.items.first_given:
            found.append(points.gives[self.items.first_given[ref]])
        if isinstance(maker, Input) and (len(found) == 1 or maker.role == "tangent"):
            return (
                points.end - 1
            )  # an argument that nothing uses stays, and what the caller gives to backward
        return max(found)

    def _groups(self, ref: Ref) -> list[Group]:
        """The groups of users of a tensor in which some always run."""
        copies, groups = self.items.copies, self.items.groups.get(ref, [])
        return [group for group in groups if any(node.name not in copies for node in group.users)]

    def _certain(self, group: Group) -> list[Node]:
        return [node for node in group.users if node.name not in self.items.copies]

    def _add_copy(self, node: Node, place: int) -> None:
        """What a call that runs again makes, and what is held where it is kept instead."""
        choices = self.items.choices[node.name]
        assert isinstance(choices, CopyChoices)
        runs = np.arange(len(choices)) >= choices.run
        for output, info in enumerate(node.outputs):
            if info is None:
                continue
            ref = Ref(node.name, output)
            readers = [user for group in self._groups(ref) for user in self._certain(group)]
            if not readers:
                continue
            begin, last = min(self.points.moves[reader.name] for reader in readers), self._last[ref]
            tree = _Tree(ref, max(last, begin - 1), ref in self.graph.kernels.inner, self._pool())
            if not tree.lasting:
                usage = self._bytes(info, self.items.made[ref][1])
                self._hold(place, np.where(runs, usage, 0), begin, last + 1)
            self._add_value(tree, ref, None)
            self._hold_pools()

    def _keep(self, tree: _Tree) -> None:
        """A copy that is kept holds the memory of what it is a copy of."""
        copy = self._copies.get(tree.root.name)
        if copy is None or tree.lasting:
            return
        choices, ref = self.items.choices[copy], Ref(copy, tree.root.output)
        assert isinstance(choices, CopyChoices)
        kept = np.arange(len(choices)) < choices.run
        place, face = self.items.made[ref]
        usage = np.where(kept, self._bytes(self.graph.tensor(ref), face), 0)
        tree.memory.add(place, usage, tree.last + 1, self._last[ref] + 1)
        if groups := self._groups(ref):
            begin, end = self._last[ref] + 1, self.points.moves[self._certain(groups[-1])[0].name]
            if groups[-1].copy is not None and begin < end:
                holder = self._kept_or_moved(place, np.where(kept, face, ABSENT), ref, groups[-1].copy)
                tree.memory.add(*holder, max(tree.last + 1, begin), end)

    def _kept_or_moved(self, place: int, face: np.ndarray, ref: Ref, copy: int) -> tuple[int, np.ndarray]:
        """An item with what it holds of a tensor that is kept, by the layouts of its choices, before a call that always
        runs reads it: copies that run before that may already have brought it into the layout that they share."""
        item, tensor = self.items.all[copy], self.graph.tensor(ref)
        assert isinstance(item, CopyItem)
        layouts = np.unique(face[face != ABSENT])
        made, shared = self._bytes(tensor, layouts), self._bytes(tensor, item.layouts)
        least = np.minimum(made, shared[item.kept :].min(initial=tensor.bytes))
        numbers = np.concatenate([[ABSENT, ABSENT], layouts, layouts])
        moved = np.concatenate([[False, True], np.zeros(len(layouts), bool), np.ones(len(layouts), bool)])
        usage = np.concatenate([[0, 0], made, least])
        both = self._add(np.zeros(len(usage), np.int64), ("kept or moved", usage.tobytes()))
        other = face[:, None] != numbers[None, :]
        apart = (np.arange(len(item)) >= item.kept)[:, None] != moved[None, :]
        self.ties.append(Tie(place, both, self._shared_table("kept", other)))
        self.ties.append(Tie(copy, both, self._shared_table("moved", apart)))
        return both, usage

    def _add_tree(self, root: Ref) -> None:
        maker = self.graph[root.name]
        place, face = self.items.made[root]
        tensor = self.graph.tensor(root)
        last = self._last[root]
        lasting = isinstance(maker, Input) and maker.role in LASTING
        if isinstance(maker, Input) and maker.name in self.items.homed:
            self._add_home(maker, place, face)
        elif isinstance(maker, Input) and lasting:
            usage = self._bytes(tensor, face)
            if maker.role == "parameter" and maker.trainable and self.graph.training:
                usage = usage + self._state_bytes(tensor, face)
            if self.items.passes > 1 and (gradient := self.items.gradient_of(maker)) is not None:
                usage = usage + self._bytes(gradient, face)
            self._hold(place, usage, 0, self.points.end)
        elif root in self.graph.kernels.inner:
            lasting = True  # it takes no memory, so nothing that lies in it does
        else:
            begin = 0 if isinstance(maker, Input) else self._made_at(maker)
            last = max(last, begin - 1)
            self._hold(place, self._bytes(tensor, face), begin, last + 1)
        tree = _Tree(root, last, lasting, self._pool())
        self._keep(tree)
        if not lasting:
            self._need(tree)
        self._add_value(tree, root, None)
        self._hold_pools()

    def _need(self, tree: _Tree) -> None:
        """What is made is there until the first copy that reads it runs, if one does."""
        place, face = self.items.made[tree.root]
        amounts = self._bytes(self.graph.tensor(tree.root), face)
        levels = np.unique([0, *amounts.tolist()])
        for group in self.items.groups.get(tree.root, []):
            begin, end = tree.last + 1, self.points.moves[group.users[0].name]
            if self._certain(group) or begin >= end:
                continue
            needed = self._add(np.zeros(len(levels), np.int64), ("needed", levels.tobytes()))
            other = (amounts[:, None] != levels[None, :]) & (levels > 0)[None, :]
            self.ties.append(Tie(place, needed, self._shared_table("amount", other)))
            for user in group.users:
                choices = self.items.choices[user.name]
                assert isinstance(choices, CopyChoices)
                none = (np.arange(len(choices)) >= choices.run)[:, None] & (levels == 0)[None, :]
                self.ties.append(
                    Tie(self.items.places["call", user.name], needed, self._shared_table("runs", none))
                )
            tree.memory.add(needed, levels, begin, end)

    def _add_home(self, parameter: Input, held: int, face: np.ndarray) -> None:
        """A parameter and its states at home, the copy that passes begin from, and gradients that are added up."""
        items, end, tensor = self.items, self.points.end, parameter.tensor
        home, copy = items.places["input", parameter.name], items.all[held]
        assert isinstance(copy, CopyItem)
        homes = items.options_of(items.all[home])
        own = self._bytes(tensor, homes) + self._state_bytes(tensor, homes)
        self._hold(home, np.where(items.on_host(items.all[home]), 0, own), 0, end)
        self._hold(held, np.where(np.arange(len(copy)) < copy.kept, 0, self._bytes(tensor, face)), 0, end)
        if items.passes > 1:
            given = items.places["output", str(self._gradient_of[parameter.target])]
            gradient = items.gradient_of(parameter)
            assert gradient is not None
            self._hold(given, self._bytes(gradient, items.options_of(items.all[given])), 0, end)

    @cached_property
    def _gradient_of(self) -> dict[str, int]:
        """The position of each gradient among the outputs, by the name of what it is the gradient of."""
        outputs = enumerate(self.graph.outputs)
        return {output.target: position for position, output in outputs if output.role == "gradient"}

    def _hold_pools(self) -> None:
        for pool in self._pools:
            for begin, end, holders in pool.spans():
                # The last is that which holds it for the shortest time.
                self._hold(*(self._largest(holders) if self.pairs else holders[-1]), begin, end)
        self._pools.clear()

    def _made_at(self, maker: Node) -> int:
        """When a result certainly takes memory of its own: one of a compiled kernel may be written over what that reads
        last."""
        if self.graph.region(maker) is not None and maker.name in self.graph.kernels.number:
            return self.points.released(maker)
        return self.points.calls[maker.name]

    def _largest(self, holders: list[tuple[int, np.ndarray]]) -> tuple[int, np.ndarray]:
        """An item that holds as much as that of several which holds most; itself, if it is the only one."""
        if len(holders) == 1:
            return holders[0]
        key = "largest", *((place, usage.tobytes()) for place, usage in holders)
        if key not in self._cache:
            levels = np.unique(np.concatenate([usage for _, usage in holders]))
            place = self._add(np.zeros(len(levels), np.int64), ("largest", levels.tobytes()))
            for holder, usage in holders:
                table = self._shared_table("above", usage[:, None] > levels[None, :])
                self.ties.append(Tie(holder, place, table))
            self._cache[key] = place, levels
        return self._cache[key]

    def _pool(self) -> _Pool:
        self._pools.append(_Pool())
        return self._pools[-1]

    def _add_value(self, tree: _Tree, ref: Ref, base: _Base | None) -> None:
        groups = self._groups(ref)
        for group in groups:
            self._add_group(tree, ref, group, group is groups[-1], base)
        position = self.items.first_given.get(ref)
        if position is not None:
            self._add_given(tree, ref, position, base)

    def _add_group(self, tree: _Tree, ref: Ref, group: Group, last: bool, base: _Base | None) -> None:
        points, tensor, users = self.points, self.graph.tensor(ref), self._certain(group)
        final = users[-1]
        after = (
            points.own(final, ref) + 1
        )  # from then on it depends on how users come by the tensor whether it is held
        ended = max(map(points.released, users))  # when that is over, but for views of it
        if group.copy is not None:
            self._add_shared(tree, ref, group, last and base is None)
        shared = self._pool()
        views: list[tuple[Node, _Use, int]] = []
        for node in users:
            use = self._add_use(ref, group, node, base)
            made = self._bytes(tensor, use.layouts)
            fresh = np.where(use.states == SHARED, made, 0)
            until = points.released(node)
            if _shares(node) and node.inputs[0] == ref:
                until = max([until, *(self._last[result] + 1 for result in node.results)])
                views.append((node, use, until))
            self._hold(use.place, np.where(use.states == OWN, made, 0), points.own(node, ref), until)
            shared.add(use.place, fresh, after, until)
            if until > points.calls[node.name] + 1 or (node is final and last):
                self._stay(tree, ref, use, after - 1, until, base)
        counted = max([ended, *(until for _, _, until in views)]) - 1
        below = self._pool()
        for node, use, until in views:
            pools, done = {OF_SHARED: below, OF_OWN: self._pool()}, {OF_SHARED: counted, OF_OWN: until - 1}
            if base is not None:  # it may also lie in what its own base does
                pools = base.pools
                done = {state: max(point, base.counted[state]) for state, point in done.items()}
            for result in node.results:
                self._add_value(tree, result, _Base(ref, use, pools, done))

    def _add_shared(self, tree: _Tree, ref: Ref, group: Group, of_root: bool) -> None:
        """What a shared redistribution holds; without one, the tensor stays for the last group at its root."""
        assert group.copy is not None
        item = self.items.all[group.copy]
        assert isinstance(item, CopyItem)
        made, moved = self._bytes(self.graph.tensor(ref), item.layouts), np.arange(len(item)) >= item.kept
        users = self._certain(group)
        until = self.points.own(users[-1], ref) + 1
        self._hold(group.copy, np.where(moved, made, 0), self.points.shared(users[0], ref), until)
        if of_root and not tree.lasting:
            tree.memory.add(group.copy, np.where(moved, 0, made), tree.last + 1, until)

    def _add_given(self, tree: _Tree, ref: Ref, position: int, base: _Base | None) -> None:
        """A value that is given back, as it was made or in another layout, stays to the end."""
        maker, face = self.items.made[ref]
        place = self.items.places["output", str(position)]
        use = self._see(maker, face, None, place, self.items.options_of(self.items.all[place]), base)
        own = np.where(use.states == OWN, self._bytes(self.graph.tensor(ref), use.layouts), 0)
        self._hold(use.place, own, self.points.gives[position], self.points.end)
        self._stay(tree, ref, use, self.points.gives[position], self.points.end, base)

    def _stay(self, tree: _Tree, ref: Ref, use: _Use, after: int, end: int, base: _Base | None) -> None:
        """What a tensor lies in stays until a point, if it is used as it was made; in ANY case after some point."""
        counted = {} if base is None else base.counted
        if not self.pairs:
            if not tree.lasting:
                begin = max([tree.last, after, *counted.values()]) + 1
                tree.memory.add(use.place, self._kept_bytes(tree, ref, use.layouts), begin, end)
            return
        if not tree.lasting:
            holder = self._kept(tree, ref, use, ROOT, tree.root, self.items.made[tree.root])
            tree.memory.add(*holder, tree.last + 1, end)
        for state, point in counted.items():
            assert base is not None
            holder = self._kept(tree, ref, use, state, base.of, (base.use.place, base.use.layouts))
            base.pools[state].add(*holder, point + 1, end)

    def _kept(
        self, tree: _Tree, ref: Ref, use: _Use, state: int, of: Ref, lies: tuple[int, np.ndarray]
    ) -> tuple[int, np.ndarray]:
        """An item with what it holds if a use is in a state: all of the memory in which the tensor lies.

        It is that of the tensor `of`; `lies` are the item that knows its layout, and the layouts of its choices.
        """
        if self.graph.tensor(ref).stored_bytes >= self.graph.tensor(of).stored_bytes:
            return use.place, np.where(use.states == state, self._kept_bytes(tree, ref, use.layouts), 0)
        place, layouts = lies
        amounts = self._kept_bytes(tree, of, layouts)
        levels = np.unique([0, *amounts.tolist()])
        both = self._add(np.zeros(len(levels), np.int64), ("both", levels.tobytes()))
        other = (amounts[:, None] != levels[None, :]) & (levels > 0)[None, :]
        none = (use.states == state)[:, None] & (levels == 0)[None, :]
        self.ties.append(Tie(place, both, self._shared_table("amount", other)))
        self.ties.append(Tie(use.place, both, self._shared_table("held", none)))
        return both, levels

    # -- items that see how a tensor comes to its user

    def _add_use(self, ref: Ref, group: Group, node: Node, base: _Base | None) -> _Use:
        source, face = self.items.made[ref]
        kept = None
        if group.copy is not None:
            item = self.items.all[group.copy]
            assert isinstance(item, CopyItem)
            source, face, kept = group.copy, item.layouts, item.kept
        wanted = self.items.choices[node.name].inputs[node.inputs.index(ref)]
        return self._see(source, face, kept, self.items.places["call", node.name], wanted, base)

    def _see(
        self,
        source: int,
        face: np.ndarray,
        kept: int | None,
        user: int,
        wanted: np.ndarray,
        base: _Base | None,
    ) -> _Use:
        """A `use` item between the items that make and that use a tensor, and the view of which it is the result."""
        if not self.pairs:
            return _Use(user, wanted, np.full(len(wanted), ANY))
        key = "use", id(face), kept, id(wanted), base is None
        if key not in self._cache:
            as_made = [ROOT] if base is None else [ROOT, OF_SHARED, OF_OWN]
            self._cache[key] = _seen(self.layouts, face, kept, wanted, as_made)
        layouts, states, before, after, cost = self._cache[key]
        use = _Use(self._add(cost, key), layouts, states)
        self.ties += [Tie(source, use.place, before), Tie(use.place, user, after)]
        if base is not None:
            # A tensor as it was made is where the view left it.
            wrong = (_RESULT[base.use.states][:, None] != states[None, :]) & (states < SHARED)[None, :]
            self.ties.append(Tie(base.use.place, use.place, self._shared_table("result", wrong)))
        return use

    def _add(self, cost: np.ndarray, label: Any) -> int:
        self.uses.append(Item("use", "", cost, label))
        return len(self.items.all) + len(self.uses) - 1

    def _shared_table(self, kind: str, forbidden: np.ndarray) -> np.ndarray:
        """One object for all tables of the same content, as items that look alike are found by their tables."""
        key = kind, forbidden.shape, forbidden.tobytes()
        return self._cache.setdefault(key, np.where(forbidden, FORBIDDEN, 0))

    # -- holdings

    def _hold(self, place: int, usage: np.ndarray, begin: int, end: int) -> None:
        if begin >= end or not usage.any():
            return
        held = self.held.setdefault(place, [])
        held.append(Holding(usage, begin, end))
        whole = begin == 0 and end == self.points.end
        if self.items.in_flight > 1 and begin < self.points.turn < end and not whole:
            # What is kept for backward is kept for every pass that is in flight.
            held.append(Holding((self.items.in_flight - 1) * usage, 0, self.points.end))

    def _bytes(self, tensor: TensorInfo, layouts: np.ndarray) -> np.ndarray:
        key = "bytes", tensor, id(layouts)
        if key not in self._cache:
            local = [self.layouts.local(number, tensor).bytes for number in layouts.tolist()]
            self._cache[key] = np.array(local, np.int64), layouts
        return self._cache[key][0]

    def _state_bytes(self, tensor: TensorInfo, layouts: np.ndarray) -> np.ndarray:
        local = [self.layouts.local(number, tensor) for number in layouts.tolist()]
        return np.array([self.items.optimizer.state_bytes(part) for part in local], np.int64)

    def _kept_bytes(self, tree: _Tree, ref: Ref, layouts: np.ndarray) -> np.ndarray:
        """What a tensor certainly holds of its tree's memory: all that it reads, none where elements repeat."""
        tensor = self.graph.tensor(ref)
        if ref == tree.root:
            return self._bytes(tensor, layouts)
        if tensor.stored_bytes > self.graph.tensor(tree.root).bytes:
            return np.zeros(len(layouts), np.int64)
        local = [self.layouts.local(number, tensor).stored_bytes for number in layouts.tolist()]
        return np.array(local, np.int64)


def _seen(
    layouts: Layouts, face: np.ndarray, kept: int | None, wanted: np.ndarray, as_made: list[int]
) -> tuple[np.ndarray, ...]:
    """Layouts and states of a `use` item's choices, its ties to maker and user, and its cost of nothing."""
    shared = np.arange(len(face)) >= (len(face) if kept is None else kept)
    targets = np.unique(wanted)
    same = layouts.same(face, targets)
    found = [(number, OWN) for number in targets.tolist()]
    for state in as_made:
        found += [(n, state) for i, n in enumerate(targets.tolist()) if same[~shared, i].any()]
    found += [(n, SHARED) for i, n in enumerate(targets.tolist()) if same[shared, i].any()]
    numbers, states = np.array([n for n, _ in found]), np.array([state for _, state in found])
    is_same = layouts.same(face, numbers)
    right = np.where(shared[:, None], states == SHARED, states < SHARED)
    before = np.where(states == OWN, ~is_same, is_same & right)
    after = numbers[:, None] == wanted[None, :]
    forbid = np.where(before, 0, FORBIDDEN), np.where(after, 0, FORBIDDEN)
    return numbers, states, *forbid, np.zeros(len(numbers), np.int64)


def _shares(node: Node) -> bool:
    """Whether a call's results lie in the memory of its first input."""
    return bool(node.inputs) and node.facts.view
