"""Boundaries between the parts of a program: where it may be cut into stages.

Every value that a later part uses passes a mark at each boundary in between, an operator that does nothing, and so does
its gradient on the way back. So the captured graph of forward and backward falls apart along the marks, whatever
autograd does between them (`_segments`). A part is a block (`layers.3`) or what lies between blocks.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from operator import getitem
from typing import Any

import torch
from torch import Tensor, fx, nn

from ..calls import facts
from ._blocks import block_of, module_path

aten = torch.ops.aten


def _passed(value: Tensor, number: int, place: int) -> Tensor:
    return value.clone()


def _fake(value: Tensor, number: int, place: int) -> Tensor:
    return torch.empty_like(value)


_SCHEMA = "(Tensor value, int number, int place) -> Tensor"
boundary = torch.library.custom_op("shardwise::boundary", _passed, mutates_args=(), schema=_SCHEMA)
boundary_backward = torch.library.custom_op(
    "shardwise::boundary_backward", _passed, mutates_args=(), schema=_SCHEMA
)
boundary.register_fake(_fake)
boundary_backward.register_fake(_fake)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.number, ctx.place = inputs[1:]


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return boundary_backward(grad, ctx.number, ctx.place), None, None


boundary.register_autograd(_differentiate, setup_context=_save)


def is_mark(op: str) -> bool:
    return op == "shardwise.boundary.default"


def is_mark_of_gradient(op: str) -> bool:
    return op == "shardwise.boundary_backward.default"


def is_sum(op: str) -> bool:
    """Whether an operator is that by which autograd adds up gradients."""
    return op == "aten.add.Tensor"


def mark_boundaries(module: fx.GraphModule, losses: Sequence[fx.Node]) -> None:
    """Put marks into an exported graph, at boundaries that are numbered from 1. `losses` are the results that the last
    part has to give; other results stay where they are computed."""
    owned = set(_owned(module))
    calls = [node for node in module.graph.nodes if node in owned and not _gives(node)]
    place = {node: at for at, node in enumerate(module.graph.nodes)}
    for number, first in enumerate(_first_of_parts(calls), 1):
        crossing = [
            node
            for node in module.graph.nodes
            if place.get(node, 0) < place[first]
            and node in owned
            and isinstance(node.meta.get("val"), Tensor)
            and any(_crosses(user, node, place[first], place, losses) for user in node.users)
        ]
        for at, node in enumerate(crossing):
            with module.graph.inserting_before(first):
                mark = module.graph.call_function(torch.ops.shardwise.boundary.default, (node, number, at))
            mark.meta["val"] = node.meta["val"]
            node.replace_all_uses_with(
                mark, partial(_crosses, value=node, first=place[first], place=place, losses=losses)
            )
            place[mark] = place[first]  # behind the boundary
            owned.add(mark)
            losses = [mark if loss is node else loss for loss in losses]
    module.recompile()


def _owned(module: fx.GraphModule) -> Iterator[fx.Node]:
    """What one part computes: all that follows from parameters, written buffers, random numbers or arguments with
    gradients. Everything else follows from arguments, and every part that needs it computes it."""
    owned: set[fx.Node] = set()
    written = {
        node.args[0]
        for node in module.graph.nodes
        if isinstance(node.target, torch._ops.OpOverload)
        and any(argument.is_write for argument in node.target._schema.arguments)
    }
    for node in module.graph.nodes:
        if node.op == "output":
            continue
        if node.op == "get_attr":
            tensor = _attribute(module, node.target)
            own = isinstance(tensor, nn.Parameter) or node in written
        elif node.op == "placeholder":
            value = node.meta.get("val")
            own = isinstance(value, Tensor) and value.requires_grad
        else:
            own = any(given in owned for given in node.all_input_nodes)
            own = own or (node.op == "call_function" and facts(node.target).random)
        if own:
            owned.add(node)
            if node.op == "call_function":
                yield node


def _attribute(module: nn.Module, target: str) -> Any:
    for name in target.split("."):
        module = getattr(module, name)
    return module


def _gives(node: fx.Node) -> bool:
    """Whether a call only hands a result to the caller, or writes one back."""
    handing = node.target in (aten.detach.default, aten.clone.default, aten.copy_.default)
    return handing and all(user.op == "output" for user in node.users)


def _crosses(
    user: fx.Node, value: fx.Node, first: int, place: dict[fx.Node, int], losses: Sequence[fx.Node]
) -> bool:
    """Whether a value is used behind a boundary, which is before node number `first`."""
    if user.op == "output":
        return value in losses
    if user.target is getitem or _gives(user):
        return False
    return place.get(user, -1) >= first


def _first_of_parts(calls: Sequence[fx.Node]) -> list[fx.Node]:
    """The first call of every part but the first. What has no parameters is of the part before it."""
    units = _units([module_path(node) for node in calls])
    pairs = list(zip(calls, units, strict=True))
    own = {unit for node, unit in pairs if any(given.op == "get_attr" for given in node.all_input_nodes)}
    pairs = [(node, unit) for node, unit in pairs if unit in own]
    return [node for (_, before), (node, unit) in pairwise(pairs) if unit != before]


def _units(paths: Sequence[str]) -> list[str]:
    """The part that each call is in, from the paths of their modules: the outermost numbered module, or what is
    directly below the module that all are in."""
    parts = [path.split(".") for path in paths if path]
    common = 0
    while parts and all(len(p) > common and p[common] == parts[0][common] for p in parts):
        common += 1
    return [block_of(path) or ".".join(path.split(".")[: common + 1][common:]) for path in paths]
