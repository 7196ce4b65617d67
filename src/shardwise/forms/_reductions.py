"""Communicating forms of reductions along a sharded dim: one small exchange instead of the whole tensor.

What a rank knows of its piece (the largest element and the sum of exponentials, a place and its value, a total) is
gathered from all ranks; each then has what it needs for its own piece.
"""

import torch
from torch import Tensor

from ..calls import Call
from ._group import Group, Run
from ._operator import Operator


def _powers(call: Call, group: Group) -> Run:
    """The piece in a dtype with room for sums; its exponentials, after its largest elements were subtracted; these, and
    the largest elements and sums of exponentials of the whole, from those of all pieces, gathered together."""
    x, dim = call["self"], call["dim"]
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    largest = _largest(wide, dim)
    powers = (wide - largest.where(largest != -torch.inf, 0.0)).exp()
    found = torch.stack([largest, powers.sum(dim, keepdim=True)])
    tops, sums = (yield group.all_gather(found.unsqueeze(0))).unbind(1)
    top = tops.amax(0)
    return wide, powers, largest, top, (sums * (tops - top).exp()).sum(0)


def _result_dtype(call: Call) -> torch.dtype:
    dtype: torch.dtype = call["self"].dtype
    return torch.float32 if call["half_to_float"] else dtype


def _softmax(call: Call, group: Group) -> Run:
    _, powers, largest, top, total = yield from _powers(call, group)
    return (powers * ((largest - top).exp() / total)).to(_result_dtype(call))


def _log_softmax(call: Call, group: Group) -> Run:
    wide, *_, top, total = yield from _powers(call, group)
    return (wide - top - total.log()).to(_result_dtype(call))


def _softmax_backward(call: Call, group: Group) -> Run:
    grad, output, dim = call["grad_output"], call["output"], call["dim"]
    wide = torch.promote_types(grad.dtype, torch.float32)
    weighted = grad.to(wide) * output.to(wide)
    total = yield group.all_reduce(weighted.sum(dim, keepdim=True))
    return (weighted - output * total).to(call["input_dtype"])


def _log_softmax_backward(call: Call, group: Group) -> Run:
    grad, output, dim = call["grad_output"], call["output"], call["dim"]
    wide = torch.promote_types(grad.dtype, torch.float32)
    total = yield group.all_reduce(grad.to(wide).sum(dim, keepdim=True))
    return (grad - output.to(wide).exp() * total).to(call["input_dtype"])


def _logsumexp(call: Call, group: Group) -> Run:
    parts = yield group.all_gather(call().unsqueeze(0))
    return parts.logsumexp(0)


def _largest(x: Tensor, dim: int) -> Tensor:
    """The largest element along a dim, which may be empty."""
    if x.shape[dim]:
        return x.amax(dim, keepdim=True)
    shape = list(x.shape)
    shape[dim] = 1
    return x.new_full(shape, -torch.inf)


def _best(call: Call, group: Group, largest: bool) -> Run:
    """Values and places along a dim: the best of each piece are gathered, of equal ones the first wins."""
    x, keepdim = call["self"], call["keepdim"]
    dim = call["dim"] % max(x.dim(), 1)
    if x.shape[dim]:
        value, place = (torch.max if largest else torch.min)(x, dim, keepdim=True)
    else:
        shape = [*x.shape[:dim], 1, *x.shape[dim + 1 :]]
        value, place = x.new_full(shape, _worst(x.dtype, largest)), x.new_zeros(shape, dtype=torch.int64)
    values = yield group.all_gather(value, dim)
    places = yield group.all_gather(place + group.own["self"].offset[dim], dim)
    which = (values.argmax if largest else values.argmin)(dim, keepdim=True)
    found = values.gather(dim, which), places.gather(dim, which)
    return found if keepdim else tuple(t.squeeze(dim) for t in found)


def _worst(dtype: torch.dtype, largest: bool) -> float:
    if dtype.is_floating_point:
        return -torch.inf if largest else torch.inf
    info = torch.iinfo(dtype)
    return info.min if largest else info.max


def _max(call: Call, group: Group) -> Run:
    return (yield from _best(call, group, largest=True))


def _min(call: Call, group: Group) -> Run:
    return (yield from _best(call, group, largest=False))


def _argmax(call: Call, group: Group) -> Run:
    return (yield from _best(call, group, largest=True))[1]


def _argmin(call: Call, group: Group) -> Run:
    return (yield from _best(call, group, largest=False))[1]


def _topk(call: Call, group: Group) -> Run:
    """The best of the best of each piece."""
    dim, count = call["dim"] % max(call["self"].dim(), 1), call["k"]
    counts = [min(count, size) for size in group.sizes("self", dim)]
    value, place = call(k=counts[group.rank])
    values = group.all_gather(value, dim, counts)
    places = group.all_gather(place + group.own["self"].offset[dim], dim, counts)
    found, which = call(self=(yield values))
    return found, (yield places).gather(dim, which)


def _cumsum(call: Call, group: Group) -> Run:
    dim, own = call["dim"], call()
    total = call["self"].sum(dim, keepdim=True, dtype=own.dtype)
    totals = yield group.all_gather(total, dim)
    return own + totals.narrow(dim, 0, group.rank).sum(dim, keepdim=True, dtype=own.dtype)


PARTS: dict[str, Operator] = {
    "aten._softmax": Operator(in_group=_softmax),
    "aten._softmax_backward_data": Operator(in_group=_softmax_backward),
    "aten._log_softmax": Operator(in_group=_log_softmax),
    "aten._log_softmax_backward_data": Operator(in_group=_log_softmax_backward),
    "aten.logsumexp": Operator(in_group=_logsumexp),
    "aten.max": Operator(in_group=_max),
    "aten.min": Operator(in_group=_min),
    "aten.argmax": Operator(in_group=_argmax),
    "aten.argmin": Operator(in_group=_argmin),
    "aten.topk": Operator(in_group=_topk),
    "aten.cumsum": Operator(in_group=_cumsum),
}
