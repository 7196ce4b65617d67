"""The JSON form of a graph: everything needed to plan it again, and nothing of torch's own formats.

Numbers, strings, booleans and lists are themselves; a tensor is `{"%": name}` with its output position, and the few
other kinds of argument that overloads take are one-key objects (`{"dtype": "bfloat16"}`).
"""

import json
import math
from pathlib import Path
from typing import Any

import torch

from ..errors import UsageError
from ..files import read_document, write_text
from ._graph import Graph, Input, Node, Output, Ref, TensorInfo

FORMAT = "shardwise.graph/1"


def to_json(graph: Graph) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "name": graph.name,
        "training": graph.training,
        "inputs": [_input_out(i) for i in graph.inputs],
        "nodes": [_node_out(n) for n in graph.nodes],
        "outputs": [_output_out(o) for o in graph.outputs],
    }


def from_json(document: Any) -> Graph:
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise UsageError(f"this is not a captured graph: its 'format' is not {FORMAT!r}")
    try:
        return Graph(
            document["name"],
            document["training"],
            tuple(_input_in(i) for i in document["inputs"]),
            tuple(_node_in(n) for n in document["nodes"]),
            tuple(
                Output(o["role"], o["target"], _in(o["value"]), _in(o.get("constant")))
                for o in document["outputs"]
            ),
        )
    except KeyError as error:
        raise UsageError(f"captured graph {document.get('name')!r} lacks {error}") from None
    except (TypeError, AttributeError, ValueError) as error:
        raise UsageError(f"captured graph {document.get('name')!r} is malformed: {error}") from None


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


def _input_in(document: dict[str, Any]) -> Input:
    return Input(
        document["name"],
        document["role"],
        document["target"],
        _tensor_in(document["tensor"]),
        tuple(document["aliases"]),
        document["trainable"],
    )


def _node_out(node: Node) -> dict[str, Any]:
    return {
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


def _node_in(document: dict[str, Any]) -> Node:
    return Node(
        document["name"],
        document["op"],
        _in(document["args"]),
        {key: _in(value) for key, value in document["kwargs"].items()},
        tuple(None if t is None else _tensor_in(t) for t in document["outputs"]),
        document["module"],
        document["phase"],
        document["source"],
        document["flops"],
        document["bytes"],
    )


def _output_out(output: Output) -> dict[str, Any]:
    document = {"role": output.role, "target": output.target, "value": _out(output.value)}
    return document if output.constant is None else {**document, "constant": _out(output.constant)}


def _tensor_out(tensor: TensorInfo) -> dict[str, Any]:
    document: dict[str, Any] = {"shape": list(tensor.shape), "dtype": str(tensor.dtype)[6:]}
    if tensor.stride is not None:
        document["stride"] = list(tensor.stride)
    return document


def _tensor_in(document: dict[str, Any]) -> TensorInfo:
    stride = document.get("stride")
    dtype = getattr(torch, document["dtype"])
    return TensorInfo(tuple(document["shape"]), dtype, None if stride is None else tuple(stride))


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


def _in(document: Any) -> Any:
    if isinstance(document, list):
        return tuple(_in(item) for item in document)
    if not isinstance(document, dict):
        return document
    if "%" in document:
        return Ref(document["%"], document.get("output", 0))
    [(kind, text)] = document.items()
    if kind == "complex":
        return complex(*text)
    if kind == "float":
        return float(text)
    return _KINDS[kind][1](text)


# Arguments that are none of JSON's kinds: their class, and how they are read from text.
_KINDS: dict[str, tuple[Any, Any]] = {
    "dtype": (torch.dtype, lambda text: getattr(torch, text)),
    "device": (torch.device, torch.device),
    "layout": (torch.layout, lambda text: getattr(torch, text)),
    "memory_format": (torch.memory_format, lambda text: getattr(torch, text)),
}
