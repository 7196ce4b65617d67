"""One call of an operator, taken apart: the tensors it is given, and everything else as it was.

Discovery runs the same call thousands of times with other tensors in its places, so a `Call` is a template:
`call.run(tensors)` puts tensors where the example's were. Tensors count in the order in which they appear,
positional arguments first, inside lists one by one; `out=` tensors are not inputs and are made anew.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor.placement_types import Placement, Replicate
from torch.utils import _pytree as pytree

from ..placements import Row
from ..rules import Recorder, named_arguments
from ._ops import op_name, operator

# Overloads that only move metadata or wrap constants: they do not make a function composite.
_BOOKKEEPING = {"aten.detach.default", "aten.lift_fresh.default", "aten.alias.default"}


@dataclass(frozen=True, eq=False)
class Call:
    """An operator with the leaves of its arguments; `slots` are the positions of the input tensors."""

    op: Callable[..., Any]
    leaves: tuple[Any, ...]
    tree: Any
    slots: tuple[int, ...]
    outs: tuple[int, ...]

    @classmethod
    def of(cls, op: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> "Call":
        op = operator(op)
        plain = pytree.tree_map(_plain, (list(args), kwargs))
        leaves, tree = pytree.tree_flatten(plain)
        paths = [path for path, _ in pytree.tree_flatten_with_path(plain)[0]]
        given_out = _out_names(op)
        outs = tuple(
            i
            for i, (path, leaf) in enumerate(zip(paths, leaves, strict=True))
            if isinstance(leaf, Tensor) and path[0].idx == 1 and path[1].key in given_out
        )
        slots = tuple(i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and i not in outs)
        return cls(op, tuple(leaves), tree, slots, outs)

    @property
    def name(self) -> str:
        return op_name(self.op)

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        """The example's input tensors."""
        return tuple(self.leaves[i] for i in self.slots)

    @cached_property
    def lists(self) -> tuple[tuple[int, ...], ...]:
        """Inputs that stand together in one list argument, as groups of input positions."""
        plain = pytree.tree_unflatten(list(self.leaves), self.tree)
        groups: dict[Any, list[int]] = {}
        position = {leaf: i for i, leaf in enumerate(self.slots)}
        for leaf, (path, _) in enumerate(pytree.tree_flatten_with_path(plain)[0]):
            if leaf in position and len(path) > 2:
                groups.setdefault(path[:2], []).append(position[leaf])
        return tuple(tuple(group) for group in groups.values())

    def arguments(self, tensors: Sequence[Tensor]) -> tuple[list[Any], dict[str, Any]]:
        leaves = list(self.leaves)
        for slot, tensor in zip(self.slots, tensors, strict=True):
            leaves[slot] = tensor
        for out in self.outs:
            leaves[out] = leaves[out].new_empty(0)
        return pytree.tree_unflatten(leaves, self.tree)

    @cached_property
    def runner(self) -> Callable[[Sequence[Tensor]], Any]:
        """The quickest way to run this call: without pytree where tensors stand alone or fill a list."""
        quick, guard = self._quick_runner(), self._guard
        if guard is None:
            return quick

        def guarded(tensors: Sequence[Tensor]) -> Any:
            if not guard(self, tensors):
                raise ValueError(f"{self.name} does not take shapes {[tuple(t.shape) for t in tensors]}")
            return quick(tensors)

        return guarded

    @cached_property
    def _guard(self) -> "Guard | None":
        return next((guard for pattern, guard in GUARDS if fnmatch(self.name, pattern)), None)

    @property
    def guarded_op(self) -> Callable[..., Any]:
        """The operator, which refuses calls on which its kernel would end the process."""
        return self.op if self._guard is None else _Guarded(self.op)

    def _quick_runner(self) -> Callable[[Sequence[Tensor]], Any]:
        flat_args, flat_kwargs = pytree.tree_unflatten(list(self.leaves), self.tree)
        # Where the tensors go: (position, None) for one, (position, count) for a list of them.
        places = [(i, _tensor_count(arg)) for i, arg in enumerate(flat_args) if _tensor_count(arg) != 0]
        op = self.op
        if sum(1 if count is None else count for _, count in places) == len(self.slots) and not self.outs:
            if places == [(i, None) for i in range(len(places))]:
                rest = flat_args[len(places) :]
                return lambda tensors: op(*tensors, *rest, **flat_kwargs)

            def run_flat(tensors: Sequence[Tensor]) -> Any:
                args, given = list(flat_args), iter(tensors)
                for position, count in places:
                    args[position] = next(given) if count is None else list(itertools.islice(given, count))
                return op(*args, **flat_kwargs)

            return run_flat

        def run(tensors: Sequence[Tensor]) -> Any:
            args, kwargs = self.arguments(tensors)
            return op(*args, **kwargs)

        return run

    def run(self, tensors: Sequence[Tensor]) -> list[Any]:
        """The outputs, flat: tensors, None for a missing one, other values as they are."""
        return flat_outputs(self.runner(tensors))

    def with_leaves(self, changes: dict[int, Any]) -> "Call":
        leaves = tuple(changes.get(i, leaf) for i, leaf in enumerate(self.leaves))
        return replace(self, leaves=leaves)

    def named_leaves(self) -> Iterator[tuple[int, str, Any]]:
        """(leaf, argument name, value) for every leaf; names from the schema, empty where it has none."""
        plain = pytree.tree_unflatten(list(self.leaves), self.tree)
        schema = getattr(self.op, "_schema", None)
        names = [a.name for a in schema.arguments if not a.kwarg_only] if schema else []
        for leaf, (path, value) in enumerate(pytree.tree_flatten_with_path(plain)[0]):
            if path[0].idx == 1:
                yield leaf, path[1].key, value
            else:
                place = path[1].idx
                yield leaf, names[place] if place < len(names) else "", value

    @cached_property
    def mutated(self) -> tuple[int, ...]:
        """Inputs that the call writes to, found by running it on copies. Some kernels write without saying so
        (the running statistics of batch norm), so values are compared too."""
        copies = [t.clone() for t in self.tensors]
        versions = [t._version for t in copies]
        self.runner(copies)
        return tuple(
            i
            for i, (copy, tensor) in enumerate(zip(copies, self.tensors, strict=True))
            if copy._version != versions[i] or not torch.equal(_bytes(copy), _bytes(tensor))
        )


