"""Branches on tensor values: both are computed, and the results of one are taken.

A graph has no control flow. Where a program decides by a value that no trace knows, by `torch.cond` or by an `if` of
Python's, in functions that are rewritten for that (`_rewrite.py`), each branch computes its results, and `torch.where`
takes those of one. What a branch writes into the model's buffers is taken in the same way. The branch that is not taken
may divide by zero: what it makes of a value's gradient is dropped where the value comes in.
"""

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from ._autograd import NotKept, Undecided
from ._numbers import Number, as_number, as_tensors
from ._rewrite import HELPER, functions_at, rewritten
from ._rows import note_rows, rows_of


class Branches:
    """How one program branches on values. `places` are where it does."""

    def __init__(self) -> None:
        self.codes: dict[FunctionType, CodeType] = {}
        self.places: set[str] = set()

    def rewrite(self, file: str, line: int) -> bool:
        """Have the function around a line rewritten. False if it is already, or cannot be."""
        found = [each for each in functions_at(file, line) if each not in self.codes]
        made = rewritten(found[0].__code__) if found else None
        if made is None:
            return False
        self.codes |= dict.fromkeys(found, made)
        return True

    @contextmanager
    def computed(self, module: nn.Module, notes: list[str] | None = None) -> Iterator[None]:
        """Within, functions that were rewritten run so. With notes it is being traced: where values are undecided is
        found out, and noted; else it is known."""
        helper = _Helper(self.places, module, notes)
        places = [each.__globals__ for each in self.codes]
        before = {each: each.__code__ for each in self.codes}
        try:
            for function, code in self.codes.items():
                function.__globals__[HELPER] = helper
                function.__code__ = code
            yield
        finally:
            for function, plain in before.items():
                function.__code__ = plain
            for names in places:
                names.pop(HELPER, None)


class _Undefined:
    """Stands for a name that is not bound."""


