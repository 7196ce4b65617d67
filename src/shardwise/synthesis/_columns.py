"""What conditions can refer to, as columns: everything about a call that can be changed independently, and its levels.

A column is an argument (flags, `None`, enumerations, dims first, middle, last and negative, numbers by sign and special
value), or a feature of the shapes (batch dims, sizes 1 and equal, operands that broadcast). Its first level leaves the
example as it is. A call of a design is an example with one level of every column applied to it.
"""

import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..calls import WORDS, Call, Facts, facts
from ..experiments import generators

Change = Callable[[Call], Call | None]

# Numbers by sign and special value; those for a norm's order also without bounds.
_NUMBERS = (0, 1, -1, 2, 0.5)
_ORDERS = (*_NUMBERS, float("inf"), float("-inf"))
_ORDER_ARGUMENTS = ("ord", "p", "norm_type")

# Different examples that designs start from; dims and elements of a list beyond which calls show nothing new.
MOST_EXAMPLES = 8
_MOST_DIMS, _LONGEST_LIST = 5, 4
_SQUARE = 4
# Pairs of sizes of which one is made the other.
_PAIRS_OF_SIZES = 6


@dataclass(frozen=True)
class Column:
    """Something that can be changed by itself. `changes` are its levels, of which the first changes nothing; each
    gives a changed call, or None where the call has nothing of the kind."""

    name: str
    changes: tuple[Change, ...]

    def __len__(self) -> int:
        return len(self.changes)


def columns(examples: Sequence[Call], domain: "Domain", values: Mapping[str, Sequence[Any]]) -> list[Column]:
    """The columns of an overload, from calls of it. `values` are those to try for named arguments."""
    found = [
        Column("list", (_as_it_is, *_list_changes(examples))),
        Column("dims", (_as_it_is, *_rank_changes(examples, domain))),
        Column("sizes", (_as_it_is, *_size_changes(examples, domain))),
        *_argument_columns(examples, values),
    ]
    return [column for column in found if len(column) > 1]


def applied(call: Call, changes: Sequence[Change]) -> Call | None:
    """The call with several changes, one after the other."""
    changed: Call | None = call
    for change in changes:
        if changed is None:
            return None
        changed = change(changed)
    return None if changed is None else _with_fitting_values(changed)


@dataclass(frozen=True)
class Domain:
    """What the examples of an overload have in common: whether all their tensors broadcast to each other, always have
    one shape (those without dims aside), and have equal sizes; whether any has a dim of size 1; the fewest dims that
    each tensor has, if there are several examples; and whether three tensors or more always have the same numbers of
    dims. Kernels often accept more than operators mean to."""

    broadcasts: bool = True
    one_shape: bool = False
    square: bool = False
    singles: bool = False
    fewest: tuple[int, ...] = ()
    one_rank: bool = False

    @classmethod
    def of(cls, examples: Sequence[Call]) -> "Domain":
        ranks = [[t.ndim for t in call.tensors] for call in examples if len(examples) > 1]
        return cls(
            all(broadcast(call.tensors) for call in examples),
            not any(map(has_shapes, examples)),
            all(map(_is_square, examples)),
            any(1 in t.shape for call in examples for t in call.tensors),
            tuple(min(column) for column in zip(*ranks, strict=False)),
            bool(ranks) and len(ranks[0]) > 2 and all(r == ranks[0] for r in ranks),
        )

    def is_unusual(self, call: Call) -> bool:
        """True for a call whose operands broadcast, where those of all examples have one shape; for one whose sizes are
        all equal, where those of some example are not: experiments could not vary them apart; and for one whose only
        tensor has a dim of size 1, where no example has."""
        single = len(call.tensors) == 1 and 1 in call.tensors[0].shape
        return (
            (self.one_shape and has_shapes(call))
            or (not self.square and _is_square(call))
            or (not self.singles and single)
        )

    def may_drop_a_dim(self, index: int, tensor: Tensor) -> bool:
        least = self.fewest[index] if index < len(self.fewest) else 0
        return tensor.ndim > least and len(tensor) > 0


def has_shapes(call: Call) -> bool:
    """True if the tensors that have dims have several shapes."""
    return len({t.shape for t in call.tensors if t.ndim}) > 1


def _is_square(call: Call) -> bool:
    """True if no two dims of a call's tensors differ in size, those of size 1 aside, and there are several."""
    sizes = [size for t in call.tensors for size in t.shape if size > 1]
    return len(sizes) > 1 and len(set(sizes)) == 1


def _as_it_is(call: Call) -> Call:
    return call


# -- arguments


def _argument_columns(examples: Sequence[Call], values: Mapping[str, Sequence[Any]]) -> Iterator[Column]:
    for argument in examples[0].schema.arguments if examples[0].schema is not None else ():
        if not argument.is_out:
            met = [call[argument.name] for call in examples]
            makers = _levels(argument, met, values, facts(examples[0].op))
            yield Column(argument.name, (_as_it_is, *(_setting(argument.name, make) for make in makers)))


