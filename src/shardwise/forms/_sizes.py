"""The local form `sizes`: arguments that name sizes become those of the rank's piece.

An argument that spells out the shape of the output takes the shape of the output's piece. Otherwise each number in it
that is the size of a sharded dim takes that dim's local size. Operators whose sizes are spelled in another way have
an entry of their own. The form `groups` does the same to the number of groups of a convolution.
"""

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any

from ..calls import facts
from ..errors import UsageError
from ._piece import LocalOp, Piece


def with_local_sizes(here: LocalOp) -> Any:
    if facts(here.op).reshape:
        return _reshape(here)
    own = _OWN.get(here.name)
    return own(here) if own is not None else here.run(**_local_arguments(here))


def _local_arguments(here: LocalOp) -> dict[str, Any]:
    output = next((piece for piece in here.outputs if piece is not None), None)
    arguments = dict(_size_arguments(here))
    for name, value in arguments.items():
        if output is not None and isinstance(value, list) and _spells(value, output.shape):
            sizes = [given if given == -1 else size for given, size in zip(value, output.local, strict=True)]
            return {name: sizes}
    pieces = [*here.inputs, *([output] if output else [])]
    return {
        name: [_local_size(v, pieces) for v in value]
        if isinstance(value, list)
        else _local_size(value, pieces)
        for name, value in arguments.items()
    }


def _size_arguments(here: LocalOp) -> Iterator[tuple[str, int | list[int]]]:
    known = facts(here.op)
    for name, value in here.items():
        if isinstance(value, list | tuple) and value and all(type(v) is int for v in value):
            # A list of one number is no window's size where it spells out the shape of the output.
            alone = len(value) == 1 and any(p is not None and _spells(value, p.shape) for p in here.outputs)
            if known.is_size(name, 2 if alone else len(value)):
                yield name, list(value)
        elif type(value) is int and known.is_size(name, 1):
            yield name, value


def _spells(value: Sequence[int], shape: Sequence[int]) -> bool:
    return len(value) == len(shape) and all(
        given in (-1, size) for given, size in zip(value, shape, strict=True)
    )


def _local_size(size: int, pieces: Sequence[Piece]) -> int:
    """What the dims of this size have here; where there are none it is no size that is cut."""
    found = {own for piece in pieces for s, own in zip(piece.shape, piece.local, strict=True) if s == size}
    if len(found) > 1:
        raise UsageError(f"dims of size {size} are cut in two ways: which one an argument means is open")
    return found.pop() if found else size


def _reshape(here: LocalOp) -> Any:
    """Its sizes are those of the output; whether a piece can be viewed so depends on its strides."""
    (output,) = here.outputs
    assert output is not None
    return here["self"].reshape(output.local)


def _repeat(here: LocalOp) -> Any:
    """Repeats along a dim that only the output has sharded: fewer of them."""
    (output,) = here.outputs
    assert output is not None
    whole = here.pieces["self"]
    missing = len(output.shape) - len(whole.shape)
    repeats = []
    for dim, times in enumerate(here["repeats"]):
        size = whole.local[dim - missing] if dim >= missing else 1
        repeats.append(output.local[dim] // size if size and output.cuts(dim) else times)
    return here.run(repeats=repeats)


def _strided(here: LocalOp) -> Any:
    """Strides of the piece: the dims nested as in the whole."""
    (output,) = here.outputs
    assert output is not None
    order = sorted(range(len(output.shape)), key=lambda d: (here["stride"][d], -d))
    strides, step = [0] * len(order), 1
    for dim in order:
        strides[dim] = step
        step *= max(output.local[dim], 1)
    return here.run(size=list(output.local), stride=strides)


def _group_norm(here: LocalOp) -> Any:
    piece: Piece = here.pieces["input"]
    batch, channels, *rest = piece.local
    groups = here["group"] * channels // piece.shape[1]
    return here.run(N=batch, C=channels, HxW=prod(rest), group=groups)


def select_backward(here: LocalOp) -> Any:
    """The gradient lies in one slice of the output, which not every rank holds."""
    (output,) = here.outputs
    assert output is not None
    dim = here["dim"] % len(output.shape)
    index = here["index"] % output.shape[dim] - output.offset[dim]
    if 0 <= index < output.local[dim]:
        return here.run(input_sizes=list(output.local), index=index)
    return here["grad_output"].new_zeros(output.local)


_OWN: dict[str, Callable[[LocalOp], Any]] = {
    "aten.repeat": _repeat,
    "aten.new_empty_strided": _strided,
    "aten.empty_strided": _strided,
    "aten.select_backward": select_backward,
    "aten.native_group_norm": _group_norm,
    "aten.native_group_norm_backward": _group_norm,
}


def _groups(here: LocalOp) -> int:
    piece: Piece = here.pieces["input"]
    groups = here["groups"]
    return groups * piece.local[1] // piece.shape[1] if groups > 1 else groups


def _convolution(here: LocalOp) -> Any:
    return here.run(groups=_groups(here))


def _convolution_backward(here: LocalOp) -> Any:
    changes: dict[str, Any] = {"groups": _groups(here)}
    if (bias := here.outputs[2]) is not None:
        changes["bias_sizes"] = list(bias.local)
    return here.run(**changes)


GROUPS: dict[str, Callable[[LocalOp], Any]] = {
    "aten.convolution": _convolution,
    "aten.convolution_backward": _convolution_backward,
}