class _Apart:
    """What a branch left in a name where the other left something that cannot be joined with it."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def _used(self, *_: Any, **__: Any) -> Any:
        raise NotKept(self._reason)

    __getattr__ = __getitem__ = __call__ = __iter__ = __len__ = __bool__ = __eq__ = _used
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __torch_function__ = _used
    __hash__ = None  # type: ignore[assignment]


_UNDEFINED = _Undefined()


class _Helper:
    """What rewritten functions call where they decide."""

    def __init__(self, places: set[str], module: nn.Module, notes: list[str] | None) -> None:
        self.places, self.module, self.notes = places, module, notes
        self.depth = 0

    def decided(self, value: Any, place: str) -> bool | None:
        """The truth of a value; None where it depends on data."""
        if not isinstance(value, Tensor | Number):
            return bool(value)
        if self.notes is None:
            return None if place in self.places else bool(value)
        try:
            return bool(value)
        except Undecided:
            self.places.add(place)
            return None

    def branch(
        self,
        test: Any,
        yes: Callable[..., Any],
        no: Callable[..., Any],
        held: tuple[Any, ...],
        binds: tuple[str, ...],
        written: tuple[str, ...],
        attributes: tuple[tuple[Any, str, str], ...],
        other: str,
        place: str,
        owner: Any,
    ) -> Any:
        """The values of names after one of two blocks, given those before; `owner` is what the function is of."""
        decided = self.decided(test, place)
        if decided is not None:
            return (yes if decided else no)(*held)
        line = place.rpartition(":")[0]
        if other:
            raise _kept_elsewhere(line, other)
        own = _Attributes(self.module, attributes, line)
        holds = _truth(test)

        names = [*binds, *[""] * (len(held) - len(binds))]

        def block(run: Callable[..., Any], taken: Tensor) -> Any:
            own = only_if(taken, held)
            return run(
                *(
                    _copied(value) if name in written else value
                    for name, value in zip(names, own, strict=True)
                )
            )

        def with_attributes(run: Callable[..., Any], taken: Tensor) -> Any:
            return own.after(lambda: block(run, taken))

        _, (first, after_first), (second, after_second) = self._both(
            *(holds, lambda: with_attributes(yes, holds), lambda: with_attributes(no, ~holds), line),
            owner if isinstance(owner, nn.Module) else self.module,
        )
        own.join(holds, after_first, after_second)
        return _joined(holds, first, second, binds, line)

    def either(self, test: Any, yes: Callable[[], Any], no: Callable[[], Any], place: str) -> Any:
        """`yes if test else no`"""
        decided = self.decided(test, place)
        if decided is not None:
            return (yes if decided else no)()
        line = place.rpartition(":")[0]
        made = self._both(test, lambda: (yes(),), lambda: (no(),), line, self.module)
        return _joined(*made, ("the value",), line)[0]

    def _both(
        self, test: Any, yes: Callable[[], Any], no: Callable[[], Any], line: str, part: nn.Module
    ) -> tuple[Tensor, Any, Any]:
        """Whether the first is taken, and the results of both, which may change buffers of a part of the model."""
        note = f"both branches at {line} are computed, and the results of one are taken"
        if self.notes is not None and note not in self.notes:
            self.notes.append(note)
        holds = _truth(test)
        self.depth += 1
        try:
            buffers = _Buffers(self.module, part, line)
            first, after_first = buffers.after(yes)
            second, after_second = buffers.after(no)
            buffers.join(holds, after_first, after_second)
        finally:
            self.depth -= 1
        return holds, first, second

    def held(self, value: Callable[[], Any]) -> Any:
        try:
            return value()
        except (NameError, AttributeError):
            return _UNDEFINED

    def is_undefined(self, value: Any) -> bool:
        return value is _UNDEFINED

    def negated(self, value: Any, decide: Callable[[Any], bool | None]) -> Any:
        decided = decide(value)
        return ~_truth(value) if decided is None else not decided

    def all_of(self, *parts: tuple[Callable[[], Any], Callable[[Any], bool | None]]) -> Any:
        return self._combined(parts, False, torch.logical_and)

    def any_of(self, *parts: tuple[Callable[[], Any], Callable[[Any], bool | None]]) -> Any:
        return self._combined(parts, True, torch.logical_or)

    def _combined(self, parts: Any, ends: bool, combine: Callable[[Any, Any], Any]) -> Any:
        """Python's `and` and `or`: values up to the first whose truth ends it."""
        undecided: Any = None
        for place, (part, decide) in enumerate(parts):
            value = part()
            if undecided is None and place == len(parts) - 1:
                return value
            decided = decide(value)
            if decided is None:
                undecided = value if undecided is None else combine(_truth(undecided), _truth(value))
            elif decided == ends:
                return value if undecided is None else ends
        return undecided

    def changed(self, name: str, value: Any, by: Any) -> Any:
        """`value += by`, which leaves what others hold as it is where both branches are computed."""
        into, plain = _OPERATORS[name]
        return plain(value, by) if self.depth else into(value, by)

    def number(self, kind: Any, value: Any) -> Any:
        """`int(value)`, if that is what the name means."""
        return kind(value) if self.notes is None else as_number(kind, value)


_OPERATORS: Mapping[str, tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]] = {
    "Add": (operator.iadd, operator.add),
    "Sub": (operator.isub, operator.sub),
    "Mult": (operator.imul, operator.mul),
    "Div": (operator.itruediv, operator.truediv),
    "FloorDiv": (operator.ifloordiv, operator.floordiv),
    "Mod": (operator.imod, operator.mod),
    "Pow": (operator.ipow, operator.pow),
    "MatMult": (operator.imatmul, operator.matmul),
    "BitAnd": (operator.iand, operator.and_),
    "BitOr": (operator.ior, operator.or_),
    "BitXor": (operator.ixor, operator.xor),
    "LShift": (operator.ilshift, operator.lshift),
    "RShift": (operator.irshift, operator.rshift),
}


def _truth(value: Tensor | Number) -> Tensor:
    """Whether something is true, as a tensor."""
    return (value.tensor if isinstance(value, Number) else value).reshape(()).bool()


def _copied(value: Any) -> Any:
    """One of its own for a block that writes into it."""
    if isinstance(value, Tensor):
        made = value.clone()
        note_rows(made, rows_of(value))
        return made
    return value.copy() if isinstance(value, list | dict | set) else value


