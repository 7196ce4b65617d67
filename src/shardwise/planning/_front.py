"""Mesh, micro-batches, what is computed again and layouts chosen together, and the time of a step over memory.

A setup is a mesh and a number of micro-batches. The best plan of a setup without a limit on memory bounds those under
one, so setups are looked into in the order of these bounds, and under a limit only while theirs is below the best plan
that fits. A step of more micro-batches computes the same with more kernels, and moves parameters more often: it is
taken to be no faster than a step of fewer, so more are tried only where the plan of fewer does not fit as it is.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any, Literal

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from ..calls import with_leaves
from ..display import Block, Heading, Plot, Point, Shown, Table
from ..errors import UsageError, require
from ..graph import Execution, Graph, capture
from ..mesh import DEFAULT_CLUSTER, Cluster, Mesh
from ..progress import Progress
from ._amounts import bytes_of, memory_of
from ._pins import Pin
from ._plan import Plan
from ._planner import GAP, Planner, require_runnable
from ._search import DoesNotFit
from ._summary import bytes_text, time_text

_POINTS = 10  # of a front, at most
_UNLIMITED = 2**62
_ASSUMED = "not searched: taken to be no faster than with fewer micro-batches"


@dataclass(frozen=True)
class Setup:
    """A mesh, and the passes of a step."""

    mesh: Mesh
    micro_batches: int

    def __str__(self) -> str:
        return f"{self.mesh} x{self.micro_batches}"


@dataclass(frozen=True)
class Tried:
    """What is known of a setup under a limit on memory: its best plan, or why it has none that fits or was not looked
    into; where neither is known, it was not searched, since no plan of it takes less than `bound` seconds."""

    setup: Setup
    limit: int
    bound: float
    plan: Plan | None = None
    why: str = ""


@dataclass(frozen=True)
class Front(Shown):
    """The fastest plan for each limit on memory: `plans`, of which each is slower and holds less than the one before.

    `tried` says what is known of each setup.
    """

    plans: tuple[Plan, ...]
    tried: tuple[Tried, ...]

    @property
    def best(self) -> Plan:
        """The fastest plan under the largest limit."""
        return self.plans[0]

    def blocks(self) -> Iterator[Block]:
        best = self.best
        yield Heading(1, f"{best.graph.name} on {best.mesh.ranks} devices of {best.cluster.name}")
        yield Table(
            (">memory", ">step", "mesh", ">micro-batches", ">computed again", ">gap on its mesh"),
            [
                (
                    bytes_text(plan.cost.peak),
                    time_text(plan.cost.seconds),
                    str(plan.mesh),
                    str(plan.micro_batches),
                    f"{len(plan.graph.again)} calls",
                    "" if plan.bound is None else f"{max(0.0, 1 - plan.bound / plan.cost.seconds):.2%}",
                )
                for plan in self.plans
            ],
        )
        yield Heading(2, "time of a step over memory")
        costs = [plan.cost for plan in reversed(self.plans)]
        points = (Point(c.peak, c.seconds, bytes_text(c.peak), time_text(c.seconds)) for c in costs)
        yield Plot("memory of a device", "time of a step", tuple(points))
        yield Heading(2, "meshes and micro-batches")
        yield Table(
            ("mesh", ">micro-batches", ">limit", ">step", ">memory", ""),
            [
                (
                    str(each.setup.mesh),
                    str(each.setup.micro_batches),
                    bytes_text(each.limit),
                    *_outcome(each),
                )
                for each in self._shown()
            ],
        )

    def _shown(self) -> Iterator[Tried]:
        """What was tried, without saying again of a setup why it does not fit."""
        told = set[tuple[Setup, str]]()
        for each in self.tried:
            if each.plan is not None or not each.why or (each.setup, each.why) not in told:
                told.add((each.setup, each.why))
                yield each

    def to_json(self) -> dict[str, Any]:
        """The plans and what is known of each setup, as numbers."""
        return {
            "front": [
                {
                    **_described(plan),
                    "seconds": plan.cost.seconds,
                    "peak": plan.cost.peak,
                    "bound": plan.bound,
                }
                for plan in self.plans
            ],
            "tried": [
                {
                    "mesh": str(each.setup.mesh),
                    "micro_batches": each.setup.micro_batches,
                    "limit": each.limit,
                    "bound": each.bound,
                    "seconds": None if each.plan is None else each.plan.cost.seconds,
                    "peak": None if each.plan is None else each.plan.cost.peak,
                    "why": each.why,
                }
                for each in self.tried
            ],
        }


def _outcome(tried: Tried) -> tuple[str, str, str]:
    if tried.plan is not None:
        return time_text(tried.plan.cost.seconds), bytes_text(tried.plan.cost.peak), ""
    return "", "", tried.why or f"not searched: at least {time_text(tried.bound)}"


def _described(plan: Plan) -> dict[str, Any]:
    return {
        "mesh": str(plan.mesh),
        "micro_batches": plan.micro_batches,
        "again": len(plan.graph.again),
    }


def front(
    model: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    devices: int | None = None,
    mesh: Mesh | DeviceMesh | str | None = None,
    global_batch: int | None = None,
    micro_batches: int | Literal["auto"] | None = None,
    cluster: Cluster | str = DEFAULT_CLUSTER,
    memory: int | float | str | None = None,
    limits: Sequence[int | float | str] | None = None,
    training: bool = True,
    loss_fn: Callable[..., Any] | None = None,
    execution: Execution = "eager",
    recompute: str | Mapping[str, str] = "auto",
    optimizer: str = "adam",
    zero: bool = False,
    reduce: str | None = None,
    offload: bool = False,
    pin: Mapping[str, Pin] | None = None,
    gap: float = GAP,
    time_limit: float = 60.0,
    confirm: bool = True,
    progress: Progress | None = None,
) -> Front:
    """The fastest plans of a model for less and less memory, each with its own mesh and micro-batches.

    Of `devices` every mesh of one or two axes is tried, or the `mesh` that is given. `global_batch` are the samples of
    a step: the first dim of every tensor among the arguments, whatever their own batch is; with `micro_batches="auto"`,
    as by default, the plans choose in how many passes it is run. `limits` are those on memory; by default `memory`,
    three quarters of what the plan within it holds and so on, down to the least that was found to be enough.
    `time_limit` is that of each search. The first plan is confirmed by
    experiment. Other options are those of `shardwise.plan`.
    """
    passes, graph_of = graphs(
        *(model, args, kwargs, global_batch, micro_batches),
        lambda *given: capture(
            *given, training=training, loss_fn=loss_fn, execution=execution, recompute=recompute
        ),
    )
    prices = Cluster.of(cluster)
    most = memory_of(memory, prices)
    return chosen(
        graph_of,
        meshes_of(devices, mesh),
        passes,
        [most] if limits is None else list(map(bytes_of, limits)),
        falling=limits is None,
        of_planner={
            "cluster": prices,
            "optimizer": optimizer,
            "zero": zero,
            "reduce": reduce,
            "offload": offload,
            "progress": progress,
        },
        of_search={"pins": pin or {}, "gap": gap, "time_limit": time_limit},
        confirm=confirm,
    )


def meshes_of(devices: int | None, mesh: Mesh | DeviceMesh | str | None) -> list[Mesh]:
    """The mesh that is given, or all of one or two axes with a number of devices."""
    if (devices is None) == (mesh is None):
        raise UsageError("give either a mesh, such as dp=8,tp=8, or a number of devices, such as 64")
    if mesh is not None:
        return [Mesh.of(mesh)]
    require(devices, int, "devices", "a whole number, 1 or more")
    assert devices is not None
    if devices < 1:
        raise UsageError(f"devices is {devices}: it must be at least 1")
    inner = [size for size in range(2, devices) if devices % size == 0]
    return [Mesh.parse(f"dp={devices}"), *(Mesh.parse(f"dp={devices // size},tp={size}") for size in inner)]


def graphs(
    model: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    global_batch: int | None,
    micro_batches: int | Literal["auto"] | None,
    captured: Callable[..., Graph],
) -> tuple[list[int], Callable[[int], Graph]]:
    """In how many passes a step may be run, the fewest first, and the graph of a pass by their number."""
    if micro_batches is None:
        micro_batches = 1 if global_batch is None else "auto"
    if micro_batches == "auto":
        if global_batch is None:
            raise UsageError("micro_batches='auto' divides a batch: give global_batch, the samples of a step")
        require(global_batch, int, "global_batch", "a whole number, 1 or more")
        passes = [number for number in range(1, global_batch + 1) if global_batch % number == 0]
    else:
        require(micro_batches, int, "micro_batches", "a whole number, or 'auto'")
        passes = [micro_batches]
        if global_batch is not None and global_batch % max(micro_batches, 1):
            raise UsageError(
                f"global_batch is {global_batch}, which {micro_batches} micro-batches do not divide"
            )
    made: dict[int, Graph] = {}

    def graph_of(number: int) -> Graph:
        size = None if global_batch is None else global_batch // number
        if (key := size or 0) not in made:
            given = (args, kwargs) if size is None else with_batch(args, kwargs or {}, size)
            made[key] = captured(model, *given)
        return made[key]

    return passes, graph_of


def with_batch(args: Any, kwargs: Any, size: int) -> tuple[Any, Any]:
    """The arguments with so many samples: rows of their tensors, repeated or left out."""
    sizes = set[int]()

    def seen(leaf: Any) -> Any:
        if isinstance(leaf, Tensor) and leaf.ndim:
            sizes.add(leaf.shape[0])
        return leaf

    def resized(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or not leaf.ndim:
            return leaf
        rows = torch.cat([leaf.detach()] * -(-size // leaf.shape[0]))[:size]
        return rows.requires_grad_(leaf.requires_grad)

    with_leaves((args, kwargs), seen)
    if len(sizes) != 1 or 0 in sizes:
        found = ", ".join(map(str, sorted(sizes))) or "no tensors"
        raise UsageError(
            f"global_batch needs arguments whose first dim is the batch, all of one size: there are {found}"
        )
    return with_leaves((args, kwargs), resized)


def chosen(
    graph_of: Callable[[int], Graph],
    meshes: Iterable[Mesh],
    passes: Sequence[int],
    limits: Sequence[int],
    *,
    of_planner: Mapping[str, Any],
    of_search: Mapping[str, Any],
    falling: bool = False,
    compare: bool = False,
    confirm: bool = False,
) -> Front:
    """The front of the plans of some meshes and numbers of passes, with options of a `Planner` and of its `plan`;
    `compare` and `confirm` are for the first plan alone. With `falling`, each plan within the limits is followed by one
    that holds less, until none is found."""
    setups = _Setups(graph_of, list(meshes), passes, of_planner, of_search)
    if len(setups.meshes) == len(passes) == len(limits) == 1 and not falling:
        setup = Setup(setups.meshes[0], passes[0])
        plan = setups.planner(setup).within(limits[0]).plan(**of_search, compare=compare, confirm=confirm)
        return Front((plan,), (Tried(setup, limits[0], plan.bound or 0.0, plan),))
    plans: list[Plan] = []
    for limit in sorted(set(limits), reverse=True):
        if plans and plans[-1].cost.peak <= limit:
            continue
        found = setups.best(limit)
        if found is None:
            break
        plans.append(found)
    if not plans:
        raise setups.refusal()
    if falling:
        plans += setups.falling(plans[-1])
    plans = [
        plan
        for place, plan in enumerate(plans)
        if all(plan.cost.seconds < less.cost.seconds for less in plans[place + 1 :])
    ]
    first = plans[0]
    if compare or confirm:
        planner = setups.planner(Setup(first.mesh, first.micro_batches)).within(max(limits))
        plans[0] = planner.plan(**of_search, compare=compare, confirm=confirm, known=first)
    return Front(tuple(plans), tuple(setups.tried))


class _Setups:
    """Plans of setups, each searched when its turn comes."""

    def __init__(
        self,
        graph_of: Callable[[int], Graph],
        meshes: list[Mesh],
        passes: Sequence[int],
        options: Mapping[str, Any],
        search: Mapping[str, Any],
    ) -> None:
        self.graph_of, self.meshes, self.passes = graph_of, meshes, passes
        self.options, self.search = options, search
        self.tried: list[Tried] = []
        self.refused: dict[Setup, UsageError] = {}
        self._planners: dict[Setup, Planner] = {}
        self._free: dict[Setup, Plan] = {}

    def planner(self, setup: Setup) -> Planner:
        if setup not in self._planners:
            graph = self.graph_of(setup.micro_batches)
            require_runnable(graph)
            options = {**self.options, "micro_batches": setup.micro_batches, "memory": _UNLIMITED}
            self._planners[setup] = Planner(graph, setup.mesh, **options)
        return self._planners[setup]

    def free(self, setup: Setup) -> Plan:
        """The best plan without a limit on memory."""
        if setup not in self._free:
            self._free[setup] = self.planner(setup).plan(**self.search, compare=False)
        return self._free[setup]

    def best(self, limit: int) -> Plan | None:
        """The fastest plan of all setups under a limit; None if none fits."""
        best: Plan | None = None
        waiting: list[tuple[float, int, int, Setup, bool]] = []

        def wait(bound: float, setup: Setup, known: bool) -> None:
            order = self.meshes.index(setup.mesh), self.passes.index(setup.micro_batches)
            heappush(waiting, (bound, *order, setup, known))

        for mesh in self.meshes:
            wait(0.0, Setup(mesh, self.passes[0]), False)
        while waiting:
            bound, _, number, setup, known = heappop(waiting)
            proven = (self._free[setup].bound or 0.0) if known else 0.0
            least = math.inf if best is None else best.cost.seconds * (1 - self.search.get("gap", GAP))
            if bound >= least:
                self.tried.append(Tried(setup, limit, proven, why="" if proven >= least else _ASSUMED))
                continue
            if (needs := self._more_than(setup)) > limit:
                why = f"not searched: taken to need {bytes_text(needs)} or more in any number of passes"
                self.tried.append(Tried(setup, limit, proven, why=why))
                continue
            try:
                free = self.free(setup)
                if not known:
                    wait(max(bound, free.bound or 0.0), setup, True)
                    continue
                found = free.noted(memory=limit)
                if free.cost.peak > limit:
                    if number + 1 < len(self.passes):
                        wait(bound, Setup(setup.mesh, self.passes[number + 1]), False)
                    if limit < _least(self.refused.get(setup)):
                        raise self.refused[setup]
                    found = self.planner(setup).within(limit).plan(**self.search, compare=False)
            except UsageError as error:
                self.refused[setup] = error
                self.tried.append(Tried(setup, limit, proven, why=_short(error)))
                continue
            self.tried.append(Tried(setup, limit, proven, found))
            if best is None or found.cost.seconds < best.cost.seconds:
                best = found
        return best

    def _more_than(self, setup: Setup) -> int:
        """What a mesh is taken to need at least in so many passes and more: samples need at most twice as much each as
        two numbers of fewer passes say."""
        fewer = self.passes[: self.passes.index(setup.micro_batches)][-2:]
        needs = [_least(self.refused.get(Setup(setup.mesh, passes))) for passes in fewer]
        if len(needs) < 2 or not all(needs):
            return 0
        saved = (needs[0] - needs[1]) / (1 - fewer[0] / fewer[1])  # with no samples at all, at this rate
        return round(needs[0] - 2 * saved)

    def falling(self, last: Plan) -> Iterator[Plan]:
        """Plans that hold at most three quarters of what the one before holds, and at last the least that is enough."""
        for _ in range(_POINTS - 2):
            found = self.best(last.cost.peak * 3 // 4)
            if found is None:
                break
            yield (last := found)
        enough = (error.enough for error in self.refused.values() if isinstance(error, DoesNotFit))
        least = min((size for size in enough if size is not None), default=last.cost.peak)
        if least < last.cost.peak and (found := self.best(least)) is not None:
            yield found

    def refusal(self) -> UsageError:
        """Why no setup has a plan: what the one that needs least needs."""
        setup, error = min(self.refused.items(), key=lambda pair: _least(pair[1]) or math.inf)
        if len(self.refused) == 1:
            return error
        return UsageError(
            f"none of {len(self.refused)} meshes and micro-batches has a plan; of {setup}: {error}"
        )


def _least(error: UsageError | None) -> int:
    """The bytes that a setup is known to need."""
    return error.at_least if isinstance(error, DoesNotFit) else 0


def _short(error: UsageError) -> str:
    if not isinstance(error, DoesNotFit):
        return str(error)
    if error.at_least:
        return f"needs at least {bytes_text(error.at_least)}"
    return "no plan that fits was found"
