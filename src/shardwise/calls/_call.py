"""`Call`: an operator with its arguments.

Its tensors may be real ones or stand-ins with a shape and a dtype: meta tensors, or those of a captured graph. Tensors
count in the order of the operator's parameters, lists one by one; a function without a schema has them as given.
`out=` tensors are not inputs: every run makes them anew.

Discovery runs the same call thousands of times with other tensors in its places, so a call is also a template:
`call.runner(tensors)` is the quickest way to do that.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..errors import UsageError
from ._arguments import (
    Shape,
    argument_text,
    copied,
    flat_outputs,
    hashable,
    is_tensor,
    leaves,
    must_run,
    on_meta,
    packed,
    unpacked,
    with_leaves,
    with_tensors,
)
from ._facts import facts
from ._names import op_name, operator, overload, packet_name
from ._parameters import Parameters, parameters

# Where an argument stands: its position, the positions that one parameter takes up, or its keyword.
Place = int | slice | str


@dataclass(frozen=True, eq=False)
class Call:
    """An operator with its arguments; `made` are the shapes of its outputs, where they are known. A `guarded` call
    raises where its kernel would end the process; `run` and `runner` always do.

    >>> call = Call.of(torch.ops.aten._softmax.default, torch.rand(4, 6), -1, False)
    >>> print(call, call["dim"], call.shape("self"), call.outputs)
    aten._softmax.default(float32[4, 6], -1, False) -1 (4, 6) ((4, 6),)
    """

    op: Callable[..., Any]
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    made: tuple[Shape | None, ...] | None = None
    guarded: bool = False

    def __post_init__(self) -> None:
        set_ = object.__setattr__
        set_(self, "op", operator(self.op))
        set_(self, "args", tuple(map(_plain, self.args)))
        order = self._parameters.names if self._parameters.is_exact and len(self.kwargs) > 1 else ()
        known = {name: self.kwargs[name] for name in order if name in self.kwargs}
        set_(self, "kwargs", {name: _plain(value) for name, value in {**known, **self.kwargs}.items()})
        if self.made is not None:
            set_(self, "made", tuple(None if s is None else tuple(s) for s in self.made))

    @classmethod
    def of(cls, op: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Call":
        """The call `op(*args, **kwargs)`."""
        return cls(op, args, kwargs)

    @classmethod
    def named(
        cls, op: Callable[..., Any], arguments: Mapping[str, Any], made: Sequence[Shape | None] | None = None
    ) -> "Call":
        """A call from arguments by name, as dispatch passes them: by position up to the last that is given, those
        left out before it by their defaults; the others by keyword."""
        takes = parameters(operator(op))
        last = max((i for i, name in enumerate(takes.positional) if name in arguments), default=-1)
        by_position = takes.positional[: last + 1]
        args = tuple(arguments[n] if n in arguments else takes.defaults.get(n) for n in by_position)
        kwargs = {name: value for name, value in arguments.items() if name not in by_position}
        return cls(op, args, kwargs, None if made is None else tuple(made))

    # -- the operator

    @property
    def name(self) -> str:
        return op_name(self.op)

    @property
    def packet(self) -> str:
        """`aten.embedding`: the operator's name without its overload."""
        return packet_name(self.op)

    @property
    def schema(self) -> Any:
        """The schema of a registered operator; None for a function."""
        return getattr(self.op, "_schema", None)

    @cached_property
    def _parameters(self) -> Parameters:
        return parameters(self.op)

    # -- arguments by name

    @cached_property
    def _places(self) -> dict[str, Place]:
        """Where each argument that was given stands, by name."""
        by_position = dict(map(self._parameters.place, range(len(self.args))))
        return {**by_position, **{name: name for name in self.kwargs}}

    @cached_property
    def given(self) -> dict[str, Any]:
        """The arguments that were given, by name."""
        return {name: self._at(place) for name, place in self._places.items()}

    def _at(self, place: Place) -> Any:
        return self.kwargs[place] if isinstance(place, str) else self.args[place]

    @cached_property
    def arguments(self) -> dict[str, Any]:
        """All arguments by name, those left out by their defaults; without tensors to write to."""
        takes, given = self._parameters, self.given
        if takes.is_exact and len(self.args) > len(takes.positional):
            raise UsageError(
                f"{self.name} takes {len(takes.positional)} positional arguments, but {len(self.args)} were given"
            )
        values = {}
        for name in takes.names:
            if name in given:
                values[name] = given[name]
            elif name in takes.defaults:
                values[name] = takes.defaults[name]
            elif takes.is_exact:
                raise UsageError(f"{self.name} needs an argument {name!r}")
        if not takes.is_exact:
            values |= {n: v for n, v in given.items() if n not in takes.names and n not in takes.outs}
        return values

    @property
    def is_complete(self) -> bool:
        """True if all required arguments are given, and no others than the operator takes."""
        try:
            return self.arguments is not None
        except UsageError:
            return False

    def __getitem__(self, name: str) -> Any:
        """An argument by name, its default where it was left out."""
        try:
            return self.arguments[name]
        except KeyError:
            raise UsageError(
                f"{self.name} has no argument {name!r}: it takes {', '.join(self.arguments) or 'none'}"
            ) from None

    def __contains__(self, name: str) -> bool:
        return name in self.arguments

    def leaves(self) -> Iterator[tuple[str, Any]]:
        """(argument, value) for every value that was given, those inside lists one by one."""
        for name, value in self.given.items():
            for leaf in leaves(value):
                yield name, leaf

    @cached_property
    def size_arguments(self) -> tuple[str, ...]:
        """The given arguments that are sizes."""
        found, known = [], facts(self.op)
        for name, value in self.given.items():
            inside = list(leaves(value))
            if known.is_size(name, len(inside)) and any(type(number) is int for number in inside):
                found.append(name)
        return tuple(found)

    # -- tensors

    @cached_property
    def _slots(self) -> tuple[tuple[int | str, int | None], ...]:
        """Arguments that hold input tensors, by position or keyword: None for a tensor alone, else how many."""
        found: list[tuple[int | str, int | None]] = []
        places = (*range(len(self.args)), *(name for name in self.kwargs if name not in self._outs))
        for place in places:
            value = self._at(place)
            if is_tensor(value):
                found.append((place, None))
            elif count := sum(map(is_tensor, leaves(value))):
                found.append((place, count))
        return tuple(found)

    @cached_property
    def tensors(self) -> tuple[Any, ...]:
        """The input tensors in order."""
        return tuple(leaf for place, _ in self._slots for leaf in leaves(self._at(place)) if is_tensor(leaf))

    @cached_property
    def tensor_names(self) -> tuple[str, ...]:
        """For each input tensor the argument that it is or stands in."""
        names: dict[Any, str] = {}
        for name, place in self._places.items():
            inside = range(len(self.args))[place] if isinstance(place, slice) else (place,)
            names |= dict.fromkeys(inside, name)
        return tuple(names[place] for place, count in self._slots for _ in range(count or 1))

    @cached_property
    def lists(self) -> tuple[tuple[int, ...], ...]:
        """Inputs that stand together in one list argument, as groups of input positions."""
        groups, position = [], 0
        for _, count in self._slots:
            if count is not None:
                groups.append(tuple(range(position, position + count)))
            position += count or 1
        return tuple(groups)

    @cached_property
    def shapes(self) -> tuple[Shape, ...]:
        """The shapes of the input tensors."""
        return tuple(tuple(t.shape) for t in self.tensors)

    def has(self, name: str) -> bool:
        """True if a tensor was given for this argument."""
        return is_tensor(self.given.get(name))

    def shape(self, name: str) -> Shape:
        """The shape of an argument that is one tensor."""
        return tuple(int(size) for size in self[name].shape)

    @cached_property
    def outputs(self) -> tuple[Shape | None, ...]:
        """The shapes of the outputs, lists one by one, None for one that is not a tensor: as given, else from a run on
        meta tensors, else, where the operator has no such kernel, from a run on copies."""
        if self.made is not None:
            return self.made
        return tuple(tuple(o.shape) if isinstance(o, Tensor) else None for o in self._results)

    @cached_property
    def output_dtypes(self) -> tuple[torch.dtype | None, ...]:
        """The dtypes of the outputs, None for one that is not a tensor; from a run as that of `outputs`, unless all are
        known."""
        said = facts(self.op).dtypes
        known = {} if said is None or self.made is None else said(**self.arguments)
        if known and len(known) == len(self.made or ()):
            return tuple(known[place] for place in range(len(known)))
        return tuple(o.dtype if isinstance(o, Tensor) else None for o in self._results)

    @cached_property
    def _results(self) -> tuple[Any, ...]:
        with must_run(str(self)):
            try:
                result = self.on_meta()()
            except NotImplementedError:
                result = self.copied()()
        return tuple(flat_outputs(result))

    @property
    def output(self) -> Shape:
        """The shape of the first output, which is a tensor."""
        first = self.outputs[0]
        assert first is not None
        return first

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

    # -- the same call with something else in it

    def with_tensors(self, tensors: Sequence[Any], made: tuple[Shape | None, ...] | None = None) -> "Call":
        """The call with these in the places of its tensors, in order."""
        args, kwargs = self._filled(tensors)
        call = object.__new__(Call)
        call.__dict__.update(op=self.op, args=tuple(args), kwargs=kwargs, made=made, guarded=self.guarded)
        call.__dict__.update(_parameters=self._parameters, _slots=self._slots, tensors=tuple(tensors))
        return call

    def _filled(self, tensors: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        args, kwargs, rest = list(self.args), dict(self.kwargs), iter(tensors)
        for place, count in self._slots:
            held: Any = kwargs if isinstance(place, str) else args
            held[place] = next(rest) if count is None else with_tensors(held[place], rest)
        if len(tensors) != sum(count or 1 for _, count in self._slots):
            raise ValueError(f"{self.name} was given {len(tensors)} tensors for {len(self.tensors)}")
        kwargs |= {name: with_leaves(value, _empty) for name, value in self._outs.items()}
        return args, kwargs

    @cached_property
    def _outs(self) -> dict[str, Any]:
        """The arguments that are written to."""
        return {name: value for name, value in self.kwargs.items() if name in self._parameters.outs}

    def with_arguments(self, /, **changes: Any) -> "Call":
        """The call with some arguments changed, by name."""
        args, kwargs = list(self.args), dict(self.kwargs)
        for name, value in changes.items():
            place = self._places.get(name, name)
            held: Any = kwargs if isinstance(place, str) else args
            held[place] = value
        return Call(self.op, args, kwargs, guarded=self.guarded)

    def on_meta(self) -> "Call":
        """The call on meta tensors, which have shapes and no values; results are not written to any `out=`."""
        exact = self._parameters.is_exact
        kwargs = {n: v for n, v in self.kwargs.items() if exact or n not in self._parameters.outs}
        return Call(self.op, on_meta(self.args), on_meta(kwargs), self.made)

    def copied(self) -> "Call":
        """The call on copies of its tensors."""
        return Call(self.op, copied(self.args), copied(dict(self.kwargs)), self.made)

    # -- running

    def __call__(self, /, **changes: Any) -> Any:
        """The operator's result on its own tensors, with some arguments changed."""
        call = self.with_arguments(**changes) if changes else self
        if call.guarded:
            call._require_safe(call.tensors)
        return call.op(*call.args, **call.kwargs)

    def run(self, tensors: Sequence[Tensor] | None = None) -> list[Any]:
        """The outputs, flat: tensors, None for a missing one, other values as they are. Runs on copies of the call's
        tensors where no others are given."""
        return flat_outputs(self.runner([t.clone() for t in self.tensors] if tensors is None else tensors))

    @cached_property
    def runner(self) -> Callable[[Sequence[Tensor]], Any]:
        """The quickest way to run this call on other tensors."""
        quick = self._quick_runner()
        if facts(self.op).guard is None:
            return quick

        def guarded(tensors: Sequence[Tensor]) -> Any:
            self._require_safe(tensors)
            return quick(tensors)

        return guarded

    def _require_safe(self, tensors: Sequence[Tensor]) -> None:
        fits = facts(self.op).guard
        if fits is not None and not fits(tensors, lambda: self.with_tensors(tensors).arguments):
            raise ValueError(f"{self.name} does not take shapes {[tuple(t.shape) for t in tensors]}")

    def _quick_runner(self) -> Callable[[Sequence[Tensor]], Any]:
        op, slots, args, kwargs = self.op, self._slots, self.args, self.kwargs
        alone = [place for place, count in slots if count is None]
        if not self._outs and alone == list(range(len(slots))):
            rest = args[len(slots) :]
            return lambda tensors: op(*tensors, *rest, **kwargs)
        full = all(count is None or _is_full(self._at(place)) for place, count in slots)
        if not self._outs and full and all(isinstance(place, int) for place, _ in slots):

            def run_flat(tensors: Sequence[Tensor]) -> Any:
                filled: Any = list(args)
                rest = iter(tensors)
                for place, count in slots:
                    filled[place] = next(rest) if count is None else list(itertools.islice(rest, count))
                return op(*filled, **kwargs)

            return run_flat

        def run(tensors: Sequence[Tensor]) -> Any:
            filled, keywords = self._filled(tensors)
            return op(*filled, **keywords)

        return run

    # -- comparing calls

    @cached_property
    def signature(self) -> Any:
        """Equal for calls of an operator that differ in the values of their tensors alone."""
        return self.op, hashable(self.args), hashable(dict(self.kwargs))

    @property
    def arguments_text(self) -> str:
        """The arguments as text: `(float32[4, 6], dim=1)`."""
        given = [*map(argument_text, self.args)]
        given += [f"{name}={argument_text(value)}" for name, value in self.kwargs.items()]
        return f"({', '.join(given)})"

    def __str__(self) -> str:
        return f"{self.name}{self.arguments_text}"

    def __reduce__(self) -> Any:
        """Calls are pickled with overloads and constants of torch by their names."""
        op = self.name if isinstance(self.op, torch._ops.OpOverload) else self.op
        return _unpacked, (op, *packed((self.args, dict(self.kwargs))), self.made)


def _unpacked(op: Any, args: Any, kwargs: Any, made: Any) -> Call:
    args, kwargs = unpacked((args, kwargs))
    return Call(overload(op) if isinstance(op, str) else op, args, kwargs, made)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, torch.Size) else value


def _is_full(value: Any) -> bool:
    """True for a list of tensors and nothing else."""
    return isinstance(value, list | tuple) and all(map(is_tensor, value))


def _empty(leaf: Any) -> Any:
    """A tensor to write to, made anew."""
    return leaf.new_empty(0) if isinstance(leaf, Tensor) else leaf


def _bytes(tensor: Tensor) -> Tensor:
    """The bytes of a tensor: NaN equals itself there, and every dtype can be compared."""
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return plain.as_strided((plain.numel(),), (1,)).view(torch.uint8)  # one element may have any stride