class _Buffers:
    """A model's buffers before a branch. Each block has its own of those of one part, and leaves the others alone."""

    def __init__(self, module: nn.Module, part: nn.Module, line: str) -> None:
        self.held = list(_buffers_of(part))
        own = {id(buffer) for _, _, buffer in self.held}
        self.others = [each for each in _buffers_of(module) if id(each[2]) not in own]
        self.line = line

    def after(self, block: Callable[[], Any]) -> tuple[Any, dict[int, Tensor]]:
        """What a block makes, and the values of the buffers that it changes, by place."""
        own = list[tuple[Tensor, int]]()
        with torch.no_grad():
            for owner, name, buffer in self.held:
                given = buffer.clone()
                owner[name] = given
                own.append((given, given._version))
        others = [buffer._version for _, _, buffer in self.others]
        with _Statistics() as statistics:
            made = block()
        for (owner, name, buffer), version in zip(self.others, others, strict=True):
            written = buffer._version != version or id(buffer) in statistics.written
            if written or owner[name] is not buffer:
                raise _kept_elsewhere(self.line, name)
        changed: dict[int, Tensor] = {}
        for place, ((owner, name, buffer), (given, version)) in enumerate(zip(self.held, own, strict=True)):
            now, owner[name] = owner[name], buffer
            if now is None:
                raise _kept_elsewhere(self.line, name)
            if now is not given or given._version != version or id(given) in statistics.written:
                changed[place] = now
        return made, changed

    def join(self, holds: Tensor, yes: dict[int, Tensor], no: dict[int, Tensor]) -> None:
        """Have those of the block that is taken."""
        with torch.no_grad():
            for place in sorted(yes.keys() | no.keys()):
                owner, name, buffer = self.held[place]
                owner[name] = torch.where(holds, yes.get(place, buffer), no.get(place, buffer))


def _kept_elsewhere(line: str, text: str) -> NotKept:
    return NotKept(
        f"a branch on a tensor's value at {line} writes to `{text}`, neither to a name nor to what there is before; "
        "assign it in both branches, or register it with register_buffer"
    )


class _Attributes:
    """What a branch writes into attributes, other than buffers of the model. Each block finds what was there before."""

    def __init__(self, module: nn.Module, attributes: Sequence[tuple[Any, str, str]], line: str) -> None:
        buffers = {(id(part), name) for part in module.modules() for name in part._buffers}
        self.line, self.held = line, list[tuple[Any, str, str, Any]]()
        for owner, name, text in attributes:
            if (id(owner), name) in buffers:
                continue
            before = vars(owner).get(name, _UNDEFINED) if hasattr(owner, "__dict__") else _UNDEFINED
            if before is _UNDEFINED:
                raise _kept_elsewhere(line, text)
            self.held.append((owner, name, text, before))

    def after(self, block: Callable[[], Any]) -> tuple[Any, list[Any]]:
        """What a block makes, and what it leaves in the attributes."""
        for owner, name, _, before in self.held:
            setattr(owner, name, _copied(before))
        try:
            made = block()
            return made, [vars(owner).get(name, _UNDEFINED) for owner, name, _, _ in self.held]
        finally:
            for owner, name, _, before in self.held:
                setattr(owner, name, before)

    def join(self, holds: Tensor, yes: Sequence[Any], no: Sequence[Any]) -> None:
        """Have those of the block that is taken."""
        texts = [text for _, _, text, _ in self.held]
        joined = _joined(holds, yes, no, texts, self.line)
        for (owner, name, _, _), value in zip(self.held, joined, strict=True):
            setattr(owner, name, value)


def _buffers_of(module: nn.Module) -> Iterator[tuple[dict[str, Tensor | None], str, Tensor]]:
    for part in module.modules():
        for name, buffer in part._buffers.items():
            if buffer is not None:
                yield part._buffers, name, buffer


