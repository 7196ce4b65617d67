"""A captured graph as a program: one value per tensor, one operation per call, with the factors of its rows.

Inputs go by the names that the user knows (`layers.0.up.weight`, `x`), other tensors by their nodes'. What the graph
gives back is a value of its own: a gradient shares the sharding of what it is the gradient of, a new value that of the
old one, and what comes back for an output that of the output.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod

from ..factors import FactorRule
from ..graph import Graph, Named, Node, Output, Ref
from ..layout import Sharding
from ._annotations import Annotations
from ._program import OpKind, Program, identity, kind_of
from ._run import Propagation

# The factors of a node's call; None where nothing is known about it.
Rules = Callable[[Node], FactorRule | None]


@dataclass(frozen=True)
class CapturedProgram:
    """The program of a graph; `names` are those of its values, by tensor, and `outputs` by the outputs in order."""

    graph: Graph
    program: Program
    names: Mapping[Ref, str]
    outputs: tuple[str | None, ...]


@dataclass(repr=False)
class GraphPropagation(Propagation):
    """The propagated shardings of a captured graph, by name, `outcome["layers.0.up.weight"]`, or by tensor."""

    captured: CapturedProgram = field(kw_only=True)

    def sharding(self, ref: Ref) -> Sharding:
        return self.shardings[self.captured.names[ref]]

    def output(self, position: int) -> Sharding | None:
        """The sharding of an output of the graph; None where there is no tensor."""
        name = self.captured.outputs[position]
        return None if name is None else self.shardings[name]

    def table(self, module: str = "") -> str:
        """The graph with its shardings: every call, or those of one module, with its rule and what its tensors have."""
        from ._drawn import table

        return table(self, module)

    def __str__(self) -> str:
        graph = self.captured.graph
        rows = [(self.captured.names[Ref(entry.name)], entry.tensor) for entry in graph.inputs]
        for output, name in zip(graph.outputs, self.captured.outputs, strict=True):
            if output.role == "user_output" and output.value is not None and name is not None:
                rows.append((name, graph.tensor(output.value)))
        width = max((len(name) for name, _ in rows), default=0)
        wide = max((len(str(tensor)) for _, tensor in rows), default=0)
        lines = [f"{name:<{width}}  {tensor!s:<{wide}}  {self.shardings[name]}" for name, tensor in rows]
        return "\n".join([*lines, f"and the tensors of {len(graph.nodes)} calls"])


def captured_program(graph: Graph, annotations: Annotations, rules: Rules | None = None) -> CapturedProgram:
    """The program of a graph with the user's shardings; `rules` gives the factors of a call, by default the book's."""
    annotations.require_fit(graph)
    return _Builder(graph, annotations, rules or graph.rule).built()


class _Builder:
    def __init__(self, graph: Graph, annotations: Annotations, rules: Rules) -> None:
        self.graph, self.annotations, self.rules = graph, annotations, rules
        self.program = Program(annotations.mesh)
        self.names: dict[Ref, str] = {}
        self.partners: dict[tuple[bool, str], str] = {}  # what outputs share their shardings with

    def built(self) -> CapturedProgram:
        for entry in self.graph.inputs:
            tangent = entry.role == "tangent"
            name = self._free(f"grad({entry.target})" if tangent else entry.target, "input")
            given = None if tangent else self.annotations.of(Named.input(entry), len(entry.tensor.shape))
            self.names[Ref(entry.name)] = self.program.input(name, entry.tensor.shape, given)
            self.partners[tangent, entry.target] = name
        for node in self.graph.nodes:
            self._add(node)
        outputs = tuple(self._given_back(output) for output in self.graph.outputs)
        return CapturedProgram(self.graph, self.program, self.names, outputs)

    def _free(self, name: str, kind: str) -> str:
        return name if name not in self.program.values else f"{kind}:{name}"

    def _add(self, node: Node) -> None:
        made = []
        for ref in node.results:
            name, shape = self._free(str(ref).removeprefix("%"), "node"), self.graph.tensor(ref).shape
            given = None if ref.output else self.annotations.of(Named("node", node.name), len(shape))
            self.names[ref] = self.program.value(name, shape, given)
            made.append(name)
        rule = self.rules(node)
        kind = None if rule is None else self._kind(node, rule)
        self.program.node(rule, [self.names[ref] for ref in node.inputs], made, op=node.op, kind=kind)

    def _kind(self, node: Node, rule: FactorRule) -> OpKind:
        """As its factors say; what only rearranges one tensor is a reshape, even where data moves or dims stay."""
        kind = kind_of(rule)
        if kind != "other" or len(node.inputs) != 1 or len(node.results) != 1:
            return kind
        keeps = all(factor.kind != "reduction" for factor in rule.factors)
        before, after = (self.graph.tensor(ref).shape for ref in (node.inputs[0], node.results[0]))
        return "reshape" if keeps and prod(before) == prod(after) else kind

    def _given_back(self, output: Output) -> str | None:
        if output.value is None:
            return None
        shape = self.graph.tensor(output.value).shape
        wanted = {"user_output": "{}", "gradient": "grad({})", "mutation": "new({})"}[output.role]
        name, given = self._free(wanted.format(output.target), "output"), None
        if output.role == "user_output":
            given = self.annotations.of(Named("output", output.target), len(shape))
        self.program.value(name, shape, given)
        rule = identity(shape)
        self.program.node(rule, [self.names[output.value]], [name], op=output.role, kind="elementwise")
        self.program.result(name)
        partner = self.partners.get((output.role == "user_output", output.target))
        if partner is not None and self.program.shape(partner) == shape:
            self.program.group(partner, name)
        return name
