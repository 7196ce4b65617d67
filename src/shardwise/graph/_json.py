"""The JSON form of a graph: everything needed to plan it again, and nothing of torch's own formats.

Numbers, strings, booleans and lists are themselves; a tensor is `{"%": name}` with its output position, and the few
other kinds of argument that overloads take are one-key objects (`{"dtype": "bfloat16"}`). Every node has the factors of
its call as `rule`, for other programs: it follows from the call, so a graph that is read derives it anew.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import torch

from ..documents import Field
from ..errors import UsageError
from ..factors import FactorRule
from ..files import read_document, write_text
from ._consistent import require_consistent
from ._graph import Execution, Graph, Input, InputRole, Node, Output, OutputRole, Phase, Ref, TensorInfo
from ._recompute_blocks import Policy
from ._reduced import REDUCED

FORMAT = "shardwise.graph/1"


def to_json(graph: Graph) -> dict[str, Any]:
    document = {
        "format": FORMAT,
        "name": graph.name,
        "training": graph.training,
        "execution": graph.execution,
        "recompute": dict(graph.recompute),
        "inputs": [_input_out(i) for i in graph.inputs],
        "nodes": [{**_node_out(n), "rule": _rule_out(graph.rule(n))} for n in graph.nodes],
        "outputs": [_output_out(o) for o in graph.outputs],
    }
    if graph.again:
        document["again"] = list(graph.again)
    if graph.reduce is not None:
        document["reduce"] = str(graph.reduce)[6:]
    return document if graph.autocast is None else {**document, "autocast": str(graph.autocast)[6:]}


def is_graph(document: Any) -> bool:
    """True if a JSON document is that of a graph."""
    return isinstance(document, dict) and document.get("format") == FORMAT


def from_json(document: Any) -> Graph:
    if not is_graph(document):
        raise UsageError(f"this is not a captured graph: its 'format' is not {FORMAT!r}")
    return read_graph(Field(document))


def read_graph(document: Field) -> Graph:
    """The graph in a field of a document."""
    parts = ("inputs", "nodes", "outputs")
    fields = document.object(
        ("format", "name", "training", "execution", "recompute", *parts), ("autocast", "again", "reduce")
    )
    fields["format"].one_of([FORMAT])
    inputs, nodes, outputs = (fields[name].items() for name in parts)
    calls = tuple(map(_node_in, nodes))
    graph = Graph(
        fields["name"].text(),
        fields["training"].flag(),
        tuple(map(_input_in, inputs)),
        calls,
        tuple(map(_output_in, outputs)),
        fields["execution"].one_of(get_args(Execution)),  # type: ignore[arg-type]
        recompute=tuple(
            (pattern, policy.one_of(get_args(Policy)))  # type: ignore[misc]
            for pattern, policy in fields["recompute"].members().items()
        ),
        autocast=_dtype(fields["autocast"]) if "autocast" in fields else None,
        again=_again_in(fields["again"], calls) if "again" in fields else (),
        reduce=REDUCED[fields["reduce"].one_of(list(REDUCED))] if "reduce" in fields else None,
    )
    require_consistent(graph, inputs, nodes, outputs)
    return graph


def _again_in(names: Field, nodes: tuple[Node, ...]) -> tuple[str, ...]:
    known = {node.name for node in nodes}
    for name in names.items():
        if name.text() not in known:
            raise name.expected("the name of a node")
    return tuple(name.text() for name in names.items())


def save(graph: Graph, path: Path) -> None:
    write_text(path, json.dumps(to_json(graph)) + "\n")


def load(path: Path) -> Graph:
    return read_document(path, from_json)


def _input_out(value: Input) -> dict[str, Any]:
    return {
        "name": value.name,
        "role": value.role,
        "target": value.target,
        "tensor": _tensor_out(value.tensor),
        "aliases": list(value.aliases),
        "trainable": value.trainable,
    }


def _input_in(document: Field) -> Input:
    fields = document.object(("name", "role", "target", "tensor", "aliases", "trainable"))
    return Input(
        fields["name"].text(),
        fields["role"].one_of(get_args(InputRole)),  # type: ignore[arg-type]
        fields["target"].text(),
        _tensor_in(fields["tensor"]),
        tuple(alias.text() for alias in fields["aliases"].items()),
        fields["trainable"].flag(),
    )


def _node_out(node: Node) -> dict[str, Any]:
    document: dict[str, Any] = {
        "name": node.name,
        "op": node.op,
        "args": _out(node.args),
        "kwargs": {key: _out(value) for key, value in node.kwargs.items()},
        "outputs": [None if t is None else _tensor_out(t) for t in node.outputs],
        "module": node.module,
        "phase": node.phase,
        "source": node.source,
        "flops": node.flops,
        "bytes": node.bytes,
    }
    if node.part_of:
        document["part_of"] = node.part_of
    if node.autograd is not None:
        document["autograd"] = node.autograd
    return document


def _rule_out(rule: FactorRule | None) -> str | None:
    return None if rule is None else str(rule)


def _node_in(document: Field) -> Node:
    texts = ("name", "op", "args", "kwargs", "outputs", "module", "phase", "source", "flops", "bytes")
    fields = document.object(texts, ("part_of", "autograd", "rule"))
    if "rule" in fields:
        fields["rule"].optional(Field.text)
    return Node(
        fields["name"].text(),
        fields["op"].text(),
        tuple(map(_in, fields["args"].items())),
        {key: _in(value) for key, value in fields["kwargs"].members().items()},
        tuple(tensor.optional(_tensor_in) for tensor in fields["outputs"].items()),
        fields["module"].text(),
        fields["phase"].one_of(get_args(Phase)),  # type: ignore[arg-type]
        fields["source"].text(),
        fields["flops"].integer(least=0),
        fields["bytes"].integer(least=0),
        fields["part_of"].text() if "part_of" in fields else "",
        fields["autograd"].integer(least=0) if "autograd" in fields else None,
    )


def _output_in(document: Field) -> Output:
    fields = document.object(("role", "target", "value"), ("constant",))
    value = fields["value"].optional(_in)
    if not isinstance(value, Ref | None):
        raise fields["value"].expected("a tensor such as {'%': 'x'}, or null")
    constant = _in(fields["constant"]) if "constant" in fields else None
    if not isinstance(constant, bool | int | float | str | None):
        raise fields["constant"].expected("a number, text, true or false")
    role = fields["role"].one_of(get_args(OutputRole))
    return Output(role, fields["target"].text(), value, constant)  # type: ignore[arg-type]


def _output_out(output: Output) -> dict[str, Any]:
    document = {"role": output.role, "target": output.target, "value": _out(output.value)}
    return document if output.constant is None else {**document, "constant": _out(output.constant)}


def _tensor_out(tensor: TensorInfo) -> dict[str, Any]:
    document: dict[str, Any] = {"shape": list(tensor.shape), "dtype": str(tensor.dtype)[6:]}
    if tensor.stride is not None:
        document["stride"] = list(tensor.stride)
    return document


def _tensor_in(document: Field) -> TensorInfo:
    fields = document.object(("shape", "dtype"), ("stride",))
    shape = tuple(size.integer(least=0) for size in fields["shape"].items())
    stride = None
    if "stride" in fields:
        stride = tuple(step.integer(least=0) for step in fields["stride"].items(len(shape)))
    return TensorInfo(shape, _dtype(fields["dtype"]), stride)


def _out(value: Any) -> Any:
    if isinstance(value, Ref):
        return {"%": value.name, "output": value.output} if value.output else {"%": value.name}
    if isinstance(value, tuple | list):
        return [_out(item) for item in value]
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    for kind, (cls, _) in _KINDS.items():
        if isinstance(value, cls):
            return {kind: str(value).removeprefix("torch.")}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise UsageError(f"argument {value!r} of type {type(value).__name__} has no JSON form")


def _in(document: Field) -> Any:
    value = document.value
    if isinstance(value, list | tuple):
        return tuple(map(_in, document.items()))
    if not isinstance(value, dict):
        return value if value is None or isinstance(value, bool) else _scalar(document)
    if "%" in value:
        fields = document.object(("%",), ("output",))
        return Ref(fields["%"].text(), fields["output"].integer(least=1) if "output" in fields else 0)
    if len(value) != 1 or not value.keys() <= _READ.keys():
        raise document.wrong(
            f"expected an object with one of %, {', '.join(_READ)}, found {', '.join(value)}"
        )
    [(kind, inside)] = document.members().items()
    return _READ[kind](inside)


def _scalar(document: Field) -> int | float | str:
    value = document.value
    if isinstance(value, float) and not math.isfinite(value):
        raise document.expected("a finite number, or one such as {'float': 'inf'}")
    return value


def _named(kind: type, right: str) -> Callable[[Field], Any]:
    """A reader of one of torch's constants by its name."""

    def read(field: Field) -> Any:
        found = getattr(torch, field.text(), None)
        if not isinstance(found, kind):
            raise field.expected(right)
        return found

    return read


_dtype = _named(torch.dtype, "a dtype such as 'float32'")


def _device(field: Field) -> torch.device:
    try:
        return torch.device(field.text())
    except RuntimeError:
        raise field.expected("a device such as 'cpu'") from None


def _infinite(field: Field) -> float:
    return float(field.one_of(("inf", "-inf", "nan")))


def _complex(field: Field) -> complex:
    parts = [part.value for part in field.items(2)]
    if not all(isinstance(part, int | float) and not isinstance(part, bool) for part in parts):
        raise field.expected("two numbers")
    return complex(*parts)


# Arguments that are none of JSON's kinds: their class, and how they are read.
_KINDS: dict[str, tuple[Any, Callable[[Field], Any]]] = {
    "dtype": (torch.dtype, _dtype),
    "device": (torch.device, _device),
    "layout": (torch.layout, _named(torch.layout, "a layout such as 'strided'")),
    "memory_format": (
        torch.memory_format,
        _named(torch.memory_format, "a memory format such as 'preserve_format'"),
    ),
}
_READ: dict[str, Callable[[Field], Any]] = {
    "float": _infinite,
    "complex": _complex,
    **{kind: read for kind, (_, read) in _KINDS.items()},
}
