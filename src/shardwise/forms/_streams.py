"""Random numbers that do not depend on the mesh: every element's draw is a function of a seed and its own position.

A rank computes the draws of the elements it holds, from their positions in the whole tensor. So replicas draw the same
numbers, shards draw differently, and one device draws what a hundred would: a plan with dropout can be compared with
the unsharded run number by number.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..calls import Call, Draw, facts

Runs = Sequence[tuple[int, int]]


def draws_whole(call: Call) -> bool:
    """True for a call that may run on whole tensors alone, because its draws do not follow from positions."""
    known = facts(call.op)
    if not known.random or known.draws is not None:
        return False
    return known.dropout is None or call[known.dropout] != 0


def draw(call: Call, seed: Tensor, number: int, shape: Sequence[int], runs: Sequence[Runs]) -> Any:
    """What a random operator gives for the piece of a tensor of `shape` that holds `runs` of each dim.

    `number` tells the operators of one program apart. Operators without a draw of their own are run on whole tensors,
    from a generator that starts at the seed.
    """
    what = facts(call.op).draws
    if what is not None:
        stream = _Stream(seed, number, tuple(shape), tuple(map(tuple, runs)))
        return _DRAWS[what](stream, call)
    devices = [seed.device] if seed.device.type != "cpu" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(int(seed) * 1_000_003 + number)
        return call()


def uniform(seed: Tensor, shape: Sequence[int], runs: Sequence[Runs]) -> Tensor:
    """Draws from 0 to before 1, in double precision, for the piece of a tensor of `shape` that holds `runs`."""
    return _Stream(seed, 0, tuple(shape), tuple(map(tuple, runs))).uniform()


class _Stream:
    """The draws of one operator for one piece."""

    def __init__(self, seed: Tensor, number: int, shape: tuple[int, ...], runs: tuple[Any, ...]) -> None:
        self.seed, self.number, self.shape, self.runs = seed, number, shape, runs

    def bits(self, lane: int = 0) -> Tensor:
        """53 even random bits of every element, as an integer."""
        index = self._positions()
        index = _mixed(index * 4 + lane + _mixed(_mixed(self.seed.long()) + self.number))
        return (index >> 11) & ((1 << 53) - 1)

    def uniform(self, lane: int = 0) -> Tensor:
        """From 0 to before 1, in double precision."""
        return self.bits(lane).double() * 2.0**-53

    def normal(self) -> Tensor:
        radius = (-2 * torch.log1p(-self.uniform(0))).sqrt()
        return radius * torch.cos(2 * math.pi * self.uniform(1))

    def _positions(self) -> Tensor:
        """The place of every element in the whole tensor, counted row by row."""
        device = self.seed.device
        index = torch.zeros((), dtype=torch.int64, device=device)
        for size, runs in zip(self.shape, self.runs, strict=True):
            parts = [torch.arange(start, stop, device=device) for start, stop in runs or [(0, 0)]]
            index = index.unsqueeze(-1) * size + torch.cat(parts)
        return index


def _mixed(x: Tensor) -> Tensor:
    """A mixing of 64 bits in which every bit depends on every other (the finaliser of splitmix64)."""
    x = x + -0x61C8864680B583EB
    x = (x ^ _shifted(x, 30)) * -0x40A7B892E31B1A47
    x = (x ^ _shifted(x, 27)) * -0x6B2FB644ECCEEE15
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, bits: int) -> Tensor:
    """To the right, with zeros coming in."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _dtype(call: Call, otherwise: torch.dtype) -> torch.dtype:
    """The dtype argument, else that of the tensor whose shape is drawn, else the default."""
    if "dtype" in call and isinstance(call["dtype"], torch.dtype):
        return call["dtype"]
    return call["self"].dtype if call.has("self") else otherwise


def _dropout(stream: _Stream, call: Call) -> tuple[Tensor, Tensor]:
    x, p = call["input"], call["p"]
    if call["train"] is False:
        return x, torch.ones_like(x, dtype=torch.bool)
    mask = stream.uniform() >= p
    scale = 0.0 if p == 1 else 1.0 / (1.0 - p)
    return x * mask * scale, mask


def _bernoulli(stream: _Stream, call: Call) -> Tensor:
    x = call["self"]
    return (stream.uniform() < call.arguments.get("p", x)).to(x.dtype)


def _rand(stream: _Stream, call: Call) -> Tensor:
    return stream.uniform().to(_dtype(call, torch.get_default_dtype()))


def _randn(stream: _Stream, call: Call) -> Tensor:
    return stream.normal().to(_dtype(call, torch.get_default_dtype()))


def _uniform(stream: _Stream, call: Call) -> Tensor:
    low, high = call["from"], call["to"]
    return (low + stream.uniform() * (high - low)).to(call["self"].dtype)


def _normal(stream: _Stream, call: Call) -> Tensor:
    return (call["mean"] + stream.normal() * call["std"]).to(call["self"].dtype)


def _exponential(stream: _Stream, call: Call) -> Tensor:
    """Never zero: its logarithm is taken."""
    return (-torch.log1p(-stream.uniform()).clamp(max=-(2.0**-53)) / call["lambd"]).to(call["self"].dtype)


def _randint(stream: _Stream, call: Call) -> Tensor:
    low, high = call.arguments.get("low", 0), call["high"]
    return (low + stream.bits() % (high - low)).to(_dtype(call, torch.int64))


_DRAWS: dict[Draw, Callable[[_Stream, Call], Any]] = {
    "dropout": _dropout,
    "bernoulli": _bernoulli,
    "rand": _rand,
    "randn": _randn,
    "uniform": _uniform,
    "normal": _normal,
    "exponential": _exponential,
    "randint": _randint,
}
