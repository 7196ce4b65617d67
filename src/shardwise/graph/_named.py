"""Names of a graph's tensors, and patterns that match them: `layers.*.weight`, `x`, `input:x`, `output:loss`."""

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from ..errors import UsageError
from ._graph import Graph, Input, Ref


@dataclass(frozen=True)
class Named:
    """What a pattern may name. The gradient that comes back for an output goes by the output's name."""

    kind: Literal["input", "output", "state", "node"]
    name: str
    aliases: tuple[str, ...] = ()

    @classmethod
    def input(cls, entry: Input) -> "Named":
        if entry.role == "tangent":
            return cls("output", entry.target)
        return cls("input" if entry.role == "user_input" else "state", entry.target, entry.aliases)

    def matches(self, pattern: str) -> bool:
        kind, colon, name = pattern.partition(":")
        if colon and kind in ("input", "output"):
            return kind == self.kind and fnmatchcase(self.name, name)
        return any(fnmatchcase(name, pattern) for name in (self.name, *self.aliases))


def named_tensors(graph: Graph) -> Iterator[tuple[Named, Ref]]:
    """Everything that has a name: inputs, the user's outputs, and the first tensor of every node."""
    for entry in graph.inputs:
        yield Named.input(entry), Ref(entry.name)
    for output in graph.outputs:
        if output.role == "user_output" and output.value is not None:
            yield Named("output", output.target), output.value
    for node in graph.nodes:
        if node.outputs and node.outputs[0] is not None:
            yield Named("node", node.name), Ref(node.name)


def matched(graph: Graph, pattern: str, what: str) -> list[tuple[Named, tuple[int, ...]]]:
    """What a pattern names, with its shape; refused if that is nothing. `what` says what the pattern is of."""
    found = [
        (named, graph.tensor(ref).shape) for named, ref in named_tensors(graph) if named.matches(pattern)
    ]
    if not found:
        known = ", ".join(sorted(i.target for i in graph.inputs if i.role != "tangent")[:8])
        raise UsageError(
            f"{what} matches no parameter, input, output or node of {graph.name}: there are {known}, ..."
        )
    return found
