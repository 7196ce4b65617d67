"""Chains: the collectives that bring one tensor to one call. They run one after another, whatever links they use.

A tensor is first brought into a layout that several calls share, then into that of each. What is done for one of the
calls takes no longer than the window between the making of the tensor and its use: also where it runs on two links, of
which each alone would have the time. Chains at corresponding places of equal layers are of one kind. Only those in
short windows beside calls are known: in long ones there is time.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np

from ..graph import Node, Ref
from ._windows import Window, Windows

_LONGEST = 24  # calls of a window

ChainAt = tuple[int, Window]  # its kind and its window


class Chains:
    """The chains of a graph, numbered by kind."""

    def __init__(self, windows: Windows) -> None:
        self.windows = windows
        self.all: dict[tuple[Ref, str], ChainAt] = {}
        kinds: dict[object, int] = {}
        for ref, user in self._pairs():
            window = windows.of_uses(ref, [user])
            if window.beside and window.last - window.first <= _LONGEST:
                places = windows.kind[window.calls].tobytes(), windows.gap[window.gaps].tobytes()
                key = windows.alike[ref.name], ref.output, windows.alike[user.name], places
                self.all[ref, user.name] = kinds.setdefault(key, len(kinds)), window
        self.of_kind: list[list[Window]] = [[] for _ in kinds]
        for kind, window in self.all.values():
            self.of_kind[kind].append(window)

    def _pairs(self) -> Iterator[tuple[Ref, Node]]:
        """Tensors that calls make, and the calls that take them, once each."""
        for ref, users in self.windows.graph.users.items():
            if ref.name in self.windows.alike:
                yield from ((ref, user) for user in users if user.inputs.count(ref) == 1)

    def of(self, ref: Ref, users: Sequence[Node]) -> tuple[ChainAt, ...]:
        """Those of which a redistribution of a tensor for some users is part."""
        found = (self.all.get((ref, user.name)) for user in users)
        return tuple(chain for chain in found if chain is not None)

    def places(self, kind: int) -> tuple[dict[int, int], dict[int, int]]:
        """The kinds of calls, and of places between calls, at which there are chains of a kind, and how many at once
        at most."""
        if kind not in self._places:
            self._places[kind] = self._most(kind)
        return self._places[kind]

    @cached_property
    def _places(self) -> dict[int, tuple[dict[int, int], dict[int, int]]]:
        return {}

    def _most(self, kind: int) -> tuple[dict[int, int], dict[int, int]]:
        windows = self.windows
        calls, gaps = np.zeros(windows.end, np.int64), np.zeros(windows.end + 1, np.int64)
        for window in self.of_kind[kind]:
            calls[window.calls] += 1
            gaps[window.gaps] += 1
        most: tuple[dict[int, int], dict[int, int]] = {}, {}
        for found, count, kinds in zip(most, (calls, gaps), (windows.kind, windows.gap), strict=True):
            for place in np.flatnonzero(count).tolist():
                own = int(kinds[place])
                found[own] = max(found.get(own, 0), int(count[place]))
        return most
