"""What a call costs by the rows chosen for it: that of the operator on local shapes, or of what its form runs.

A form that communicates, or that gives some ranks more to do than others, is priced by running it on tensors without
values: each operator that it calls takes as long as that operator does, collectives run beside them from where they are
begun to where they are waited for, and what is allocated at once is its scratch memory. So the price is that of the
text that runs.
"""

import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from ..calls import Call, facts
from ..expansion import Choice
from ..forms import Group, Held, Request, call_in_group, local_call, operator_by, run_alone
from ..graph import Border, Node, TensorInfo
from ..mesh import Cluster, Collective, Device, Link, Mesh, Span
from ..placements import Row
from ._prices import SLOWDOWN, compute_seconds, kernel_kind, scratch_bytes


@dataclass(frozen=True)
class CallPrice:
    """Seconds of a call on the rank that needs longest, `compute` without waiting for others; bytes that it holds
    beside its inputs and outputs; and the collectives inside of it: kind, bytes and seconds of each."""

    seconds: float
    compute: float
    scratch: int = 0
    collectives: tuple[tuple[Collective, int, float], ...] = ()

    @property
    def sent(self) -> int:
        return sum(size for _, size, _ in self.collectives)

    @cached_property
    def exposed(self) -> Mapping[str, float]:
        """The seconds in which it waits, by kind of collective, in proportion to how long these take."""
        total = sum(seconds for _, _, seconds in self.collectives)
        found: dict[str, float] = {}
        for kind, _, seconds in self.collectives:
            share = seconds / total if total else 0.0
            found[kind] = found.get(kind, 0.0) + (self.seconds - self.compute) * share
        return found


# What is known of operators inside of forms, by device and by call.
_operators: dict[Device, dict[Any, "_Operator"]] = {}
# Prices of forms, by call, what the ranks of a group hold of it, and link.
_known: dict[Any, CallPrice] = {}


class CallPrices:
    """The prices of calls on a mesh."""

    def __init__(self, mesh: Mesh, cluster: Cluster) -> None:
        self.mesh, self.cluster = mesh, cluster

    def of(
        self,
        node: Node,
        call: Call,
        rows: Sequence[Row],
        inputs: Sequence[TensorInfo],
        made: Sequence[TensorInfo | None],
        border: Border | None,
    ) -> CallPrice:
        """The price of a node's call by one row per axis; `inputs` and `made` are its local tensors."""
        choice = Choice(self.mesh, tuple(rows))
        if choice.local is not None and _runs_otherwise(choice.local, call):
            return form_price(call, choice, self.cluster)
        local = call.with_tensors(list(inputs))
        kernel = kernel_kind(node.overload, call.tensors, node.outputs)
        seconds = compute_seconds(self.cluster.device, kernel, local, made, border)
        return CallPrice(seconds, seconds, scratch_bytes(local))


def _runs_otherwise(form: str, call: Call) -> bool:
    operator = operator_by(form, call)
    return operator.varies or operator.in_group is not None


def form_price(call: Call, choice: Choice, cluster: Cluster) -> CallPrice:
    """The price of a call by its form, on that of a few ranks which needs longest: of those that communicate with the
    first, which has the largest pieces, the first and the last, else of all."""
    ranks = choice.group(0) if choice.group_axes else range(choice.mesh.ranks)
    prices = _prices_on([ranks[0], ranks[-1]], call, choice, cluster)
    longest = max(prices, key=lambda price: price.seconds)
    scratch = max(price.scratch for price in prices)
    return CallPrice(longest.seconds, longest.compute, scratch, longest.collectives)


def collectives_inside(
    call: Call, choice: Choice, cluster: Cluster
) -> list[tuple[Collective, int | None, int]]:
    """The collectives that the first rank performs inside of a call: kind, bytes (None if these depend on values) and
    number of ranks of each."""
    if not choice.group_axes:
        return []
    assert choice.local is not None
    ranks, by_values = len(choice.group(0)), operator_by(choice.local, call).by_values
    found = _prices_on([0], call, choice, cluster)[0].collectives
    return [(kind, None if by_values else size, ranks) for kind, size, _ in found]


def _prices_on(ranks: Sequence[int], call: Call, choice: Choice, cluster: Cluster) -> list[CallPrice]:
    """The prices on some ranks, of one group if those of groups communicate. Rows on other axes, and other meshes, that
    leave the ranks of the group the same pieces, cost the same."""
    assert choice.local is not None
    axes = choice.group_axes
    found: list[CallPrice] = []
    group = choice.group(ranks[0]) if axes else []
    held = [choice.held(call, call.shapes, call.outputs, member) for member in group]
    link = cluster.link(choice.mesh, *axes) if axes else None
    for rank in dict.fromkeys(ranks):
        if not axes:
            group = [rank]
            held = [choice.held(call, call.shapes, call.outputs, rank)]
        pieces = tuple((each.inputs, each.outputs) for each in held)
        key = call.signature, choice.local, group.index(rank), pieces, link, cluster.device
        if key not in _known:
            _known[key] = _priced(choice.local, call, group.index(rank), held, link, cluster.device)
        found.append(_known[key])
    return found


def _priced(
    form: str, call: Call, rank: int, held: Sequence[Held], link: Link | Span | None, device: Device
) -> CallPrice:
    """What the rank at a position of a group takes for its part of a call; without a link it is alone."""
    own = held[rank]
    tensors = [
        torch.empty(piece.local, dtype=tensor.dtype, device="meta")
        for piece, tensor in zip(own.inputs, call.tensors, strict=True)
    ]
    local, clock = call.with_tensors(tensors), _Clock(link)
    counting = _Counting(device, clock)
    with torch.no_grad(), counting:
        if link is None:
            result = local_call(form, local, own.inputs, own.outputs)
        else:
            result = run_alone(call_in_group(form, local, Group(rank, held, clock.begin)), clock.arrived)
    made = sum(t.nbytes for t in pytree.tree_leaves(result) if isinstance(t, Tensor))
    scratch = max(0, counting.memory.peak - made)
    return CallPrice(clock.now, clock.compute, scratch, tuple(clock.collectives))