# The value of an argument for a call with so many dims; `_UNFIT` where it has no such value.
Make = Callable[[int, Any], Any]
_UNFIT = object()


def _levels(
    argument: Any, met: Sequence[Any], values: Mapping[str, Sequence[Any]], known: Facts
) -> list[Make]:
    """The values to try for an argument; `met` are those of the examples."""
    kind = str(argument.type)
    optional = kind.startswith("Optional")
    if "Tensor" in kind:
        given = any(value is not None for value in met)
        return [_constant(None)] if kind == "Optional[Tensor]" and given else []
    if argument.name in values:
        return [_constant(value) for value in values[argument.name]]
    if argument.name in known.dims:
        none = [_constant(None)] if optional else []
        return [*none, *(_DIM_LISTS if "List" in kind else _DIMS)]
    if kind == "bool":
        return [_constant(False), _constant(True)]
    if argument.name in known.shapes and any(isinstance(value, list) for value in met):
        return [_one_larger(0), _one_larger(-1)]
    tried = [
        *known.values.get(argument.name, ()),
        *(known.choices.get(argument.name) or ()),
        *_plain_values(met),
    ]
    match kind.removeprefix("Optional[").removesuffix("]"):
        case "float" | "number":
            tried += _ORDERS if argument.name in _ORDER_ARGUMENTS else _NUMBERS
        case "int" if not known.choices.get(argument.name):
            tried += _neighbours(met)
        case "str":
            tried += WORDS.get(argument.name, ())
    if optional and tried:
        tried.append(None)
    return [_constant(value) for value in _distinct(tried)]


def _plain_values(met: Sequence[Any]) -> list[Any]:
    """The different words and numbers that examples have for an argument, if they are few."""
    plain = _distinct([value for value in met if isinstance(value, bool | int | float | str)])
    return plain if 1 < len(plain) <= 6 else []


def _neighbours(met: Sequence[Any]) -> list[int]:
    """Integers near those that examples have for an argument; calls that the operator does not take are left out."""
    numbers = {value for value in met if type(value) is int}
    if len(numbers) == 1:
        return [n + more for n in numbers for more in (1, -1, 2)]
    return [min(numbers) - 1, max(numbers) + 1] if numbers else []


def _distinct(values: Sequence[Any]) -> list[Any]:
    return list({(type(value), repr(value)): value for value in values}.values())


def _constant(value: Any) -> Make:
    return lambda ndim, old: value


def _one_larger(place: int) -> Make:
    def make(ndim: int, old: Any) -> Any:
        if not isinstance(old, list) or not old or old[place] < 2:
            return _UNFIT
        return [size + (i == place % len(old)) for i, size in enumerate(old)]

    return make


_DIMS: list[Make] = [
    lambda ndim, old: 0,
    lambda ndim, old: ndim // 2,
    lambda ndim, old: ndim - 1 if ndim else _UNFIT,
    lambda ndim, old: -1,
    lambda ndim, old: -2 if ndim > 1 else _UNFIT,
    lambda ndim, old: -ndim if ndim else _UNFIT,
    lambda ndim, old: ndim,  # for operators that add a dim
]


def _permuted(seed: int) -> Make:
    """Another order of all dims, for operators that take one."""

    def make(ndim: int, old: Any) -> Any:
        if not isinstance(old, list) or not ndim or sorted(d % ndim for d in old) != list(range(ndim)):
            return _UNFIT
        return random.Random(seed).sample(range(ndim), ndim)

    return make


