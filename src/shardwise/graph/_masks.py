"""Attention in the exported graph, simplified: constant masks are recognised, repeated heads are shared.

Models that are being traced build masks which they would omit in eager mode: a triangle built from positions,
a mask that hides nothing. Such a mask depends on no input, so its values can be computed and inspected; attention
that is causal is then marked as causal, which halves its work and lets a device use its fused kernel. Only a few rows
of the mask are computed at a time. Where key and value heads were repeated to match the query's, the repetition is
removed too.
"""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, fx

from ..calls import Call, facts

aten = torch.ops.aten

# Elements of a mask computed at once.
_AT_ONCE = 1 << 24

Shape = Literal["causal", "full", "other"]


def simplify_attention(module: fx.GraphModule, stand_in: Callable[..., Tensor]) -> None:
    """Replace every call of `scaled_dot_product_attention` by a call of `stand_in`, with the simplest equivalent
    arguments."""
    for inner in module.modules():
        if isinstance(inner, fx.GraphModule):
            shapes: dict[fx.Node, Shape] = {}
            for node in inner.graph.find_nodes(
                op="call_function", target=aten.scaled_dot_product_attention.default
            ):
                _simplify(node, shapes)
                node.target = stand_in
                _let_views_copy(node)
            inner.recompile()
    module.graph.eliminate_dead_code(lambda node: node.is_impure() or not _is_operator(node))
    module.recompile()


def _is_operator(node: fx.Node) -> bool:
    """Other functions in an exported graph are there for their side effects: they begin and end regions."""
    return isinstance(node.target, torch._ops.OpOverload)


def _let_views_copy(node: fx.Node) -> None:
    """Views of a result were traced with its strides, which those of the stand-in need not be: `contiguous` left no
    call where they were already."""
    for user in node.users:
        if _is_operator(user) and facts(user.target).view:
            if user.target is aten.view.default:
                user.target = aten.reshape.default
            _let_views_copy(user)


def _simplify(node: fx.Node, shapes: dict[fx.Node, Shape]) -> None:
    given = dict(Call(node.target, node.args, node.kwargs).arguments)
    mask = given["attn_mask"]
    if mask is not None and not given["is_causal"]:
        if mask not in shapes:
            shapes[mask] = shape_of_mask(mask)
        if shapes[mask] != "other":
            given["attn_mask"], given["is_causal"] = None, shapes[mask] == "causal"
    key, value = _unrepeated(given["key"]), _unrepeated(given["value"])
    if key is not None and value is not None and not given["enable_gqa"]:
        given["key"], given["value"], given["enable_gqa"] = key, value, True
    node.args, node.kwargs = (), given


def _unrepeated(node: fx.Node) -> fx.Node | None:
    """The heads before `x[:, :, None].expand(..., n, ...).reshape(...)`, if that is what made the node."""
    if node.target not in (aten.reshape.default, aten.view.default, aten._unsafe_view.default):
        return None
    expand = node.args[0]
    while expand.target in (aten.clone.default, aten.contiguous.default):
        expand = expand.args[0]
    if expand.target is not aten.expand.default:
        return None
    single = expand.args[0]
    if single.target is not aten.unsqueeze.default or single.args[1] != 2:
        return None
    batch, heads, times, positions, size = expand.meta["val"].shape
    if tuple(node.meta["val"].shape) != (batch, heads * times, positions, size):
        return None
    heads_before = single.args[0]
    return heads_before if tuple(heads_before.meta["val"].shape) == (batch, heads, positions, size) else None


def shape_of_mask(mask: fx.Node) -> Shape:
    """Whether a boolean mask that depends on no input hides exactly the later positions, or nothing."""
    tensor = mask.meta["val"]
    if tensor.dtype != torch.bool or tensor.dim() < 2 or not _depends_on_nothing(mask):
        return "other"
    rows, columns = tensor.shape[-2:]
    step = max(1, _AT_ONCE * rows // max(1, tensor.numel()))
    causal = full = True
    whole: dict[fx.Node, Any] = {}
    for start in range(0, rows, step):
        band = slice(start, min(start + step, rows))
        values = _rows(mask, band, rows, whole)
        if values is None:
            return "other"
        triangle = torch.arange(columns) <= torch.arange(rows)[band, None]
        causal = causal and bool((values == triangle).all())
        full = full and bool(values.all())
        if not (causal or full):
            return "other"
    return "full" if full else "causal"


def _depends_on_nothing(node: fx.Node) -> bool:
    seen: set[fx.Node] = set()
    waiting = [node]
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            return False
        if facts(node.target).random:
            return False
        waiting += node.all_input_nodes
    return True


def _rows(node: fx.Node, band: slice, rows: int, whole: dict[fx.Node, Any]) -> Tensor | None:
    """The values of a band of rows, without computing the whole mask; None where that is not possible."""
    tensor = node.meta["val"]
    if tensor.dim() < 2 or tensor.shape[-2] == 1 or tensor.numel() <= _AT_ONCE:
        values = _whole(node, whole)
        if values is None or values.dim() < 2 or values.shape[-2] == 1:
            return values
        return values[..., band, :]
    op = node.target
    assert isinstance(op, torch._ops.OpOverload)
    # A band of rows of the result comes from the same band of the inputs.
    row_by_row = facts(op).elementwise or op is aten.expand.default
    if tensor.shape[-2] != rows or not row_by_row:
        return None
    parts = {}
    for source in node.all_input_nodes:
        parts[source] = _rows(source, band, rows, whole)
        if parts[source] is None:
            return None
    args = list(node.args)
    if op is aten.expand.default:
        sizes = list(node.args[1])
        sizes[-2] = band.stop - band.start
        args[1] = sizes
    args, kwargs = fx.map_arg((args, dict(node.kwargs)), parts.__getitem__)
    return op(*args, **kwargs)


def _whole(node: fx.Node, whole: dict[fx.Node, Any]) -> Any:
    if node not in whole:
        value = node.meta["val"]
        if isinstance(value, Tensor) and value.numel() > _AT_ONCE:
            return None
        for source in node.all_input_nodes:
            if _whole(source, whole) is None:
                return None
        args, kwargs = fx.map_arg((list(node.args), dict(node.kwargs)), whole.__getitem__)
        whole[node] = node.target(*args, **kwargs)
    return whole[node]
