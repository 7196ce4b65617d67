"""Segments: a graph with marked boundaries (`_boundaries`), any stretch of which is a graph of its own: a stage.

A stage takes what crosses its first boundary as arguments and gives back what crosses its last one; where gradients
cross, they come in as tangents and go out as gradients of these arguments. Names are those of the whole graph, and what
crosses a boundary goes by the name of its mark on both sides. Results that no loss follows from are left out.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ..calls import with_leaves
from ..errors import UsageError
from ._boundaries import is_mark, is_mark_of_gradient, is_sum
from ._graph import Graph, Input, Node, Output, Ref, TensorInfo


@dataclass(frozen=True)
class Crossing:
    """A value that crosses a boundary: the mark that it passes, and that which its gradient passes, if it has one."""

    mark: Node
    gradient: Node | None

    @property
    def name(self) -> str:
        return self.mark.name

    @property
    def tensor(self) -> TensorInfo:
        return _made(self.mark)


@dataclass(frozen=True)
class Segments:
    """The parts of a captured program between its boundaries, in order."""

    graph: Graph

    def __len__(self) -> int:
        return max(self.crossings, default=0) + 1

    @cached_property
    def crossings(self) -> dict[int, tuple[Crossing, ...]]:
        """What crosses each boundary, by its number: boundary 1 is behind the first segment."""
        marks: dict[int, list[Node]] = {}
        gradients: dict[tuple[int, int], Node] = {}
        for node in self.graph.nodes:
            if is_mark(node.op):
                marks.setdefault(node.args[1], []).append(node)
            elif is_mark_of_gradient(node.op):
                gradients[node.args[1], node.args[2]] = node
        return {
            number: tuple(Crossing(mark, gradients.get((number, mark.args[2]))) for mark in found)
            for number, found in sorted(marks.items())
        }

    @cached_property
    def whole(self) -> Graph:
        """The program without boundaries."""
        return self.stage(0, len(self))

    @cached_property
    def of(self) -> Mapping[str, int | None]:
        """The segment of each call; None for what every stage that needs it computes, and for sums over segments."""
        return self._found[0]

    @property
    def _sums(self) -> frozenset[str]:
        """Sums of gradients of a parameter that several segments use."""
        return self._found[1]

    @cached_property
    def _found(self) -> tuple[Mapping[str, int | None], frozenset[str]]:
        forward = self._forward()
        backward, sums = self._backward(forward)
        return forward | backward, sums

    def _forward(self) -> dict[str, int | None]:
        found: dict[str, int | None] = {}
        nodes = [node for node in self.graph.nodes if node.phase == "forward"]
        last = 0
        for node in nodes:
            if is_mark(node.op):
                found[node.name] = node.args[1]
                continue
            given = [found[ref.name] for ref in node.inputs if found.get(ref.name) is not None]
            found[node.name] = max(given, default=None)  # type: ignore[type-var]
        # What follows from parameters alone is computed where it is used first; else with what was before it.
        for node in reversed(nodes):
            if found[node.name] is None and node.name in self._owned:
                users = [_before(user, found) for user in self._users(node) if user.phase == "forward"]
                found[node.name] = min((at for at in users if at is not None), default=None)
        for node in nodes:
            if found[node.name] is None and node.name in self._owned:
                found[node.name] = last
            last = max(last, found[node.name] or 0)
        return found

    def _backward(self, forward: Mapping[str, int | None]) -> tuple[dict[str, int | None], frozenset[str]]:
        found: dict[str, int | None] = {}
        sums: set[str] = set()
        nodes = [node for node in self.graph.nodes if node.phase == "backward"]
        starts = {
            entry.name: self._segment_of_output(entry.target, forward)
            for entry in self.graph.with_role("tangent")
        }
        for node in nodes:
            if is_mark_of_gradient(node.op):
                found[node.name] = node.args[1] - 1
                continue
            given = {starts.get(ref.name, found.get(ref.name)) for ref in node.inputs} - {None}
            if len(given) > 1 or any(ref.name in sums for ref in node.inputs):
                if not is_sum(node.op):
                    raise UsageError(
                        f"{self.graph.name} cannot be cut into stages: {node.name} of its backward uses gradients of "
                        "several of its parts"
                    )
                sums.add(node.name)
            found[node.name] = given.pop() if len(given) == 1 and node.name not in sums else None
        for node in reversed(nodes):
            if found[node.name] is None and node.name in self._owned - sums:
                users = [found.get(user.name) for user in self._users(node)]
                own = [forward.get(ref.name) for ref in node.inputs]
                known = [at for at in (*users, *own) if at is not None]
                found[node.name] = known[0] if known else None
        return found, frozenset(sums)

    def _segment_of_output(self, target: str, forward: Mapping[str, int | None]) -> int:
        for output in self.graph.outputs:
            if output.target == target and output.role in ("user_output", "mutation") and output.value:
                return forward.get(output.value.name) or 0
        return 0

    @cached_property
    def _owned(self) -> frozenset[str]:
        """Calls that follow from parameters, gradients, arguments with gradients, written buffers or random numbers."""
        written = {o.target for o in self.graph.outputs if o.role == "mutation"}
        owned = {
            entry.name
            for entry in self.graph.inputs
            if entry.role in ("parameter", "tangent") or entry.trainable or entry.target in written
        }
        calls = set()
        for node in self.graph.nodes:
            if node.facts.random or any(ref.name in owned for ref in node.inputs):
                owned.add(node.name)
                calls.add(node.name)
        return frozenset(calls)

    def _users(self, node: Node) -> Iterator[Node]:
        for ref in node.results:
            yield from self.graph.users.get(ref, ())

    # -- a stage

    def stage(self, begin: int, end: int) -> Graph:
        """The graph of the segments from `begin` to before `end`."""
        inside = range(begin, end)
        same: dict[Ref, Ref] = {}  # marks inside stand for what passes them
        nodes: list[Node] = []
        for node in self.graph.nodes:
            at = self.of[node.name]
            if is_mark(node.op) or is_mark_of_gradient(node.op):
                if begin < node.args[1] < end:
                    same[Ref(node.name)] = same.get(node.inputs[0], node.inputs[0])
            elif (at in inside or at is None) and node.name not in self._sums:
                nodes.append(_reading(node, same))
        incoming, outgoing = self.crossings.get(begin, ()), self.crossings.get(end, ())
        sums, outputs = self._outputs(begin, end, same, incoming, outgoing)
        nodes += sums
        nodes = _needed(nodes, outputs)
        inputs = self._inputs(begin, end, nodes, outputs, incoming, outgoing)
        graph = self.graph
        name = graph.name if len(inside) == len(self) else f"{graph.name}[{begin}:{end}]"
        return replace(graph, name=name, inputs=inputs, nodes=tuple(nodes), outputs=tuple(outputs))

    def _outputs(
        self,
        begin: int,
        end: int,
        same: Mapping[Ref, Ref],
        incoming: tuple[Crossing, ...],
        outgoing: tuple[Crossing, ...],
    ) -> tuple[list[Node], list[Output]]:
        """What the stage gives back, and further sums of gradients that this takes."""
        graph, whole = self.graph, (begin, end) == (0, len(self))
        losses = {entry.target for entry in graph.with_role("tangent")}

        def read(ref: Ref) -> Ref:
            return same.get(ref, ref)

        found = [Output("user_output", c.name, read(c.mark.inputs[0])) for c in outgoing]
        sums: list[Node] = []
        for output in graph.outputs:
            if output.role == "gradient":
                value, made = self._gradient(output, begin, end, read)
                sums += made
                if value is not None or whole:
                    found.append(replace(output, value=value))
            elif whole or (
                output.value is not None
                and self._segment_of(output.value) in range(begin, end)
                and (output.role == "mutation" or output.target in losses)
            ):
                found.append(replace(output, value=output.value and read(output.value)))
        found += [
            Output("gradient", c.name, read(c.gradient.inputs[0])) for c in incoming if c.gradient is not None
        ]
        return sums, found

    def _segment_of(self, ref: Ref) -> int | None:
        at = self.of.get(ref.name)
        return len(self) - 1 if at is None else at

    def _gradient(self, output: Output, begin: int, end: int, read: Any) -> tuple[Ref | None, list[Node]]:
        """The gradient of a parameter as far as it comes from a stage, and the sums that this takes."""
        if output.value is None:
            return None, []
        terms = [ref for ref in self._terms(output.value) if self.of.get(ref.name) in range(begin, end)]
        if not terms:
            return None, []
        value, sums = read(terms[0]), list[Node]()
        for number, term in enumerate(terms[1:]):
            last = self.graph[output.value.name]
            assert isinstance(last, Node)
            name = last.name if len(terms) == number + 2 else f"{last.name}_{number}"
            sums.append(replace(last, name=name, args=(value, read(term)), kwargs={}))
            value = Ref(name)
        return value, sums

    def _terms(self, ref: Ref) -> list[Ref]:
        """The gradients of segments that a gradient is the sum of, in order."""
        if ref.name not in self._sums:
            return [ref]
        node = self.graph[ref.name]
        assert isinstance(node, Node)
        return [term for given in node.inputs for term in self._terms(given)]

    def _inputs(
        self,
        begin: int,
        end: int,
        nodes: list[Node],
        outputs: list[Output],
        incoming: tuple[Crossing, ...],
        outgoing: tuple[Crossing, ...],
    ) -> tuple[Input, ...]:
        used = {ref.name for node in nodes for ref in node.inputs}
        used |= {output.value.name for output in outputs if output.value is not None}
        given = {output.target for output in outputs if output.role == "user_output"}
        written = {output.target for output in outputs if output.role == "mutation"}
        found = [
            Input(c.name, "user_input", c.name, c.tensor, trainable=c.gradient is not None) for c in incoming
        ]
        for entry in self.graph.inputs:
            if entry.role == "tangent":
                own = entry.target in given or entry.target in written
            elif entry.role in ("parameter", "buffer"):
                own = entry.name in used or entry.target in written
                own = own or (begin == 0 and entry.name not in self._used)
            else:
                own = entry.name in used or (begin, end) == (0, len(self))
            if own:
                found.append(entry)
        found += [
            Input(c.gradient.name, "tangent", c.name, _made(c.gradient))
            for c in outgoing
            if c.gradient is not None
        ]
        return tuple(found)

    @cached_property
    def _used(self) -> frozenset[str]:
        """What any call of the program uses."""
        return frozenset(ref.name for node in self.graph.nodes for ref in node.inputs)


def _made(mark: Node) -> TensorInfo:
    info = mark.outputs[0]
    assert info is not None
    return info


def _before(user: Node, segments: Mapping[str, int | None]) -> int | None:
    """The segment in which a user of a value needs it: a mark before its boundary."""
    return user.args[1] - 1 if is_mark(user.op) else segments.get(user.name)


def _reading(node: Node, same: Mapping[Ref, Ref]) -> Node:
    if not any(ref in same for ref in node.inputs):
        return node
    args, kwargs = with_leaves(
        (node.args, dict(node.kwargs)), lambda leaf: same.get(leaf, leaf) if isinstance(leaf, Ref) else leaf
    )
    return replace(node, args=args, kwargs=kwargs)


def _needed(nodes: list[Node], outputs: list[Output]) -> list[Node]:
    """The calls that outputs follow from."""
    needed = {output.value.name for output in outputs if output.value is not None}
    kept = []
    for node in reversed(nodes):
        if node.name in needed:
            kept.append(node)
            needed |= {ref.name for ref in node.inputs}
    return kept[::-1]