class _Statistics(TorchFunctionMode):
    """Notes the tensors that normalisations write their running statistics to, whose versions stay as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.written: set[int] = set()

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(function, "__name__", "") in ("batch_norm", "instance_norm"):
            training = kwargs.get("training", kwargs.get("use_input_stats", (*args, *[False] * 6)[5]))
            given = (*args, *kwargs.values()) if training else ()
            self.written.update(id(leaf) for leaf in given if isinstance(leaf, Tensor))
        return function(*args, **kwargs)


def _joined(
    holds: Tensor, yes: Sequence[Any], no: Sequence[Any], names: Sequence[str], line: str
) -> tuple[Any, ...]:
    """One of two values for each name."""

    def joined(one: Any, other: Any, name: str) -> Any:
        if one is _UNDEFINED or other is _UNDEFINED:
            return other if one is _UNDEFINED else one
        leaves, form = pytree.tree_flatten(one)
        others, other_form = pytree.tree_flatten(other)
        if form != other_form or not all(map(_can_join, leaves, others)):
            return _Apart(f"the branches at {line} leave {name}, which is used, in different forms")
        return pytree.tree_unflatten(
            [_one_of(holds, a, b) for a, b in zip(leaves, others, strict=True)], form
        )

    return tuple(map(joined, yes, no, names))


def _can_join(yes: Any, no: Any) -> bool:
    if _is_number(yes) and _is_number(no):
        return True
    if isinstance(yes, Tensor) and isinstance(no, Tensor):
        return yes.shape == no.shape and yes.dtype == no.dtype
    if isinstance(yes, Tensor | _Apart) or isinstance(no, Tensor | _Apart):
        return False
    return yes is no or (type(yes) is type(no) and bool(yes == no))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | Number) or (isinstance(value, Tensor) and value.dim() == 0)


def _one_of(holds: Tensor, yes: Any, no: Any) -> Any:
    if yes is no or (isinstance(yes, int | float) and isinstance(no, int | float) and yes == no):
        return yes
    if isinstance(yes, bool) and isinstance(no, bool):
        return holds if yes else ~holds
    if isinstance(yes, Tensor) or isinstance(no, Tensor):
        return torch.where(holds, as_tensors(yes), as_tensors(no))
    if _is_number(yes):
        return Number(torch.where(holds, as_tensors(yes), as_tensors(no)))
    return yes


# -- torch.cond


@contextmanager
def both_branches(notes: list[str]) -> Iterator[None]:
    """Within, `torch.cond` computes both branches; `notes` say so."""

    def cond(
        pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Sequence[Any] = ()
    ) -> Any:
        if not isinstance(pred, Tensor):
            return true_fn(*operands) if pred else false_fn(*operands)
        note = "both branches of torch.cond are computed, and the results of one are taken"
        if note not in notes:
            notes.append(note)
        holds = pred.reshape(())
        yes = true_fn(*only_if(holds, tuple(operands)))
        no = false_fn(*only_if(~holds, tuple(operands)))
        return pytree.tree_map(lambda a, b: torch.where(holds, a, b) if isinstance(a, Tensor) else a, yes, no)

    with _replaced(cond):
        yield


@contextmanager
def branches_as_taken() -> Iterator[None]:
    """Within, `torch.cond` runs the branch that is taken, call by call, and not through torch's compiler."""

    def cond(
        pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Sequence[Any] = ()
    ) -> Any:
        return (true_fn if pred else false_fn)(*operands)

    with _replaced(cond):
        yield


@contextmanager
def _replaced(cond: Callable[..., Any]) -> Iterator[None]:
    before, torch.cond = torch.cond, cond
    try:
        yield
    finally:
        torch.cond = before


class _OnlyIf(torch.autograd.Function):
    """A value whose gradient is zero, and not what a branch makes of zero, where the branch is not taken."""

    takes_rows = True

    @staticmethod
    def forward(ctx: Any, value: Tensor, holds: Tensor) -> Tensor:
        ctx.save_for_backward(holds)
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (holds,) = ctx.saved_tensors
        return torch.where(holds, gradient, torch.zeros_like(gradient)), None


def only_if(holds: Tensor, values: tuple[Any, ...]) -> tuple[Any, ...]:
    """What comes into a branch, differentiated where it is taken."""

    def guarded(leaf: Any) -> Any:
        if not (isinstance(leaf, Tensor) and leaf.requires_grad and torch.is_grad_enabled()):
            return leaf
        made = _OnlyIf.apply(leaf, holds)
        note_rows(made, rows_of(leaf))
        return made

    return pytree.tree_map(guarded, values)