def _bytes(tensor: Tensor) -> Tensor:
    """What a tensor is made of: NaN equals itself there, and every dtype can be compared."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)


@dataclass(frozen=True)
class _Guarded:
    op: Callable[..., Any]

    @property
    def _schema(self) -> Any:
        return getattr(self.op, "_schema", None)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        call = Call.of(self.op, args, kwargs)
        return call.runner(call.tensors)


def _attention_shapes_fit(_: Call, tensors: Sequence[Tensor]) -> bool:
    query, key, value = (t.shape for t in tensors[:3])
    return (
        all(t.numel() for t in tensors)
        and query[0] == key[0] == value[0]
        and query[1] % key[1] == 0
        and query[3] == key[3]
        and key[:3] == value[:3]
    )


def _channels_fit(call: Call, tensors: Sequence[Tensor]) -> bool:
    """Batch norm: one value per channel in every vector, and all other tensors of one shape. Where it does not train,
    the forward leaves the statistics that it was not asked for empty."""
    given = named_arguments(call.op, *call.arguments(tensors))
    trains = given.get("train", given.get("training", True))
    shape = tensors[0].shape
    vectors, others = [t for t in tensors if t.ndim == 1], [t for t in tensors if t.ndim != 1]
    sizes = {len(v) for v in vectors} - (set() if trains else {0})
    return len(shape) > 1 and sizes <= {shape[1]} and all(o.shape == shape for o in others)


def _batches_fit(_: Call, tensors: Sequence[Tensor]) -> bool:
    """Pooling in two dims: batch and channels of the gradient are those of the input."""
    return tensors[0].ndim > 2 and tensors[0].shape[:-2] == tensors[1].shape[:-2]


def _statistics_fit(_: Call, tensors: Sequence[Tensor]) -> bool:
    """Layer norm backward: a mean for every normalised part of the input, a weight for every element of one."""
    grad, given, mean, rstd, *weights = tensors
    return (
        grad.shape == given.shape
        and mean.shape == rstd.shape
        and mean.ndim == given.ndim
        and all(m in (1, size) for m, size in zip(mean.shape, given.shape, strict=True))
        and all(weight.numel() * mean.numel() == given.numel() for weight in weights)
    )


def _windows_fit(call: Call, tensors: Sequence[Tensor]) -> bool:
    """Convolution backward: a gradient of the shape that the forward has."""
    args, kwargs = call.arguments(tensors)
    given = named_arguments(call.op, args, kwargs)
    grad, image, weight = (given[name].to("meta") for name in ("grad_output", "input", "weight"))
    how = ("stride", "padding", "dilation", "transposed", "output_padding", "groups")
    try:
        output = torch.ops.aten.convolution.default(image, weight, None, *(given[name] for name in how))
    except RuntimeError:
        return False
    return grad.numel() > 0 and output.shape == grad.shape


Guard = Callable[[Call, Sequence[Tensor]], bool]

# Kernels that trust their caller: on shapes that do not fit they divide by zero or write where they must not.
GUARDS: tuple[tuple[str, Guard], ...] = (
    ("aten._scaled_dot_product_flash_attention_for_cpu.*", _attention_shapes_fit),
    ("aten.*native_batch_norm*", _channels_fit),
    ("aten.convolution_backward.*", _windows_fit),
    ("aten.native_layer_norm_backward.*", _statistics_fit),
    ("aten._adaptive_avg_pool2d_backward.*", _batches_fit),
)


def flat_outputs(result: Any) -> list[Any]:
    if type(result) is Tensor:
        return [result]
    if isinstance(result, tuple | list):
        return [leaf for part in result for leaf in flat_outputs(part)]
    return [result]


def _tensor_count(argument: Any) -> int | None:
    """None for a tensor, the length of a list of tensors, 0 for all else."""
    if isinstance(argument, Tensor):
        return None
    whole = isinstance(argument, list) and all(isinstance(item, Tensor) for item in argument)
    return len(argument) if whole else 0


def _plain(leaf: Any) -> Any:
    return list(leaf) if isinstance(leaf, torch.Size) else leaf


def _out_names(op: Callable[..., Any]) -> set[str]:
    schema = getattr(op, "_schema", None)
    if schema is None:
        return {"out"}
    return {a.name for a in schema.arguments if a.is_out}


@dataclass(frozen=True)
class Dispatched:
    """What a call becomes at dispatch.

    `judged` is the call that experiments run: the one overload the function is a front of, else the function
    itself. `inputs` and `outputs` say which of the judged call's tensors are the user's, in the user's order.
    """

    overloads: tuple[str, ...]
    judged: Call
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    def judged_inputs(self, placements: Sequence[Placement]) -> tuple[Placement, ...]:
        """Placements of the judged call's inputs, from those of the user's."""
        judged: list[Placement] = [Replicate()] * len(placements)
        for position, placement in zip(self.inputs, placements, strict=True):
            judged[position] = placement
        return tuple(judged)

    def user_row(self, row: Row) -> Row:
        """A row about the judged call, told about the user's."""
        return replace(
            row,
            inputs=tuple(row.inputs[i] for i in self.inputs),
            outputs=tuple(row.outputs[i] for i in self.outputs),
        )


