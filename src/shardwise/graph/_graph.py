"""`Graph`: a captured program as plain data: inputs with their roles, operations in order, outputs with their roles.

Every operation is an ATen (or custom) overload on tensors of known shape and dtype, so that everything
about it (its rows, its price, its local form) follows from the node alone. A tensor is named by the node that
computes it and the position among that node's outputs: a `Ref`. A graph just captured keeps the fx graph as well,
node for node under the same names, but for calls that run again (`_again`); a graph loaded from JSON does not have it.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from zlib import crc32

import torch

from ..calls import Call, Facts, facts, leaves, overload, with_leaves
from ..errors import UsageError
from ..factors import FactorRule, factors_of
from ..files import path_of
from ..rules import book_rows
from ._blocks import block_of
from ._branches import Branches
from ._whole import Whole

if TYPE_CHECKING:
    from ._kernels import Kernels
    from ._recompute_blocks import Policies

Execution = Literal["eager", "compiled", "regional"]
Phase = Literal["forward", "backward"]
InputRole = Literal["parameter", "buffer", "user_input", "tangent", "constant"]
OutputRole = Literal["user_output", "gradient", "mutation"]


@dataclass(frozen=True)
class TensorInfo:
    """Shape and dtype of a tensor, and its strides where it is not contiguous."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    stride: tuple[int, ...] | None = None

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.numel * self.dtype.itemsize

    @property
    def stored_bytes(self) -> int:
        """Bytes that reading it touches: a dim of stride 0 is the same element again."""
        if self.stride is None:
            return self.bytes
        return prod(n for n, s in zip(self.shape, self.stride, strict=True) if s) * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{str(self.dtype)[6:]}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Ref:
    """A tensor: output `output` of the node or input called `name`."""

    name: str
    output: int = 0

    def __str__(self) -> str:
        return f"%{self.name}" + (f".{self.output}" if self.output else "")


@dataclass(frozen=True)
class Input:
    """An input of the graph.

    `target` is the parameter's or buffer's name, the user input's name, or for a tangent the output it belongs
    to. Tied parameters are one input under the first of their names; `aliases` are the others.
    """

    name: str
    role: InputRole
    target: str
    tensor: TensorInfo
    aliases: tuple[str, ...] = ()
    trainable: bool = False


@dataclass(frozen=True)
class Node:
    """One call of an overload. Tensors in `args` and `kwargs` are `Ref`s, also inside lists.

    `part_of` names the call of an operator that was decomposed into this and others for the sake of its rules.
    `autograd` is the number of the node of autograd's graph whose backward makes this call. `source` is the line of the
    program on the machine that captured it: elsewhere the same program has another.
    """

    name: str
    op: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    outputs: tuple[TensorInfo | None, ...]
    module: str
    phase: Phase
    source: str = field(compare=False)
    flops: int
    bytes: int
    part_of: str = ""
    autograd: int | None = None

    @cached_property
    def inputs(self) -> tuple[Ref, ...]:
        """Its input tensors, in the order of its arguments, lists flattened."""
        return tuple(leaf for leaf in leaves((self.args, dict(self.kwargs))) if isinstance(leaf, Ref))

    @property
    def results(self) -> tuple[Ref, ...]:
        """Its output tensors."""
        return tuple(Ref(self.name, place) for place, info in enumerate(self.outputs) if info is not None)

    @property
    def stream(self) -> int:
        """The number of its random numbers' stream: the same in every graph that has the call."""
        return crc32(self.name.encode())

    @property
    def overload(self) -> torch._ops.OpOverload:
        return overload(self.op)

    @property
    def facts(self) -> Facts:
        return facts(self.overload)

    def __str__(self) -> str:
        args = [*map(_shown, self.args), *(f"{k}={_shown(v)}" for k, v in self.kwargs.items())]
        outputs = ", ".join("None" if t is None else str(t) for t in self.outputs)
        return f"%{self.name} = {self.op}({', '.join(args)}) -> {outputs}"


