"""What must be true of a graph that was read: names are unique, tensors are made before they are used, and every call
is one that its operator takes and gives tensors of the shapes and dtypes that are stated, at the stated cost."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch import Tensor

from ..calls import Call, facts, flat_outputs, must_run, with_leaves
from ..documents import Field
from ._device import autocast_to
from ._fake import without_memory
from ._flops import cost
from ._graph import Graph, Input, Node, Output, Ref, TensorInfo

Tensors = dict[Ref, TensorInfo]


@autocast_to(None)
def require_consistent(
    graph: Graph, inputs: Sequence[Field], nodes: Sequence[Field], outputs: Sequence[Field]
) -> None:
    """Refuse a graph that contradicts itself; the fields are those that it was read from."""
    known: Tensors = {}
    names: set[str] = set()
    targets: dict[tuple[str, str], Input] = {}
    for entry, field in zip(graph.inputs, inputs, strict=True):
        _require_new(entry.name, names, field)
        kind = entry.role if entry.role == "tangent" else "state"
        if targets.setdefault((kind, entry.target), entry) is not entry:
            raise _member(field, "target").wrong(
                f"expected a name of its own, found that of another input, {entry.target!r}"
            )
        known[Ref(entry.name)] = entry.tensor
    calls = _Calls()
    for node, field in zip(graph.nodes, nodes, strict=True):
        _require_new(node.name, names, field)
        _require_refs(node.inputs, known, field)
        calls.require(node, known, field)
        known |= {Ref(node.name, i): info for i, info in enumerate(node.outputs) if info is not None}
    for output, field in zip(graph.outputs, outputs, strict=True):
        _require_output(output, known, targets, field)


def _member(field: Field, name: str) -> Field:
    return field.members()[name]


def _require_new(name: str, names: set[str], field: Field) -> None:
    if name in names:
        raise _member(field, "name").wrong(
            f"expected a name of its own, found that of another node, {name!r}"
        )
    names.add(name)


def _require_refs(refs: Sequence[Ref], known: Tensors, field: Field) -> None:
    for ref in refs:
        if ref not in known:
            raise field.wrong(f"expected tensors that inputs or earlier nodes give, found {ref}")


def _require_output(
    output: Output, known: Tensors, targets: dict[tuple[str, str], Input], field: Field
) -> None:
    if output.value is None:
        return
    _require_refs([output.value], known, _member(field, "value"))
    if output.constant is not None:
        raise field.wrong("expected a value or a constant, found both")
    if output.role == "user_output":
        return
    of = targets.get(("state", output.target))
    if of is None:
        raise _member(field, "target").wrong(
            f"expected the target of an input that has a {output.role}, found {output.target!r}"
        )
    made = known[output.value]
    if made.shape != of.tensor.shape:
        raise _member(field, "value").wrong(
            f"expected a tensor like {output.target}, {of.tensor}, found {made}"
        )


class _Calls:
    """The checks of calls; each kind of call is run once, on tensors without memory."""

    def __init__(self) -> None:
        self._made: dict[Any, tuple[TensorInfo | None, ...]] = {}

    def require(self, node: Node, known: Tensors, field: Field) -> None:
        def described(leaf: Any) -> Any:
            return known[leaf] if isinstance(leaf, Ref) else leaf

        with _member(field, "op").checked():
            op = node.overload
        args, kwargs = with_leaves((node.args, dict(node.kwargs)), described)
        with field.checked():
            call = Call(op, args, kwargs)
            made = self._outputs(call)
        if list(map(_kind, node.outputs)) != list(map(_kind, made)):
            raise _member(field, "outputs").wrong(
                f"expected {_shown(made)}, as {call} gives, found {_shown(node.outputs)}"
            )
        for name, right in zip(("flops", "bytes"), cost(call, node.outputs), strict=True):
            if getattr(node, name) != right:
                raise _member(field, name).expected(f"{right}, as of {call}")

    def _outputs(self, call: Call) -> tuple[TensorInfo | None, ...]:
        if call.signature not in self._made:
            with must_run(str(call)), without_memory(), _quiet():
                result = Call(call.op, *with_leaves((call.args, dict(call.kwargs)), _empty))()
            made = [_info(one) if isinstance(one, Tensor) else None for one in flat_outputs(result)]
            kernels = facts(call.op).dtypes
            for place, dtype in (kernels(**call.arguments) if kernels else {}).items():
                if (fake := made[place]) is not None:
                    made[place] = replace(fake, dtype=dtype)
            self._made[call.signature] = tuple(made)
        return self._made[call.signature]


@contextmanager
def _quiet() -> Iterator[None]:
    """Within, torch does not log the traceback of a call that does not run: it is refused in one sentence."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


def _info(tensor: Tensor) -> TensorInfo:
    stride = None if tensor.is_contiguous() else tuple(tensor.stride())
    return TensorInfo(tuple(tensor.shape), tensor.dtype, stride)


def _kind(info: TensorInfo | None) -> Any:
    """Equal for tensors that lie in memory alike: the stride of a dim with one element says nothing."""
    if info is None:
        return None
    stride = info.stride
    if stride is None:
        stride = tuple(prod(info.shape[dim + 1 :]) for dim in range(len(info.shape)))
    steps = [step for size, step in zip(info.shape, stride, strict=True) if size > 1]
    return info.shape, info.dtype, steps if info.numel else None


def _shown(tensors: Sequence[TensorInfo | None]) -> str:
    return ", ".join("nothing" if info is None else _with_stride(info) for info in tensors)


def _with_stride(info: TensorInfo) -> str:
    return str(info) if info.stride is None else f"{info} of strides {list(info.stride)}"


def _empty(leaf: Any) -> Any:
    if not isinstance(leaf, TensorInfo):
        return leaf
    if leaf.stride is None:
        return torch.empty(leaf.shape, dtype=leaf.dtype)
    return torch.empty_strided(leaf.shape, leaf.stride, dtype=leaf.dtype)