def dispatched(call: Call) -> Dispatched:
    """Map a function to the ATen overloads that it reaches for these arguments."""
    inputs = [t.clone() for t in call.tensors]
    if isinstance(call.op, torch._ops.OpOverload):
        count = len(call.run(inputs))
        return Dispatched((call.name,), call, tuple(range(len(inputs))), tuple(range(count)))
    recorder = Recorder()
    with torch.no_grad(), recorder:
        outputs = flat_outputs(call.runner(inputs))
    calls = [
        c
        for c in _used(recorder.calls, outputs)
        if str(c[0]) not in _BOOKKEEPING and not _only_aliases(*c[1:])
    ]
    overloads = tuple(dict.fromkeys(str(c[0]) for c in calls))
    whole = Dispatched(overloads, _registered(call), tuple(range(len(inputs))), tuple(range(len(outputs))))
    if len(calls) != 1:
        return whole
    func, args, kwargs, result = calls[0]
    inner = Call.of(func, args, kwargs)
    sources = [_position(t, inputs) for t in inner.tensors]
    results = flat_outputs(result)
    returned = [_position(o, results) for o in outputs]
    if sorted(s for s in sources if s is not None) != list(range(len(inputs))) or None in returned:
        return whole
    example = inner.with_leaves(
        {slot: call.tensors[s] for slot, s in zip(inner.slots, sources, strict=True) if s is not None}
    )
    order = tuple(sources.index(i) for i in range(len(inputs)))
    return Dispatched(overloads, example, order, tuple(r for r in returned if r is not None))