_DIM_LISTS: list[Make] = [
    lambda ndim, old: [0],
    lambda ndim, old: [ndim // 2],
    lambda ndim, old: [-1],
    lambda ndim, old: [-2] if ndim > 1 else _UNFIT,
    lambda ndim, old: [0, ndim - 1] if ndim > 1 else _UNFIT,
    lambda ndim, old: [-1, 0] if ndim > 1 else _UNFIT,
    lambda ndim, old: [1, 0] if ndim > 1 else _UNFIT,
    lambda ndim, old: [-2, -1] if ndim > 1 else _UNFIT,
    lambda ndim, old: list(range(ndim)),
    _permuted(1),
    _permuted(2),
    _permuted(3),
]


def _setting(name: str, make: Make) -> Change:
    """The change of one argument."""

    def change(call: Call) -> Call | None:
        old = call[name]
        value = make(max((t.ndim for t in call.tensors), default=0), old)
        if value is _UNFIT:
            return None
        return call if type(value) is type(old) and value == old else call.with_arguments(**{name: value})

    return change


# -- lists of tensors


def _list_changes(examples: Sequence[Call]) -> Iterator[Change]:
    """A list of tensors with its last one twice, or without it."""
    if not any(call.lists for call in examples):
        return

    def changing(other: Callable[[list[Any]], list[Any]]) -> Change:
        def change(call: Call) -> Call | None:
            for name, value in call.given.items():
                if isinstance(value, list) and value and all(isinstance(v, Tensor) for v in value):
                    changed = other(value)
                    if 1 < len(changed) <= _LONGEST_LIST:
                        return call.with_arguments(**{name: changed})
            return None

        return change

    yield changing(lambda value: [*value, value[-1].clone()])
    yield changing(lambda value: value[:-1])


# -- numbers of dims


def _rank_changes(examples: Sequence[Call], domain: Domain) -> Iterator[Change]:
    """One or two leading dims more, one fewer, on all tensors; one more or fewer on one of them."""
    if domain.one_rank:
        return
    count = max(len(call.tensors) for call in examples)
    yield _with_batches(1)
    if count < 3:
        yield _with_batches(2)
    yield _with_fewer_dims(domain)
    if count > 1:
        for i in range(min(count, 4)):
            yield _one_with_a_batch(i)
            yield _one_with_fewer_dims(i, domain)


def _with_batches(more: int) -> Change:
    def change(call: Call) -> Call | None:
        tensors = call.tensors
        if not tensors or max(t.ndim for t in tensors) + more > _MOST_DIMS:
            return None
        for _ in range(more):
            tensors = tuple(map(_longer, tensors))
        return _with_tensors(call, dict(enumerate(tensors)))

    return change


def _with_fewer_dims(domain: Domain) -> Change:
    def change(call: Call) -> Call | None:
        tensors = call.tensors
        ranked = {i: t for i, t in enumerate(tensors) if t.ndim}
        if not ranked or (
            len(tensors) > 1 and not all(domain.may_drop_a_dim(i, t) for i, t in ranked.items())
        ):
            return None
        return _with_tensors(call, {i: t[0].clone() for i, t in ranked.items() if len(t)})

    return change


def _one_with_a_batch(i: int) -> Change:
    def change(call: Call) -> Call | None:
        if i >= len(call.tensors) or call.tensors[i].ndim >= _MOST_DIMS:
            return None
        return _with_tensors(call, {i: _longer(call.tensors[i])})

    return change


def _one_with_fewer_dims(i: int, domain: Domain) -> Change:
    def change(call: Call) -> Call | None:
        if i >= len(call.tensors) or not call.tensors[i].ndim:
            return None
        if not domain.may_drop_a_dim(i, call.tensors[i]):
            return None
        return _with_tensors(call, {i: call.tensors[i][0].clone()})

    return change


def _longer(tensor: Tensor) -> Tensor:
    """The tensor three times, along a new first dim."""
    return tensor.unsqueeze(0).expand(3, *tensor.shape).clone()


# -- sizes


def _size_changes(examples: Sequence[Call], domain: Domain) -> Iterator[Change]:
    """Dims in another order; first or last dims of size 1, in all tensors or in one that broadcasts; all sizes equal;
    dims longer or shorter, in all tensors or in one."""
    count = max(len(call.tensors) for call in examples)
    yield _everywhere(lambda t: t.transpose(0, -1).contiguous() if t.ndim > 1 else t)
    yield _everywhere(lambda t: _single(t, 0))
    yield _everywhere(lambda t: _single(t, -1))
    yield _equal_sizes
    if count == 1:
        yield _everywhere(partial(_twice, dim=0))
        yield _everywhere(partial(_twice, dim=-1))
        return
    yield _other_common_size(-1)
    yield _other_common_size(2)
    for i, dim in itertools.product(range(min(count, 3)), (0, -1)):
        if domain.broadcasts:
            yield _in_one(i, partial(_single, dim=dim), broadcasting=True)
        yield _in_one(i, partial(_shorter, dim=dim))


def unusual(examples: Sequence[Call]) -> list[Change]:
    """One dim of one tensor of size 1, whether operands broadcast or not, or longer than its example's; one tensor of
    another's shape; dims of two sizes made one; and other numbers of dims than the examples have: kernels accept more
    than operators mean to, and a rule may not be wrong about it."""
    count, anything = min(max(len(call.tensors) for call in examples), 4), Domain()
    alone: list[Callable[[int], Change]] = [_one_with_a_batch, partial(_one_with_fewer_dims, domain=anything)]
    return [
        *(
            _in_one(i, partial(other, dim=dim))
            for other in (_single, _twice)
            for i in range(count)
            for dim in (0, 1, -2, -1)
        ),
        *(_as_another(i, j) for i, j in itertools.product(range(count), range(2)) if i != j),
        *map(_two_sizes_as_one, range(_PAIRS_OF_SIZES)),
        *(_with_batches(more) for more in (1, 2)),
        _with_fewer_dims(anything),
        *(change(i) for change in alone for i in range(count if count > 1 else 0)),
    ]


def _as_another(i: int, j: int) -> Change:
    """One tensor with the shape of another, its values repeated."""

    def change(call: Call) -> Call | None:
        if max(i, j) >= len(call.tensors) or not call.tensors[i].numel():
            return None
        tensor, shape = call.tensors[i], call.tensors[j].shape
        places = torch.arange(shape.numel()) % tensor.numel()
        return _with_tensors(call, {i: tensor.reshape(-1)[places].reshape(shape)})

    return change


def _two_sizes_as_one(pair: int) -> Change:
    """Of two sizes, the first made the second wherever it stands."""

    def change(call: Call) -> Call | None:
        sizes = sorted({size for t in call.tensors for size in t.shape if size > 1})
        pairs = list(itertools.permutations(sizes, 2))
        if pair >= len(pairs):
            return None
        return _with_tensors(call, {i: _resized(t, *pairs[pair]) for i, t in enumerate(call.tensors)})

    return change


def _everywhere(other: Callable[[Tensor], Tensor]) -> Change:
    return lambda call: _with_tensors(call, {i: other(t) for i, t in enumerate(call.tensors)})


def _in_one(i: int, other: Callable[[Tensor], Tensor], broadcasting: bool = False) -> Change:
    def change(call: Call) -> Call | None:
        if i >= len(call.tensors) or not call.tensors[i].ndim:
            return None
        if broadcasting and not broadcast(call.tensors):
            return None
        return _with_tensors(call, {i: other(call.tensors[i])})

    return change


def _equal_sizes(call: Call) -> Call:
    """All sizes but 1 the same: what an operator does must not follow from which sizes happen to differ."""
    changed = {}
    for i, tensor in enumerate(call.tensors):
        for size in sorted(set(tensor.shape)):
            if size > 1:
                tensor = _resized(tensor, size, _SQUARE) if size != _SQUARE else tensor
        changed[i] = tensor
    return _with_tensors(call, changed)


def _other_common_size(more: int) -> Change:
    """The largest size that several tensors have, made another in all of them: dims that must agree have one size."""

    def change(call: Call) -> Call | None:
        if slides(call):
            return None  # where a window slides, dims that have one size have it by coincidence
        shared = [
            size
            for size in {s for t in call.tensors for s in t.shape}
            if size + more > 1 and sum(size in t.shape for t in call.tensors) > 1
        ]
        if not shared:
            return None
        size = max(shared)
        return _with_tensors(
            call, {i: _resized(t, size, size + more) for i, t in enumerate(call.tensors) if size in t.shape}
        )

    return change


def _single(tensor: Tensor, dim: int) -> Tensor:
    has = -tensor.ndim <= dim < tensor.ndim and tensor.shape[dim]
    return tensor.narrow(dim, 0, 1).clone() if has else tensor


def _twice(tensor: Tensor, dim: int) -> Tensor:
    return torch.cat([tensor] * 2, dim) if -tensor.ndim <= dim < tensor.ndim else tensor


def _shorter(tensor: Tensor, dim: int) -> Tensor:
    return tensor.narrow(dim, 0, tensor.shape[dim] - 1).clone() if tensor.shape[dim] > 2 else tensor


def _resized(tensor: Tensor, size: int, new: int) -> Tensor:
    """The tensor with every dim of one size made another, by leaving out or repeating."""
    for dim in range(tensor.ndim):
        if tensor.shape[dim] == size:
            tensor = tensor.index_select(dim, torch.arange(new) % size)
    return tensor


# -- what several of these need


def _with_tensors(call: Call, new: Mapping[int, Tensor]) -> Call:
    return call.with_tensors([new.get(i, tensor) for i, tensor in enumerate(call.tensors)])


def _with_fitting_values(call: Call) -> Call:
    """Where inputs must look a certain way, those of a changed call may not: a sorted sequence twice is not sorted, nor
    is one that had a sorter. Their floats are drawn anew."""
    generator = generators((call.name,))[0]
    if not generator.only:
        return call
    floats = {i: t for i, t in enumerate(call.tensors) if t.is_floating_point()}
    return _with_tensors(
        call, {i: generator.make(tuple(t.shape), t.dtype, t.device, i) for i, t in floats.items()}
    )


def broadcast(tensors: Sequence[Tensor]) -> bool:
    """True if the tensors broadcast to each other; for others a dim of size 1 is a coincidence, not an operand."""
    try:
        torch.broadcast_shapes(*(t.shape for t in tensors))
    except RuntimeError:
        return False
    return True


def slides(call: Call) -> bool:
    """True if the operator moves a window over the last dims."""
    return any(name in call.arguments for name in facts(call.op).sliding)
