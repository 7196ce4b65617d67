"""The local form `sizes`: arguments that take sizes become those of the rank's piece.

An argument that spells out the shape of the output takes the shape of the output's piece. Otherwise each number in it
that is the size of a sharded dim takes that dim's local size. Operators whose sizes are spelled in another way have
an entry of their own. The form `groups` does the same to the number of groups of a convolution.
"""

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

from ..calls import Call, facts
from ..errors import UsageError
from ._operator import Operator
from ._piece import Held, Piece


def by_sizes(call: Call) -> Operator:
    """How the operator of a call runs with local sizes."""
    return _RESHAPE if facts(call.op).reshape else _OWN.get(call.packet, _ANY)


def _local_arguments(call: Call, held: Held) -> dict[str, Any]:
    output = next((piece for piece in held.outputs if piece is not None), None)
    arguments = dict(_size_arguments(call, held))
    for name, value in arguments.items():
        if output is not None and isinstance(value, list) and _spells(value, output.shape):
            sizes = [given if given == -1 else size for given, size in zip(value, output.local, strict=True)]
            return {name: sizes}
    pieces = [*held.inputs, *([output] if output else [])]
    return {
        name: [_local_size(v, pieces) for v in value]
        if isinstance(value, list)
        else _local_size(value, pieces)
        for name, value in arguments.items()
    }


def _size_arguments(call: Call, held: Held) -> Iterator[tuple[str, int | list[int]]]:
    known = facts(call.op)
    for name, value in call.given.items():
        if isinstance(value, list | tuple) and value and all(type(v) is int for v in value):
            # A list of one number is no window's size where it spells out the shape of the output.
            alone = len(value) == 1 and any(p is not None and _spells(value, p.shape) for p in held.outputs)
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


def _reshape(call: Call, held: Held) -> Any:
    """Its sizes are those of the output; whether a piece can be viewed so depends on its strides."""
    return call["self"].reshape(held.output.local)


def _repeat(call: Call, held: Held) -> dict[str, Any]:
    """Repeats along a dim that only the output has sharded: fewer of them."""
    output, whole = held.output, held["self"]
    missing = len(output.shape) - len(whole.shape)
    repeats = []
    for dim, times in enumerate(call["repeats"]):
        size = whole.local[dim - missing] if dim >= missing else 1
        repeats.append(output.local[dim] // size if size and output.cuts(dim) else times)
    return {"repeats": repeats}


def _strided(call: Call, held: Held) -> dict[str, Any]:
    """Strides of the piece: the dims nested as in the whole."""
    output = held.output
    order = sorted(range(len(output.shape)), key=lambda d: (call["stride"][d], -d))
    strides, step = [0] * len(order), 1
    for dim in order:
        strides[dim] = step
        step *= max(output.local[dim], 1)
    return {"size": list(output.local), "stride": strides}


def _group_norm(call: Call, held: Held) -> dict[str, Any]:
    piece = held["input"]
    batch, channels, *rest = piece.local
    groups = call["group"] * channels // piece.shape[1]
    return {"N": batch, "C": channels, "HxW": prod(rest), "group": groups}


def select_backward(call: Call, held: Held) -> Any:
    """The gradient lies in one slice of the output, which not every rank holds."""
    output = held.output
    dim = call["dim"] % len(output.shape)
    index = call["index"] % output.shape[dim] - output.offset[dim]
    if 0 <= index < output.local[dim]:
        return call(input_sizes=list(output.local), index=index)
    return call["grad_output"].new_zeros(output.local)


_RESHAPE, _ANY = Operator(_reshape), Operator(changes=_local_arguments)
_OWN: dict[str, Operator] = {
    "aten.repeat": Operator(changes=_repeat),
    "aten.new_empty_strided": Operator(changes=_strided),
    "aten.empty_strided": Operator(changes=_strided),
    "aten.select_backward": Operator(select_backward),
    "aten.native_group_norm": Operator(changes=_group_norm),
    "aten.native_group_norm_backward": Operator(changes=_group_norm),
}


def _groups(call: Call, held: Held) -> int:
    piece = held["input"]
    groups = call["groups"]
    return groups * piece.local[1] // piece.shape[1] if groups > 1 else groups


def _convolution(call: Call, held: Held) -> dict[str, Any]:
    return {"groups": _groups(call, held)}


def _convolution_backward(call: Call, held: Held) -> dict[str, Any]:
    changes: dict[str, Any] = {"groups": _groups(call, held)}
    if (bias := held.outputs[2]) is not None:
        changes["bias_sizes"] = list(bias.local)
    return changes


GROUPS: dict[str, Operator] = {
    "aten.convolution": Operator(changes=_convolution),
    "aten.convolution_backward": Operator(changes=_convolution_backward),
}