def reaches_dispatch(op: Callable[..., Any]) -> bool:
    """False for functions, and for overloads that are made of others before dispatch."""
    return isinstance(op, torch._ops.OpOverload) and not op.has_kernel_for_dispatch_key(
        torch._C.DispatchKey.CompositeImplicitAutograd
    )


def recorded(call: Call) -> Iterator[tuple[torch._ops.OpOverload, tuple[Any, ...], dict[str, Any]]]:
    """Every overload that the call reaches, with the arguments it reaches it with."""
    inputs = [t.clone() for t in call.tensors]
    if isinstance(call.op, torch._ops.OpOverload):
        args, kwargs = call.arguments(inputs)
        yield call.op, tuple(args), kwargs
        return
    recorder = Recorder()
    with torch.no_grad(), recorder:
        call.runner(inputs)
    for func, inner, kwargs, _ in recorder.calls:
        if str(func) not in _BOOKKEEPING:
            yield func, inner, kwargs


def _position(item: Any, items: Sequence[Any]) -> int | None:
    return next((i for i, other in enumerate(items) if other is item or _same_memory(other, item)), None)


def _registered(call: Call) -> Call:
    """A composite function of torch as the ATen overload of its name, whose schema names the arguments."""
    packet = (
        getattr(torch.ops.aten, call.name.rpartition(".")[2], None)
        if call.name.startswith("torch.")
        else None
    )
    if packet is None or call.outs:
        return call
    args, kwargs = call.arguments(call.tensors)
    try:
        overload = torch._C._jit_resolve_packet(packet._qualified_op_name, *args, **kwargs)
    except RuntimeError:
        return call
    return Call.of(getattr(packet, overload), args, kwargs)


def _used(calls: list[Any], outputs: list[Any]) -> list[Any]:
    """The calls on which the outputs depend, and those that write to a tensor."""
    needed = {id(output) for output in outputs}
    kept = []
    for call in reversed(calls):
        func, args, kwargs, result = call
        if func._schema.is_mutable or any(id(r) in needed for r in flat_outputs(result)):
            needed |= {id(leaf) for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
            kept.append(call)
    return kept[::-1]


def _only_aliases(args: Any, kwargs: Any, result: Any) -> bool:
    """True for a call that gave its input back under another name: an expand or view to the shape it had."""
    return any(
        _same_memory(leaf, result) for leaf in pytree.tree_leaves((args, kwargs)) if leaf is not result
    )


def _same_memory(first: Any, second: Any) -> bool:
    """True for a tensor and its alias: factories return a detached alias of what was dispatched."""
    if not (isinstance(first, Tensor) and isinstance(second, Tensor)) or not first.numel():
        return False
    return (
        first.data_ptr() == second.data_ptr()
        and first.shape == second.shape
        and first.stride() == second.stride()
        and first.dtype == second.dtype
    )