class _Clock:
    """The seconds of calls, and of collectives beside them, one at a time."""

    def __init__(self, link: Link | Span | None) -> None:
        self.link = link
        self.now = self.compute = 0.0
        self.free = 0.0  # when the link is
        self.ends: dict[Request, float] = {}  # of collectives that are under way
        self.collectives: list[tuple[Collective, int, float]] = []

    def call(self, alone: float) -> None:
        """A call and a collective beside it take longer, both by the same share of the time that they would run
        beside each other."""
        beside = SLOWDOWN * min(alone, max(0.0, self.free - self.now))
        self.ends = {
            request: end + SLOWDOWN * min(alone, max(0.0, end - self.now))
            for request, end in self.ends.items()
        }
        self.now += alone + beside
        self.compute += alone + beside
        self.free += beside

    def begin(self, request: Request) -> None:
        assert self.link is not None
        size, itemsize = request.size, request.sent.element_size()
        seconds = float(
            self.link.times(request.kind, np.array(float(size)), request.ranks, itemsize=itemsize)
        )
        self.collectives.append((request.kind, size, seconds))
        self.free = max(self.now, self.free) + seconds
        self.ends[request] = self.free
        request.arriving = request.sent.new_empty(request.arriving_shape)

    def arrived(self, request: Request) -> Tensor:
        tensor: Tensor = request.arriving
        request.arriving = None
        self.now = max(self.now, self.ends.pop(request))
        return tensor


@dataclass(frozen=True)
class _Operator:
    """Seconds and scratch memory of a call inside of a form; sizes, strides and dtype of each tensor that it makes,
    where those alone are its result."""

    seconds: float
    scratch: int
    makes: tuple[tuple[tuple[int, ...], tuple[int, ...], torch.dtype], ...] | None
    several: bool


class _Counting(TorchDispatchMode):
    """Counts seconds and bytes of the operators that a form calls on tensors without values. What an operator makes is
    worked out once for each call of it."""

    def __init__(self, device: Device, clock: _Clock) -> None:
        super().__init__()
        self.device, self.clock = device, clock
        self.memory = _Memory()
        self.known = _operators.setdefault(device, {})

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if facts(func).view:
            result = func(*args, **(kwargs or {}))
            for tensor in _tensors(result):
                self.memory.add_view(tensor)
            return result
        key = func, _key(args), _key(kwargs or {})
        known = self.known.get(key)
        if known is None or known.makes is None:
            result = func(*args, **(kwargs or {}))
            if known is None:
                known = self.known[key] = self._operator(Call(func, args, kwargs or {}), result)
        else:
            made = tuple(
                torch.empty_strided(size, stride, dtype=dtype, device="meta")
                for size, stride, dtype in known.makes
            )
            result = made if known.several else made[0]
        results = _tensors(result)
        if not results:
            return result
        self.clock.call(known.seconds)
        for tensor in results:
            self.memory.add(tensor)
        self.memory.peak = max(self.memory.peak, self.memory.now + known.scratch)
        return result

    def _operator(self, call: Call, result: Any) -> _Operator:
        assert isinstance(call.op, OpOverload)
        results, several = _tensors(result), isinstance(result, tuple)
        alone = several or isinstance(result, Tensor)
        makes = None
        if alone and not call.op._schema.is_mutable and (not several or len(results) == len(result)):
            makes = tuple((tuple(t.shape), t.stride(), t.dtype) for t in results)
        if not results or facts(call.op).uninitialised:
            return _Operator(0.0, 0, makes, several)
        call = call.with_tensors(list(map(_info, call.tensors)))
        made = [_info(leaf) if isinstance(leaf, Tensor) else None for leaf in pytree.tree_leaves(result)]
        kind = kernel_kind(call.op, call.tensors, made)
        seconds = compute_seconds(self.device, kind, call, made)
        return _Operator(seconds, scratch_bytes(call), makes, several)


def _tensors(result: Any) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result]
    return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]


@dataclass
class _Memory:
    """Bytes of what was made and is still referred to; several tensors may be views of one piece of memory."""

    now: int = 0
    peak: int = 0
    users: Counter[int] = field(default_factory=Counter)

    def add(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if not self.users[key]:
            self.now += size
            self.peak = max(self.peak, self.now)
        self.users[key] += 1
        weakref.finalize(tensor, self._drop, key, size)

    def add_view(self, tensor: Tensor) -> None:
        if self.users[tensor.untyped_storage()._cdata]:
            self.add(tensor)

    def _drop(self, key: int, size: int) -> None:
        self.users[key] -= 1
        if not self.users[key]:
            self.now -= size


def _key(argument: Any) -> Any:
    """Equal for arguments that differ in values of tensors alone."""
    if isinstance(argument, Tensor):
        return argument.shape, argument.stride(), argument.dtype
    if isinstance(argument, list | tuple):
        return tuple(map(_key, argument))
    if isinstance(argument, dict):
        return tuple((name, _key(value)) for name, value in argument.items())
    return type(argument), argument


def _info(tensor: Tensor) -> TensorInfo:
    contiguous = tensor.is_contiguous()
    return TensorInfo(tuple(tensor.shape), tensor.dtype, None if contiguous else tuple(tensor.stride()))
