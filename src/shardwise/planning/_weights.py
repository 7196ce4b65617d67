"""What a second counts in the problem of a plan whose collectives run beside calls, so that its bound is one of theirs.

Give each link a rate at each place of a step: at each call, and between calls; the rates of all links at a place are
together at most 1. A collective that may run beside calls counts its seconds times the least rate in its window, of
all its links together if it uses several; one that calls wait for alone counts what the rates of other links leave of
1. So while calls wait, collectives count no more than the time. A call is slowed by a collective beside it, by g
seconds for each of the collective's. Let it count fully for rates up to g, and (1 - r) / (1 - g) of its seconds for a
sum of rates r: then it counts, with what runs beside it, no more than it takes. So for all rates the sum of what calls
and collectives count is a lower bound on every schedule of a plan; it is a sum over choices, and the solver, which
knows nothing of time, bounds it over all plans.

A chain, of collectives that run one after another (`_chains`), is like one more link: it has rates of its own in its
window, of which all that belongs to it counts the sum with those of links.

With the rate of g everywhere, calls count fully, and collectives count where nothing runs beside them. Higher rates in
a window say that calls there are too short to hide what could run beside them. Which rates bound best `_rates` finds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ..graph import Input, Node, Output, Ref
from ._chains import ChainAt, Chains
from ._prices import SLOWDOWN
from ._windows import Window, Windows

BESIDE = SLOWDOWN / (1 + SLOWDOWN)  # what a second beside calls costs them
PARTS = 10**6  # rates are whole parts of so many: equal sums are then equal


class Counts(NamedTuple):
    """What a second of a collective counts, by the mask of the axes that it runs along; a `bucketed` one may be joined
    with others."""

    along: tuple[float, ...]
    bucketed: bool


@dataclass(frozen=True, eq=False)
class Weights:
    """`links` are the names of the links of a mesh's axes; `calls[l]` and `between[l]` the rates of the l-th link (in
    order of appearance) in parts, at each call that takes time and before each (and after the last); `along` those of
    kinds of chains, at each kind of call and of place between calls."""

    chains: Chains
    links: tuple[str, ...]
    calls: np.ndarray
    between: np.ndarray
    along: Mapping[int, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)

    @property
    def windows(self) -> Windows:
        return self.chains.windows

    @classmethod
    def even(cls, chains: Chains, links: tuple[str, ...], rate: float) -> "Weights":
        """The same rate at all places, for all links together."""
        count, end = len(set(links)), chains.windows.end
        calls, between = (np.full((count, n), int(rate * PARTS / count)) for n in (end, end + 1))
        return cls(chains, links, calls, between)

    @cached_property
    def _factors(self) -> np.ndarray:
        """What a second of each call counts."""
        chained, _ = self._chained
        left = 1 - (self.calls.sum(axis=0) + chained) / PARTS
        assert (left >= 0).all()
        return np.minimum(1.0, left / (1 - BESIDE))

    @cached_property
    def _chained(self) -> tuple[np.ndarray, np.ndarray]:
        """The rates of all chains together, at calls and between them."""
        calls, between = (np.zeros(n, np.int64) for n in (self.windows.end, self.windows.end + 1))
        for kind in self.along:
            for window in self.chains.of_kind[kind]:
                own_calls, own_between = self._own(kind, window)
                calls[window.calls] += own_calls
                between[window.gaps] += own_between
        assert (self.between.sum(axis=0) + between <= PARTS).all()
        return calls, between

    def _own(self, kind: int, window: Window) -> tuple[np.ndarray, np.ndarray]:
        calls, between = self.along[kind]
        return calls[self.windows.kind[window.calls]], between[self.windows.gap[window.gaps]]

    def of_call(self, node: Node) -> float:
        return 1.0 if node.facts.view else float(self._factors[self.windows.at[node.name]])

    def of_uses(self, ref: Ref, users: Sequence[Node]) -> Counts:
        """What moves of a tensor count, for calls that share it."""
        given = isinstance(self.windows.graph[self.windows.graph.base(ref).name], Input)
        return Counts(self._of(self.windows.of_uses(ref, users), self.chains.of(ref, users)), given)

    def of_output(self, output: Output) -> Counts:
        return Counts(self._of(self.windows.of_output(output)), output.role == "gradient")

    def _of(self, window: Window, chains: tuple[ChainAt, ...] = ()) -> tuple[float, ...]:
        """What a second of what is part of some chains counts, by the mask of axes."""
        key = window, tuple(chain for chain in chains if chain[0] in self.along)
        if key not in self._rates:
            between, calls = self.between[:, window.gaps], self.calls[:, window.calls]
            mine, mine_between = self._mine(*key)
            least = {0: 0}
            for used in set(self.masks) - {0}:
                own = np.array([used >> link & 1 for link in range(len(between))], bool)
                if window.beside:
                    least[used] = min(
                        (between[own].sum(axis=0) + mine_between).min(), (calls[own].sum(axis=0) + mine).min()
                    )
                else:  # calls wait for it alone: it counts what others do not
                    others = self._chained[1][window.gaps] - mine_between
                    least[used] = PARTS - (between[~own].sum(axis=0) + others).max()
            self._rates[key] = tuple(float(least[used] / PARTS) for used in self.masks)
        return self._rates[key]

    def _mine(self, window: Window, chains: tuple[ChainAt, ...]) -> tuple[np.ndarray, np.ndarray]:
        """The rates of some chains together at the calls of a window, and between them."""
        length = window.last - window.first
        calls, between = np.zeros(length, np.int64), np.zeros(length + 1, np.int64)
        for kind, whole in chains:
            assert whole.first == window.first  # where the tensor is made
            for parts, rates in zip((calls, between), self._own(kind, whole), strict=True):
                common = min(len(parts), len(rates))
                parts[:common] += rates[:common]
        return calls, between

    @cached_property
    def masks(self) -> tuple[int, ...]:
        """For each mask of axes that of the links that they use."""
        return links_of(self.links)

    @cached_property
    def _rates(self) -> dict[tuple[Window, tuple[ChainAt, ...]], tuple[float, ...]]:
        return {}


def links_of(links: Sequence[str]) -> tuple[int, ...]:
    """For each mask of axes that of the links that they use, numbered in order of appearance."""
    numbers = {name: 1 << number for number, name in enumerate(dict.fromkeys(links))}
    used = [0]
    for name in links:
        used += [mask | numbers[name] for mask in used]
    return tuple(used)