@dataclass(frozen=True)
class Output:
    """An output of the graph.

    `target` names the user's output, the parameter or input whose gradient it is, or the buffer or input that it
    replaces. A parameter that the loss does not depend on has no gradient: `value` is None. So it is where the program
    returns a number, a string or None instead of a tensor: that is `constant`.
    """

    role: OutputRole
    target: str
    value: Ref | None
    constant: bool | int | float | str | None = None


@dataclass(frozen=True)
class Live:
    """The captured graph as torch has it, and how the user's arguments and results are flattened.

    Constants (tensors that the program holds without having registered them) are attributes of `module`. `draws` are
    the program's random calls in order, each by the name of its node, or None where the graph does not use it. `wholes`
    are the calls that were decomposed, by what `part_of` of their nodes says. `branches` are those on tensor values.
    """

    module: torch.fx.GraphModule
    in_spec: Any
    out_spec: Any
    draws: tuple[str | None, ...] = ()
    wholes: Mapping[str, Whole] = field(default_factory=dict)
    branches: Branches | None = None

    @cached_property
    def arguments(self) -> tuple[tuple[str, int], ...]:
        """The inputs that are the user's, each with its place among the leaves of the arguments."""
        from ._read import argument_places

        return argument_places(self.module)


@dataclass(frozen=True)
class Graph:
    """A captured program. `execution` is how it is run: call by call, compiled, which fuses calls into kernels, or
    regional: each block compiled, and the rest call by call.

    `recompute` says of which blocks backward computes what again, and `again` which calls of forward a plan has chosen
    for that where it is to decide. `autocast` is the dtype of the autocast that was active around the program, whose
    casts are nodes, and `reduce` the dtype in which ranks add up gradients of parameters whose own is narrower. `notes`
    say what the program does besides, and the graph does not; a graph that was loaded has none.
    """

    name: str
    training: bool
    inputs: tuple[Input, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Output, ...]
    execution: Execution = "eager"
    live: Live | None = field(default=None, compare=False, repr=False)
    notes: tuple[str, ...] = field(default=(), compare=False, repr=False)
    recompute: "Policies" = ()
    autocast: torch.dtype | None = None
    again: tuple[str, ...] = ()
    reduce: torch.dtype | None = None

    @cached_property
    def makers(self) -> dict[str, Input | Node]:
        """Inputs and nodes by name."""
        makers: list[Input | Node] = [*self.inputs, *self.nodes]
        return {maker.name: maker for maker in makers}

    def __getitem__(self, name: str) -> Input | Node:
        """The input or node called `name`."""
        try:
            return self.makers[name]
        except KeyError:
            raise UsageError(f"graph of {self.name} has no node {name!r}: graph.table() lists them") from None

    def tensor(self, ref: Ref) -> TensorInfo:
        maker = self[ref.name]
        info = maker.tensor if isinstance(maker, Input) else maker.outputs[ref.output]
        assert info is not None, f"{ref} is not a tensor"
        return info

    def call(self, node: Node) -> Call:
        """The call of a node, with a `TensorInfo` for each of its `inputs`."""
        if node.name not in self._calls:
            args, kwargs = with_leaves((node.args, dict(node.kwargs)), self._described)
            made = tuple(None if info is None else info.shape for info in node.outputs)
            self._calls[node.name] = Call(node.overload, args, kwargs, made)
        return self._calls[node.name]

    @cached_property
    def _calls(self) -> dict[str, Call]:
        return {}

    def rule(self, node: Node) -> FactorRule | None:
        """The factors of a node's call, derived from the rows that the book has for it; None if it has none."""
        call = self.call(node)
        if call.signature not in self._rules:
            rows = book_rows(call)
            self._rules[call.signature] = None if rows is None else factors_of(call, rows)
        return self._rules[call.signature]

    @cached_property
    def _rules(self) -> dict[Any, FactorRule | None]:
        return {}

    def _described(self, leaf: Any) -> Any:
        return self.tensor(leaf) if isinstance(leaf, Ref) else leaf

    @cached_property
    def users(self) -> Mapping[Ref, tuple[Node, ...]]:
        """The nodes that use each tensor, each once, in order."""
        users: dict[Ref, dict[str, Node]] = {}
        for node in self.nodes:
            for ref in node.inputs:
                users.setdefault(ref, {})[node.name] = node
        return {ref: tuple(nodes.values()) for ref, nodes in users.items()}

    def base(self, ref: Ref) -> Ref:
        """The tensor in whose memory a tensor lies: itself, unless it is a view."""
        return self.views.get(ref, ref)

    @cached_property
    def views(self) -> Mapping[Ref, Ref]:
        """The tensors that lie in the memory of others, and in whose."""
        bases: dict[Ref, Ref] = {}
        for node in self.nodes:
            if node.inputs and node.facts.view:
                base = bases.get(node.inputs[0], node.inputs[0])
                bases |= dict.fromkeys(node.results, base)
        return bases

    @cached_property
    def ends(self) -> Mapping[str, str]:
        """For each call the last of those that are done together with it: what it uses is held until then.

        A kernel is done when the last of its calls is. Eagerly, autograd releases what a node of its graph has saved or
        was given when that node's backward is done.
        """
        keys: dict[str, list[tuple[str, int]]] = {}
        for node in self.nodes:
            if node.name in self.kernels.number:
                keys.setdefault(node.name, []).append(("kernel", self.kernels.number[node.name]))
            if node.autograd is not None and self.region(node) is None:
                keys.setdefault(node.name, []).append(("autograd", node.autograd))
        last = {key: at for at, node in enumerate(self.nodes) for key in keys.get(node.name, ())}
        ends = {name: self.nodes[max(last[key] for key in own)].name for name, own in keys.items()}
        return ends | {name: ends[other] for name, other in self.kernels.waiting.items()}

    def region(self, node: Node) -> str | None:
        """The part of the program that is compiled together with a node: its block, or everything; None if the node is
        run by itself."""
        if self.execution == "compiled":
            return ""
        return (block_of(node.module) or None) if self.execution == "regional" else None

    @cached_property
    def kernels(self) -> "Kernels":
        """Which calls share a kernel."""
        from ._kernels import kernels_of

        return kernels_of(self)

    def with_role(self, role: InputRole) -> tuple[Input, ...]:
        return tuple(i for i in self.inputs if i.role == role)

    @property
    def gradients(self) -> dict[str, Ref | None]:
        """The gradient of each trainable parameter and input, by its name."""
        return {o.target: o.value for o in self.outputs if o.role == "gradient"}

    @cached_property
    def accumulated(self) -> frozenset[str]:
        """The parameters, by name in the graph, that have gradients: those of several passes are added up."""
        named = {entry.target: entry.name for entry in self.with_role("parameter")}
        return frozenset(
            named[target] for target, value in self.gradients.items() if value and target in named
        )

    def flops(self, phase: Phase | None = None) -> int:
        return sum(n.flops for n in self.nodes if phase in (None, n.phase))

    def to_json(self) -> dict[str, Any]:
        from ._json import to_json

        return to_json(self)

    @classmethod
    def from_json(cls, document: Any) -> "Graph":
        from ._json import from_json

        return from_json(document)

    def save(self, path: str | Path) -> None:
        from ._json import save

        save(self, path_of(path))

    @classmethod
    def load(cls, path: str | Path) -> "Graph":
        from ._json import load

        return load(path_of(path))

    def __str__(self) -> str:
        from ._picture import summary

        return summary(self)

    def __repr__(self) -> str:
        kind = "training" if self.training else "inference"
        return f"<Graph of {self.name}: {kind}, {len(self.inputs)} inputs, {len(self.nodes)} nodes>"

    def table(self, module: str = "", phase: Phase | None = None) -> str:
        """All nodes with their rules, or those of one module (and what is in it) or one phase; no wider than 80
        columns."""
        from ._picture import table

        return table(self, module, phase)

    @cached_property
    def ops(self) -> Counter[str]:
        return Counter(node.op for node in self.nodes)


def _shown(value: Any) -> str:
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(_shown, value)) + "]"
    return str(value)
