"""Where a parameter lives: its home, what every pass begins from, and how its gradients are added up.

The optimizer, its states and checkpoints see a parameter in its *home* layout. Every pass of a step begins from its
*held* layout: the home itself, or a copy with some axes gathered, which is made once per step and kept through it. A
pass ends with the gradient in the layout in which passes are *accumulated*: that of the home, or partial on some axes,
which is then reduced once per step. Sharded and held sharded is ZeRO 3 or FSDP; held whole is ZeRO 2 if gradients are
reduced to shards in every pass, and ZeRO 1 if they are once. Gradients that are added up in a wider dtype than the
parameter's are cast to that in the end.

A home may be in the memory of the host, whose processors then run the optimizer: passes begin from a copy on the
device, and gradients are moved to the host at the end of a step.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch

from ..errors import UsageError
from ..graph import Graph, TensorInfo
from ..layout import Layout
from ..mesh import Cluster
from ..placements import is_partial, is_replicate
from ..redistribution import Chain, Prices
from ._choices import Layouts

if TYPE_CHECKING:
    from ._plan import Plan


def homed(graph: Graph) -> frozenset[str]:
    """The parameters, by name in the graph, that may be held in another layout than their home: those with gradients
    that the program itself does not write."""
    written = {output.target for output in graph.outputs if output.role == "mutation"}
    made = {target: graph.tensor(value) for target, value in graph.gradients.items() if value is not None}
    return frozenset(
        entry.name
        for entry in graph.with_role("parameter")
        if entry.trainable and entry.target not in written
        if entry.target in made and made[entry.target].shape == entry.tensor.shape
    )


def may_be_held(home: Layout, held: Layout) -> bool:
    """Whether the second layout is the first with some axes gathered."""
    pairs = zip(home.placements, held.placements, strict=True)
    return all(own == other or is_replicate(other) for own, other in pairs)


def require_host(cluster: Cluster) -> None:
    """Refuse a cluster of which it is not known how fast its hosts are."""
    device = cluster.device
    if device.host_link is None or device.host_bandwidth is None:
        raise UsageError(
            f"offload needs to know the host of cluster {cluster.name!r}: give its device host_link and "
            "host_bandwidth, in bytes per second"
        )


def may_be_accumulated(home: Layout, added: Layout) -> bool:
    """Whether the second layout is the first with sums over some axes that are still to be reduced."""
    pairs = zip(home.placements, added.placements, strict=True)
    return all(own == other or is_partial(other) for own, other in pairs)


def pairs_of(layouts: Layouts, homes: np.ndarray, others: np.ndarray, *, gathered: bool) -> np.ndarray:
    """Which homes go with which held layouts, or unless `gathered` with which layouts of gradients."""
    fits = may_be_held if gathered else may_be_accumulated
    found = [[fits(layouts.all[a], layouts.all[b]) for b in others.tolist()] for a in homes.tolist()]
    return np.array(found, bool).reshape(len(homes), len(others))


@dataclass(frozen=True)
class OnceMove:
    """A redistribution that happens once per step: of a parameter from its home to what is held, or of its gradients,
    added up, to its home, where they are cast to `dtype`."""

    name: str
    tensor: TensorInfo
    change: Chain
    dtype: torch.dtype


@dataclass(frozen=True)
class Homes:
    """What a plan does once per step: parameters are gathered before the first pass, gradients reduced after the last,
    each in the order of the graph's inputs."""

    plan: "Plan"

    @cached_property
    def gathers(self) -> tuple[OnceMove, ...]:
        return tuple(self._moves(gathered=True))

    @cached_property
    def reductions(self) -> tuple[OnceMove, ...]:
        return tuple(self._moves(gathered=False))

    @property
    def moves(self) -> tuple[OnceMove, ...]:
        return (*self.gathers, *self.reductions)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The parameters that passes do not begin from as they are at home, or whose gradients they do not end with as
        the optimizer has them."""
        wider = {move.name for move in self.reductions}
        known = self.plan.graph.with_role("parameter")
        return tuple(entry.name for entry in known if entry.name in self.plan.homes or entry.name in wider)

    @cached_property
    def accumulated(self) -> dict[str, Layout]:
        """The layout in which the gradients of each parameter that has some are added up, by name in the graph."""
        plan = self.plan
        named = {entry.target: entry.name for entry in plan.graph.with_role("parameter")}
        given = zip(plan.graph.outputs, plan.outputs, strict=True)
        return {
            named[output.target]: layout
            for output, layout in given
            if output.role == "gradient" and layout is not None and output.target in named
        }

    def differs(self, name: str) -> bool:
        """Whether passes begin from a parameter, or end with its gradient, in another layout than its home's, or in
        other memory."""
        if name in self.plan.on_host:
            return True
        return not self.plan.inputs[name] == self.plan.home(name) == self.accumulated[name]

    def _moves(self, *, gathered: bool) -> Iterator[OnceMove]:
        prices = Prices(self.plan.cluster)
        gradients = self.plan.graph.gradients
        for entry in self.plan.graph.with_role("parameter"):
            home, tensor = self.plan.home(entry.name), entry.tensor
            ends = home, self.plan.inputs[entry.name]
            if not gathered:
                if (value := gradients.get(entry.target)) is None:
                    continue
                ends, tensor = (self.accumulated[entry.name], home), self.plan.graph.tensor(value)
            moves = ends[0] != ends[1] or tensor.dtype != entry.tensor.dtype
            if moves or entry.name in self.plan.on_host:
                change = prices.chain(*ends, tensor.shape, tensor.dtype.itemsize)
                yield OnceMove(entry.name, tensor, change, entry.tensor.dtype)
