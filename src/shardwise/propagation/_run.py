"""Steps over all operations until none changes anything.

Shardings only grow, and a mesh has finitely many axes, so this terminates; a run that did not would be a bug and
raises. Operations next to a change are visited again before the others, the nearest first. Steps are cached by
operation and shardings: a model of many equal layers costs little more than one layer.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import NoneType

from ..errors import UsageError, require
from ..layout import Sharding
from ._levels import LEVELS, Level, directions, first_round, next_round, priorities_of, stages
from ._picture import factor_table
from ._program import DIRECTIONS, Program, identity
from ._state import Op, State, joined_states
from ._step import BOTH, Notes, step
from ._trace import Trace


@dataclass
class Propagation:
    """The propagated shardings of a program. `complete`: the fixed point was reached, which only a limit on sweeps can
    prevent. `trace` is None unless `debug` was set.
    """

    program: Program
    level: Level
    shardings: dict[str, Sharding]
    results: list[Sharding]
    sweeps: int
    updates: int
    complete: bool
    trace: Trace | None = None

    def __getitem__(self, value: str) -> Sharding:
        if value not in self.shardings:
            raise UsageError(
                f"there is no value {value!r}: the last ones are {', '.join(list(self.shardings)[-5:])}"
            )
        return self.shardings[value]

    def __str__(self) -> str:
        rows = [*self.shardings.items()]
        rows += [(f"return {r.value}", s) for r, s in zip(self.program.results, self.results, strict=True)]
        width = max((len(name) for name, _ in rows), default=0)
        return "\n".join(f"{name:<{width}}  {sharding}" for name, sharding in rows)

    def __repr__(self) -> str:
        end = "" if self.complete else ", not complete"
        return f"<Propagation {self.level}: {len(self.shardings)} values, {self.updates} updates{end}>"

    def picture(self, value: str) -> str:
        """The operation that produces a value, as a table: its tensors, its factors, and the axes on each."""
        node = next((node for node in self.program.nodes if value in node.outputs), None)
        if node is None or node.rule is None:
            raise UsageError(f"no operation with a rule produces {value!r}")
        return factor_table(node, self.program, self.shardings)

    @property
    def summary(self) -> str:
        reached = "fixed point reached" if self.complete else "stopped before the fixed point"
        return f"{reached} (updates: {self.updates}, sweeps: {self.sweeps})"


def run(
    program: Program, *, level: Level = "user-priority", debug: bool = False, sweeps: int | None = None
) -> Propagation:
    """Propagate the shardings of a program to all of its values, to a fixed point."""
    if level not in LEVELS:
        raise UsageError(f"unknown level {level!r}: use one of {', '.join(LEVELS)}")
    require(sweeps, (int, NoneType), "sweeps", "a whole number, at least 1")
    if sweeps is not None and sweeps < 1:
        raise UsageError(f"sweeps is {sweeps}: it must be at least 1")
    steps = _Run(program, level, debug, sweeps)
    steps.all_rounds()
    return steps.outcome()


@dataclass(frozen=True)
class _Node:
    """A node with indices instead of names: its op, its values (inputs, then outputs), and the directions of its
    factors by stage."""

    op: Op
    number: int
    values: tuple[int, ...]
    directions: dict[str, tuple[int, ...]]
    label: str


class _Run:
    def __init__(
        self,
        program: Program,
        level: Level,
        debug: bool,
        most_sweeps: int | None,
        step: Callable[..., Sequence[State | None]] = step,
    ) -> None:
        self._advance = step
        self.program, self.level, self.most_sweeps = program, level, most_sweeps
        self.trace = Trace(program.mesh) if debug else None
        self.sweeps = self.updates = 0
        self._aggressive = level != "basic"
        self._states: list[State] = []
        self._numbers: dict[State, int] = {}
        self._memo: dict[tuple[object, ...], tuple[tuple[tuple[int, int], ...], Notes | None]] = {}
        self._names = [*program.values, *(f"return {result.value}" for result in program.results)]
        self._op_numbers: dict[int, int] = {}
        index = {name: number for number, name in enumerate(program.values)}
        self._nodes = self._numbered(index)
        self._returns = [
            self._return(index[result.value], len(index) + i) for i, result in enumerate(program.results)
        ]
        self._maker, self._users = self._neighbours(len(index))
        self._groups = self._merged_groups(index)
        shardings = [value.sharding for value in program.values.values()] + [
            r.sharding for r in program.results
        ]
        self._original = [State.of(sharding) for sharding in shardings]
        self._agree_in_groups()
        self._current = [self._number(state) for state in self._original]
        # Every change adds a sub-axis to a value or drops its priorities.
        self._limit = 4 * (len(shardings) + 1) * (program.mesh.ranks.bit_length() + program.mesh.ndim + 2)

    def _node(
        self, op: Op, values: tuple[int, ...], directions: dict[str, tuple[int, ...]], label: str
    ) -> _Node:
        # Equal rules are compiled to the same Op.
        return _Node(
            op, self._op_numbers.setdefault(id(op), len(self._op_numbers)), values, directions, label
        )

    def _numbered(self, index: dict[str, int]) -> list[_Node]:
        uses: dict[str, int] = {}
        for value in [v for node in self.program.nodes for v in node.inputs] + [
            r.value for r in self.program.results
        ]:
            uses[value] = uses.get(value, 0) + 1
        nodes = []
        for node in self.program.nodes:
            if node.rule is None:
                continue
            op = Op.of(node.rule, node.kind == "elementwise")
            reused = any(uses[value] > 1 and self.program.values[value].shape for value in node.inputs)
            ways = {}
            for stage in stages(self.level):
                if node.kind == "barrier":
                    ways[stage] = (DIRECTIONS.index(node.allowed),) * len(op.sizes)
                else:
                    ways[stage] = directions(node.rule, node.kind, reused, stage)
            values = tuple(index[value] for value in (*node.inputs, *node.outputs))
            nodes.append(self._node(op, values, ways, str(node)))
        return nodes

    def _return(self, value: int, slot: int) -> _Node:
        shape = self.program.values[self._names[value]].shape
        ways = dict.fromkeys(stages(self.level), (BOTH,) * len(shape))
        return self._node(Op.of(identity(shape), elementwise=False), (value, slot), ways, self._names[slot])

    def _neighbours(self, values: int) -> tuple[list[int | None], list[list[int]]]:
        maker: list[int | None] = [None] * values
        users: list[list[int]] = [[] for _ in range(values)]
        for number, node in enumerate(self._nodes):
            for value in node.values[: node.op.inputs]:
                users[value].append(number)
            for value in node.values[node.op.inputs :]:
                maker[value] = number
        return maker, users

    def _merged_groups(self, index: dict[str, int]) -> dict[int, tuple[int, ...]]:
        """Merges groups that share a value."""
        merged: list[set[int]] = []
        for group in self.program.groups:
            members = {index[value] for value in group}
            touching = [other for other in merged if other & members]
            merged = [other for other in merged if not other & members] + [members.union(*touching)]
        return {value: tuple(sorted(group)) for group in merged for value in group}

    def _agree_in_groups(self) -> None:
        """All members of a group start with the combination of their shardings."""
        names = list(self.program.values)
        for group in dict.fromkeys(self._groups.values()):
            agreed = self._original[group[0]]
            for value in group[1:]:
                joined = joined_states(agreed, self._original[value])
                if joined is None:
                    raise UsageError(
                        f"the values {', '.join(names[v] for v in group)} must share a sharding "
                        "but have "
                        f"{agreed.sharding(self.program.mesh)} and "
                        f"{self.program.values[names[value]].sharding}"
                    )
                agreed = joined
            for value in group:
                self._original[value] = agreed

    def _number(self, state: State) -> int:
        number = self._numbers.setdefault(state, len(self._states))
        if number == len(self._states):
            self._states.append(state)
        return number

    def all_rounds(self) -> None:
        if self.level != "user-priority":
            self._all_stages(None)
            return
        mesh = self.program.mesh
        self._current = [self._number(first_round(state, mesh)) for state in self._original]
        later = priorities_of(self._original)
        self._all_stages(0 if later else None)
        for priority in later:
            for value, original in enumerate(self._original):
                if original.priorities is not None and priority in original.priorities:
                    state = next_round(self._states[self._current[value]], original, priority)
                    self._current[value] = self._number(state)
            self._all_stages(priority)

    def _all_stages(self, priority: int | None) -> None:
        for stage in stages(self.level):
            if self.trace is not None:
                self.trace.begin(priority, stage)
            self._pass_returns(stage)
            self._to_fixed_point(stage)
            self._pass_returns(stage)

    def _to_fixed_point(self, stage: str) -> None:
        changed = True
        first = self.sweeps
        while changed and self.sweeps - first != self.most_sweeps:
            changed = False
            self.sweeps += 1
            pending = list(range(len(self._nodes) - 1, -1, -1))
            is_pending = [True] * len(pending)
            while pending:
                number = pending.pop()
                is_pending[number] = False
                node = self._nodes[number]
                for value in self._step(node, stage):
                    changed = True
                    # The last one pushed is visited first: users in program order, then the producer.
                    maker = self._maker[value]
                    near = self._users[value][::-1] if maker is None else [maker, *self._users[value][::-1]]
                    for neighbour in near:
                        if neighbour != number and not is_pending[neighbour]:
                            is_pending[neighbour] = True
                            pending.append(neighbour)

    def _found(self, node: _Node, stage: str) -> tuple[tuple[tuple[int, int], ...], Notes | None]:
        """The changes of a step of the node: positions among its values, and their new states."""
        current = self._current
        ways = node.directions[stage]
        key = (node.number, ways, *[current[value] for value in node.values])
        found = self._memo.get(key)
        if found is None:
            notes = Notes(self.program.mesh) if self.trace is not None else None
            states = tuple(self._states[current[value]] for value in node.values)
            new = self._advance(node.op, states, ways, self._aggressive, notes)
            found = tuple((i, self._number(state)) for i, state in enumerate(new) if state is not None), notes
            self._memo[key] = found
        return found

    def _step(self, node: _Node, stage: str) -> list[int]:
        """Propagate through one node; the values that changed, in order."""
        current = self._current
        updates, notes = self._found(node, stage)
        if self.trace is not None and notes is not None:
            changes = {
                i: (self._states[current[node.values[i]]], self._states[state]) for i, state in updates
            }
            names = tuple(self._names[value] for value in node.values)
            self.trace.record(node.label, node.op, names, changes, notes)
        changed = []
        for position, state in updates:
            for value in self._groups.get(node.values[position], (node.values[position],)):
                current[value] = state
                changed.append(value)
        self.updates += len(set(changed))
        if self.updates > self._limit:
            raise RuntimeError(
                f"propagation did not terminate after {self.updates} changes: this is a bug in Shardwise"
            )
        return changed

    def _pass_returns(self, stage: str) -> None:
        """Propagate between values and the shardings in which they are returned, in both directions."""
        for node in self._returns:
            self._step(node, stage)

    def outcome(self) -> Propagation:
        mesh = self.program.mesh
        final = [self._states[number].sharding(mesh) for number in self._current]
        names = list(self.program.values)
        last = stages(self.level)[-1]
        complete = self.most_sweeps is None or not any(self._found(node, last)[0] for node in self._nodes)
        return Propagation(
            self.program,
            self.level,
            dict(zip(names, final, strict=False)),
            final[len(names) :],
            self.sweeps,
            self.updates,
            complete,
            self.trace,
        )
