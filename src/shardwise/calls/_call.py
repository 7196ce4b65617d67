"""One call of an operator, taken apart: the tensors it is given, and everything else as it was.

Discovery runs the same call thousands of times with other tensors in its places, so a `Call` is a template:
`call.run(tensors)` puts tensors where the example's were. Tensors count in the order in which they appear,
positional arguments first, inside lists one by one; `out=` tensors are not inputs and are made anew.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ._arguments import flat_outputs, named_arguments
from ._facts import facts
from ._names import op_name, operator


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
        quick, fits = self._quick_runner(), facts(self.op).guard
        if fits is None:
            return quick

        def guarded(tensors: Sequence[Tensor]) -> Any:
            if not fits(tensors, lambda: named_arguments(self.op, *self.arguments(tensors))):
                raise ValueError(f"{self.name} does not take shapes {[tuple(t.shape) for t in tensors]}")
            return quick(tensors)

        return guarded

    @property
    def guarded_op(self) -> Callable[..., Any]:
        """The operator, which refuses calls on which its kernel would end the process."""
        return self.op if facts(self.op).guard is None else _Guarded(self.op)

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
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return plain.as_strided((plain.numel(),), (1,)).view(torch.uint8)  # one element may have any stride


@dataclass(frozen=True)
class _Guarded:
    op: Callable[..., Any]

    @property
    def _schema(self) -> Any:
        return getattr(self.op, "_schema", None)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        call = Call.of(self.op, args, kwargs)
        return call.runner(call.tensors)


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
