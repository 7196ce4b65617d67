"""What a plan decides to compute again: copies of calls of forward, of which each may be left out.

The problem has every call that backward may run again twice. The choices of a copy are three kinds: it is absent, since
nothing reads it; it is kept, which is to say that what the call of forward made is still there; or it runs again, by
any of its rows. Whoever reads it sees the layout that it then has, and none where it is absent.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..graph import Graph, chosen_again, copy_name, may_run_again, run_again
from ..solver import FORBIDDEN
from ._choices import ABSENT, Choices


@dataclass(frozen=True)
class Recomputable:
    """A graph of which a plan decides what backward computes again, and (`whole`) with all that it may.

    `copies` are the copies that may be left out, each with the call that it is a copy of.
    """

    graph: Graph

    @cached_property
    def may_run(self) -> frozenset[str]:
        return may_run_again(self.graph)

    @cached_property
    def whole(self) -> Graph:
        return run_again(self.graph, self.may_run)

    @cached_property
    def copies(self) -> Mapping[str, str]:
        """Views take no time: one that a call which always runs reads does, too."""
        found = {copy_name(self.graph, name): name for name in self.may_run}
        found = {copy: name for copy, name in found.items() if copy in self.whole.makers}
        for node in reversed(self.whole.nodes):
            if node.name in found and node.facts.view:
                readers = (user for ref in node.results for user in self.whole.users.get(ref, ()))
                if any(user.name not in found for user in readers):
                    del found[node.name]
        return found

    def chosen(self, run: Iterable[str]) -> Graph:
        """The graph with those of the copies that run."""
        run = set(run)
        copies = self._all_copies
        names = frozenset(name for copy, name in copies.items() if copy in run or copy not in self.copies)
        if names not in self._graphs:
            self._graphs[names] = chosen_again(self.graph, names)
        return self._graphs[names]

    @cached_property
    def _all_copies(self) -> Mapping[str, str]:
        return {copy_name(self.graph, name): name for name in self.may_run}

    @cached_property
    def _graphs(self) -> dict[frozenset[str], Graph]:
        return {}


@dataclass(frozen=True, eq=False)
class CopyChoices(Choices):
    """Choices of a copy: first absent (if it may be), then `kept` ones, by the layouts of the call's results, then
    those of running it again."""

    absent: int = 0
    kept: int = 0

    @property
    def run(self) -> int:
        """The first choice of running it again."""
        return self.absent + self.kept

    @classmethod
    def of(cls, again: Choices, original: Choices, *, absent: bool, kept: bool) -> "CopyChoices":
        outputs = [column for column in original.outputs if column is not None]
        layouts = np.unique(np.stack(outputs), axis=1) if kept else np.zeros((len(outputs), 0), np.int64)
        number, none = layouts.shape[1], np.full(int(absent), ABSENT)
        rest = iter(layouts)
        made = [
            None if column is None else np.concatenate([none, next(rest), column]) for column in again.outputs
        ]
        nothing = np.full(int(absent) + number, ABSENT)
        rows = np.zeros((len(nothing), again.per_axis.shape[1]), again.per_axis.dtype)
        return cls(
            np.concatenate([rows, again.per_axis]),
            again.rows,
            tuple(np.concatenate([nothing, column]) for column in again.inputs),
            tuple(made),
            int(absent),
            number,
        )

    def extended(self, of_run: np.ndarray, rest: int | bool) -> np.ndarray:
        """Values for the choices of running it again, and for those before them."""
        return np.concatenate([np.full(self.run, rest, of_run.dtype), of_run])

    def ties(self, original: Choices) -> np.ndarray:
        """What is kept has the layout in which it was made."""
        table = np.zeros((len(original), len(self)), np.int64)
        for column, own in zip(original.outputs, self.outputs, strict=True):
            if column is not None and own is not None:
                kept = own[self.absent : self.run]
                wrong = column[:, None] != kept[None, :]
                table[:, self.absent : self.run][wrong] = FORBIDDEN
        return table
