"""`plan`: capture, choices, prices, the problem, its solution, and the plan it stands for."""

import math
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from torch.distributed.device_mesh import DeviceMesh

from ..errors import UsageError, require, require_given
from ..expansion import Choice
from ..experiments import Confirmations
from ..graph import (
    Execution,
    Graph,
    Ref,
    autocast_to,
    capture,
    reduced_dtype,
    with_reduced_gradients,
)
from ..layout import Layout, Sharding
from ..mesh import DEFAULT_CLUSTER, Cluster, Mesh
from ..progress import Progress, silent
from ..solver import Solution, solve
from ._again import CopyChoices, Recomputable
from ._baselines import BaselineRestriction, baselines
from ._choices import Layouts
from ._confirm import confirmed_plan
from ._elsewhere import Elsewhere, require_elsewhere
from ._explain import all_considered
from ._fold import Folded, fold
from ._homes import require_host
from ._items import CopyItem, Items, Restriction
from ._kinds import Kinds
from ._offers import Offers
from ._order import with_late_gradients
from ._overlap import with_overlap
from ._pins import Pin, Pins
from ._plan import BaselineCost, Copy, Plan
from ._preferences import preferred
from ._prices import OptimizerCost, host_seconds
from ._proposal import PinsAndShardings, Proposal, with_shardings
from ._rates import Rates
from ._search import STEPS, Clock, Search, Unsolved
from ._timeline import links
from ._weights import Weights
from ._windows import Windows

if TYPE_CHECKING:
    from ._pipeline import Pipeline

GAP = 0.002  # of the solver, below which a better plan is not worth waiting for
COMPARED = 2_000  # steps that a search for a baseline must pay for, which is not run
MANY = 2_000  # items from which layers that are equal share their choices


def plan(
    model: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    mesh: Mesh | DeviceMesh | str | None = None,
    devices: int | None = None,
    cluster: Cluster | str = DEFAULT_CLUSTER,
    memory: int | float | str | None = None,
    training: bool = True,
    loss_fn: Callable[..., Any] | None = None,
    execution: Execution = "eager",
    recompute: str | Mapping[str, str] = "none",
    split_products: bool = False,
    optimizer: str = "adam",
    micro_batches: int | Literal["auto"] | None = None,
    global_batch: int | None = None,
    zero: bool = False,
    reduce: str | None = None,
    offload: bool = False,
    schedule: str = "1F1B",
    stages: int | None = None,
    pin: Mapping[str, Pin] | None = None,
    shardings: Mapping[str, Sharding | str] | None = None,
    elsewhere: Mapping[str, Elsewhere] | None = None,
    share_layers: bool | None = None,
    overlap: bool = False,
    gap: float = GAP,
    time_limit: float = 60.0,
    compare: bool = True,
    confirm: bool = True,
    debug: bool = False,
    progress: Progress | None = None,
) -> "Plan | Pipeline":
    """The cheapest way to run a model, an `nn.Module` or a function, on a mesh.

    `mesh` has to be given: named axes, such as `"dp=2,tp=2"`; or the number of `devices`, of which every mesh of one or
    two axes is a candidate, and in `micro_batches` those with the axis `pp`, too. On a mesh with that axis the model
    runs in stages, a `Pipeline`: `schedule` is one of torch's, or `auto`, and there are so many `stages` at each place
    along `pp`, by default one or two; it is trained in `micro_batches`. Prices are those of `cluster`: a preset, a JSON
    file or a `Cluster`. The model is captured with its backward if `training`, and `optimizer` is then one of none,
    sgd, momentum and adam, with `+master` for a
    copy of the weights in float32. With `micro_batches` a step is so many calls with such arguments, each with its
    backward: gradients are added up, and the optimizer runs once. With `global_batch`, the samples of a step, the
    arguments of a pass are rows of those given, repeated or left out, and `micro_batches` is chosen with the plan,
    unless it is given. With `zero`, states of the optimizer may be sharded where parameters are not: the plan decides
    for each parameter whether it is gathered in every pass or once per step, and its gradients reduced in every pass or
    once. With `reduce="float32"`, gradients of parameters in a narrower dtype are cast to it before they are added up
    over ranks and over passes, and cast back afterwards. With `offload`, parameters and their states may be in the
    memory of the host, as far as others do not fit: the host's processors run their update, and passes begin from a
    copy. `loss_fn` is a function of the model's result where the loss is computed outside of the model, as for
    `capture`. `execution` is how every device runs its program: `eager`, or `compiled` by torch.compile, which fuses
    calls into kernels. `recompute` names the blocks of which backward computes again what it needs: `full`,
    `selective`, or by pattern `{"layers.[0-9]": "full"}`; with `auto` the plan decides that call by call, together with
    the layouts, so that it fits in memory. With `split_products`, products of linear layers may be split against the
    collectives that bring what they read or take what they make. `memory` is what each device may hold (`"80GB"`; by
    default all that the cluster's device has). `pin` fixes layouts of parameters, inputs, outputs and nodes by name
    pattern: `{"x": "S(0), R", "*.weight": {"tp": "R"}}`. `shardings` are
    given in the same way, as `{"x": "[{dp}, {}]", "*.up.weight": "[{tp}, {?}]"}`, and propagated to all other tensors:
    the plan follows them, and where they conflict prices decide. `elsewhere` says which arguments come from other
    meshes, and which results go to them: `{"x": Elsewhere("loader=2", "S(0)")}`. With `share_layers`, equal layers
    share their choices, as they do by default in large graphs. With `overlap`, collectives run beside calls where they
    can: parameters are gathered before they are needed, gradients reduced while backward goes on, within the memory
    that is left; plans are compared, and bounded, by the time of such a step. The search stops once the plan is known
    to lie within `gap` of the best, or, unless `gap` is 0, once a better one could save less in 20,000 steps than the
    search takes; all searches together (within memory, of baselines) have `time_limit` seconds. With `compare` the
    baselines are worked out too, and the plan costs no more than any of them that fits. With `confirm`, each distinct
    call is run at a small size with the rows chosen for it; what that refutes is not used, and shown. With `debug`,
    every node is printed with what was considered for it. `progress` is called as each stage goes on.

    >>> import torch
    >>> best = plan(torch.nn.Linear(64, 64), (torch.rand(32, 64),), mesh="dp=2,tp=2", cluster="laptop")
    >>> print(best.mesh, len(best.choices) == len(best.graph.nodes))
    dp=2,tp=2 True
    """
    from ._devices import plan_devices
    from ._front import chosen, graphs, meshes_of
    from ._pipeline import AXIS
    from ._pipelining import may_have_stages, plan_pipeline

    if devices is None:
        require_given(mesh, "plan", "a mesh", "shardwise.plan(model, args, mesh='dp=2,tp=2')")
    meshes = meshes_of(devices, mesh)
    in_stages = AXIS in meshes[0]

    def graphs_with(boundaries: bool) -> tuple[list[int], Callable[[int], Graph]]:
        return graphs(
            *(model, args, kwargs, global_batch, micro_batches),
            lambda *given: capture(
                *given,
                training=training,
                loss_fn=loss_fn,
                execution=execution,
                recompute=recompute,
                boundaries=boundaries,
                split_products=split_products,
            ),
        )

    passes, graph_of = graphs_with(in_stages)
    prices = Cluster.of(cluster)
    alone = {"training=False": not training, "shardings": shardings, "elsewhere": elsewhere}
    may_be_staged = may_have_stages(meshes[0], execution, {**alone, "overlap": overlap, "offload": offload})
    if in_stages:
        return plan_pipeline(
            graph_of(passes[-1]),
            mesh=meshes[0],
            cluster=prices,
            memory=memory_of(memory, prices),
            optimizer=optimizer,
            micro_batches=passes[-1],
            schedule=schedule,
            stages=stages,
            zero=zero,
            reduce=reduce,
            pins=pin,
            of_search={"share_layers": share_layers, "gap": gap, "time_limit": time_limit},
            confirm=confirm,
            progress=progress,
        )
    of_planner: dict[str, Any] = {
        "cluster": prices,
        "optimizer": optimizer,
        "zero": zero,
        "reduce": reduce,
        "offload": offload,
        "elsewhere": elsewhere,
        "overlap": overlap,
        "progress": progress,
    }
    of_search: dict[str, Any] = {
        "pins": pin or {},
        "shardings": shardings,
        "share_layers": share_layers,
        "gap": gap,
        "time_limit": time_limit,
    }
    limit = memory_of(memory, prices)
    options: dict[str, Any] = {
        "of_planner": of_planner,
        "of_search": of_search,
        "compare": compare,
        "confirm": confirm,
    }
    made: Plan | Pipeline
    if devices is None or not may_be_staged:
        made = chosen(graph_of, meshes, passes, [limit], **options).best
    else:
        staged_of = graphs_with(True)[1]
        made = plan_devices(
            *(graph_of, staged_of, devices, passes), memory=limit, schedule=schedule, stages=stages, **options
        )
    if debug and isinstance(made, Plan):
        print(all_considered(made))
    return made


def plan_graph(
    graph: Graph,
    *,
    mesh: Mesh | DeviceMesh | str,
    cluster: Cluster | str = DEFAULT_CLUSTER,
    memory: int | float | str | None = None,
    optimizer: str = "adam",
    micro_batches: int = 1,
    zero: bool = False,
    reduce: str | None = None,
    offload: bool = False,
    pin: Mapping[str, Pin] | None = None,
    shardings: Mapping[str, Sharding | str] | None = None,
    elsewhere: Mapping[str, Elsewhere] | None = None,
    share_layers: bool | None = None,
    overlap: bool = False,
    gap: float = GAP,
    time_limit: float = 60.0,
    compare: bool = True,
    confirm: bool = True,
    debug: bool = False,
    progress: Progress | None = None,
) -> Plan:
    """The cheapest plan of a captured graph on a mesh; options as for `shardwise.plan`."""
    require_runnable(graph)
    planner = Planner(
        *(graph, Mesh.of(mesh), Cluster.of(cluster)),
        memory=memory,
        optimizer=optimizer,
        micro_batches=micro_batches,
        zero=zero,
        reduce=reduce,
        offload=offload,
        progress=progress,
        elsewhere=elsewhere,
        overlap=overlap,
    )
    made = planner.plan(
        pin or {},
        shardings=shardings,
        share_layers=share_layers,
        gap=gap,
        time_limit=time_limit,
        compare=compare,
        confirm=confirm,
    )
    if debug:
        print(all_considered(made))
    return made


def require_runnable(graph: Graph) -> None:
    """Refuse a graph whose plans cannot be run."""
    if graph.execution == "regional":
        raise UsageError(
            "programs of plans are run eager or compiled as a whole: execution='regional' is for shardwise.price"
        )


class Planner:
    """What plans of one graph on one mesh have in common: rows, choices and prices."""

    @autocast_to(None)
    def __init__(
        self,
        graph: Graph,
        mesh: Mesh,
        cluster: Cluster,
        *,
        memory: int | float | str | None = None,
        optimizer: str = "adam",
        micro_batches: int = 1,
        in_flight: int = 1,
        zero: bool = False,
        reduce: str | None = None,
        offload: bool = False,
        progress: Progress | None = None,
        elsewhere: Mapping[str, Elsewhere] | None = None,
        overlap: bool = False,
        late_gradients: bool = True,
    ) -> None:
        require(micro_batches, int, "micro_batches", "a whole number, 1 or more")
        graph = with_reduced_gradients(graph, reduced_dtype(reduce), summed=micro_batches > 1)
        self.captured, self.overlap, self.late_gradients = graph, overlap, overlap and late_gradients
        self.recomputable = Recomputable(with_late_gradients(graph) if self.late_gradients else graph)
        self.graph, self.mesh, self.cluster = self.recomputable.whole, mesh, cluster
        self.elsewhere = elsewhere or {}
        require_elsewhere(self.elsewhere, graph)
        self.memory = memory_of(memory, cluster)
        self.optimizer = OptimizerCost.of(optimizer)
        if micro_batches < 1:
            raise UsageError(f"micro_batches is {micro_batches}: give 1 or more")
        if micro_batches > 1 and not graph.training:
            raise UsageError(
                "micro_batches is for training: a graph without backward has no gradients to accumulate"
            )
        self.micro_batches, self.in_flight, self.zero = micro_batches, in_flight, zero
        self.offload = offload
        if offload:
            require_host(cluster)
        self.progress = progress or silent
        self.offers = Offers(self.graph, alone=mesh.ranks == 1)
        self.layouts = Layouts(mesh)
        self.kinds = Kinds(self.graph, self.layouts, cluster)
        self.seconds: dict[str, float] = {}
        self.most_choices = 0

    def within(self, memory: int) -> "Planner":
        """The planner with another limit on memory; what has been worked out is shared."""
        other = copy(self)
        other.memory = memory
        return other

    @autocast_to(None)
    def plan(
        self,
        pins: Mapping[str, Pin],
        *,
        shardings: Mapping[str, Sharding | str] | None = None,
        share_layers: bool | None = None,
        gap: float = GAP,
        time_limit: float = 60.0,
        compare: bool = True,
        confirm: bool = False,
        confirmations: Confirmations | None = None,
        known: Plan | None = None,
    ) -> Plan:
        """The cheapest plan. One that is `known` to be it is only compared and confirmed.

        With overlap, gradients of parameters come late; where that makes the plan slower, all plans of the order in
        which the model was captured are searched, too.
        """
        options: dict[str, Any] = {
            "shardings": shardings,
            "share_layers": share_layers,
            "gap": gap,
            "time_limit": time_limit,
        }
        options |= {"compare": compare, "confirm": confirm, "confirmations": confirmations}
        made = self._planned(pins, known=known, **options)
        if self._in_faster_order(made).cost.seconds >= made.cost.seconds * (1 - gap):
            return made
        return preferred(made, self._in_captured_order().plan(pins, **options))

    def _in_captured_order(self) -> "Planner":
        return Planner(
            *(self.captured, self.mesh, self.cluster),
            memory=self.memory,
            optimizer=self.optimizer.name,
            micro_batches=self.micro_batches,
            in_flight=self.in_flight,
            zero=self.zero,
            offload=self.offload,
            progress=self.progress,
            elsewhere=self.elsewhere,
            overlap=self.overlap,
            late_gradients=False,
        )

    def _in_faster_order(self, plan: Plan) -> Plan:
        """A plan with gradients of parameters late, or with its calls as they were captured."""
        if not self.late_gradients:
            return plan
        graph = Recomputable(self.captured).chosen(plan.choices)
        other = with_overlap(replace(plan, graph=graph, ahead=None))
        fits = plan.memory is None or other.cost.peak <= plan.memory
        return other if fits and other.cost.seconds < plan.cost.seconds else plan

    def _planned(
        self,
        pins: Mapping[str, Pin],
        *,
        shardings: Mapping[str, Sharding | str] | None,
        share_layers: bool | None,
        gap: float,
        time_limit: float,
        compare: bool,
        confirm: bool,
        confirmations: Confirmations | None,
        known: Plan | None,
    ) -> Plan:
        held = Pins(self.mesh, pins)
        held.require_all_used(self.graph)
        found = [] if known is None else [known]

        needed = bool(shardings) or (compare and bool(pins))
        proposal = self._timed("propagation", lambda: self._proposal(held, shardings)) if needed else None

        def solved() -> Plan:
            if shardings:
                assert proposal is not None
                return self._following(proposal, held, share_layers, gap, time_limit, compare)
            return self._solved(held, proposal, share_layers, gap, time_limit, compare, found)

        if not confirm:
            return solved()
        return confirmed_plan(self.offers, solved, self.progress, confirmations or Confirmations())

    def _proposal(self, pins: Pins, shardings: Mapping[str, Sharding | str] | None) -> Proposal:
        given = PinsAndShardings(self.mesh, shardings, pins)
        return Proposal.of(self.graph, self.layouts, given, self.offers)

    def _solved(
        self,
        held: Pins,
        proposal: Proposal | None,
        share_layers: bool | None,
        gap: float,
        time_limit: float,
        compare: bool,
        found: list[Plan],
    ) -> Plan:
        """The cheapest of all plans, which may be `found` already. The search starts from what propagation proposes,
        with which it is compared."""
        clock = Clock(time_limit)
        search: Search | None = None
        if found:
            best = found.pop()
        else:
            best, search = self._best(held, None, share_layers, gap, clock, proposal)
        if not compare:
            return best
        tried = self._timed("baselines", lambda: self.baselines(held, gap, clock, search))
        if proposal is not None:
            tried["propagated"] = None if search is None else search.started
        table = {name: _cost_of(made and self._in_faster_order(made)) for name, made in tried.items()}
        return cheapest_that_fits(best, tried.values(), self.memory).noted(baselines=table)

    def _following(
        self,
        proposal: Proposal,
        held: Pins,
        share_layers: bool | None,
        gap: float,
        time_limit: float,
        compare: bool,
    ) -> Plan:
        """The cheapest plan that follows propagated shardings, and what the cheapest of all plans costs."""
        clock = Clock(time_limit)
        pinned = with_shardings(held, proposal.given.shardings, self.graph)
        best, _ = self._best(pinned, proposal, share_layers, gap, clock)
        best = best.noted(pins=held.texts, shardings=proposal.given.texts)
        if not compare:
            return best
        free = self._timed("baselines", lambda: self.restricted(None, held, gap, clock))
        return best.noted(baselines={"without shardings": _cost_of(free)})

    def _best(
        self,
        held: Pins,
        restriction: Restriction | None,
        share_layers: bool | None,
        gap: float,
        clock: Clock,
        start: Restriction | None = None,
    ) -> tuple[Plan, Search]:
        """The cheapest plan within a restriction, and the search for it, which starts within `start`.

        With overlap it is the best of those that are cheapest without it and for a few weights, and the bound is the
        largest of theirs.
        """
        best, search = self._cheapest(held, restriction, share_layers, gap, clock, None, start)
        if not self.overlap:
            return best, search
        best = best.noted(bound=None)
        rates = Rates(Windows(self.graph, self.recomputable.copies), links(self.mesh, self.cluster))
        rates.add(best, None)
        for weights in rates.tried():
            try:
                other, _ = self._cheapest(held, restriction, share_layers, gap, clock, weights, None)
            except UsageError:  # there was no time left to find a plan that fits: there is one already
                break
            rates.add(other, weights)
            bounds = [each.bound for each in (best, other) if each.bound is not None]
            best = preferred(best, other).noted(bound=max(bounds, default=None))
            if best.bound is not None and best.bound >= best.cost.seconds * (1 - gap):
                break
        return best, search

    def _cheapest(
        self,
        held: Pins,
        restriction: Restriction | None,
        share_layers: bool | None,
        gap: float,
        clock: Clock,
        weights: Weights | None,
        start: Restriction | None,
    ) -> tuple[Plan, Search]:
        items = self._timed("choices", lambda: self._items(held, restriction, weights))
        self.most_choices = max(map(len, items.all), default=0)
        if share_layers is None:
            share_layers = len(items.all) > MANY
        search = self._search(items, held, share_layers, gap, clock, start)
        try:
            best = search.cheapest()
        except Unsolved as unsolved:
            raise UsageError(self._why_not(unsolved.solution, held, clock)) from None
        return best.noted(share_layers=share_layers), search

    def _search(
        self,
        items: Items,
        pins: Pins,
        share_layers: bool,
        gap: float,
        clock: Clock,
        start: Restriction | None,
    ) -> Search:
        return Search(
            items,
            lambda folded, solution: self._read(items, folded, solution, pins),
            memory=self.memory,
            share_layers=share_layers,
            gap=gap,
            clock=clock,
            progress=self.progress,
            timed=self._timed,
            what=f"{self.graph.name} on {self.mesh}",
            start=start,
        )

    def baselines(
        self, pins: Pins, gap: float = GAP, clock: Clock | None = None, search: Search | None = None
    ) -> dict[str, Plan | None]:
        """The plan of each baseline, whatever memory it takes; None where pins or time leave none. `search` is that for
        the cheapest of all plans."""
        clock = clock or Clock(60.0)
        found: dict[str, Plan | None] = {}
        named = list(baselines(self.mesh))
        for number, baseline in enumerate(named):
            self.progress("baselines", number, len(named), note=baseline.name)
            kind = BaselineRestriction(baseline, self.graph, self.layouts)
            found[baseline.name] = self.restricted(kind, pins, gap, clock, len(named) - number, search=search)
        if self.recomputable.copies:
            found["everything again"] = self.restricted(None, pins, gap, clock, keep=False, search=search)
        return found

    def restricted(
        self,
        restriction: Restriction | None,
        pins: Pins,
        gap: float = GAP,
        clock: Clock | None = None,
        searches: int = 1,
        keep: bool = True,
        search: Search | None = None,
    ) -> Plan | None:
        """The cheapest plan within a restriction, whatever memory it takes; None where pins or time leave none.

        It is the first of so many searches that share the time that is left. Unless it may `keep` values, all that may
        be computed again is. What forbids nothing but choices is found in the problem of the `search` among all plans.
        """
        clock = clock or Clock(60.0)
        steps = STEPS if search is None else COMPARED
        plain = (self.zero or self.offload) and restriction is not None
        if search is None or not keep or plain or not search.items.only_choices(restriction):
            items = self._items(pins, restriction, quiet=True, keep=keep, homes=not plain)
            search, restriction = self._search(items, pins, len(items.all) > MANY, gap, clock, None), None
        return search.within(restriction, searches, steps)

    def _items(
        self,
        pins: Pins,
        restriction: Restriction | None = None,
        weights: Weights | None = None,
        *,
        quiet: bool = False,
        keep: bool = True,
        homes: bool = True,
    ) -> Items:
        def note(done: int, total: int) -> None:
            if not quiet:
                self.progress("choices", done, total)

        made = self.graph, self.layouts, self.cluster, self.offers, self.optimizer
        return Items(
            *(*made, pins, restriction, note, self.elsewhere),
            weights=weights,
            kinds=self.kinds,
            copies=self.recomputable.copies,
            keep=keep,
            passes=self.micro_batches,
            in_flight=self.in_flight,
            zero=self.zero and homes,
            offload=self.offload and homes,
        )

    def _why_not(self, solution: Solution, pins: Pins, clock: Clock) -> str:
        if solution.status == "unknown":
            return (
                f"no plan of {self.graph.name} on {self.mesh} was found in {clock.seconds:.0f} seconds of search: "
                "give it more time"
            )
        clash = " and ".join(f"{name}: {pin}" for name, pin in self._clashing(pins, clock).items())
        return f"no plan of {self.graph.name} on {self.mesh} meets these pins together: {clash}"

    def _clashing(self, pins: Pins, clock: Clock) -> dict[str, Pin]:
        """The fewest pins found that no plan meets together: those without which the others could be met."""
        left = dict(pins.pins)
        for name in pins.pins:
            fewer = {key: pin for key, pin in left.items() if key != name}
            folded = fold(self._items(Pins(self.mesh, fewer)), None)
            if solve(folded.problem, time_limit=clock.share, gap=1.0).status == "infeasible":
                left = fewer
        return left

    def _read(self, items: Items, folded: Folded, solution: Solution, pins: Pins) -> Plan:
        """The plan that a solution of the problem stands for."""
        assert solution.choices is not None
        chosen = np.array(solution.choices)[folded.node]
        layouts = self.layouts.all
        inputs: dict[str, Layout] = {}
        homes, choices, copies, on_host = {}, {}, [], []
        alike: dict[tuple[int, int], Choice] = {}  # of equal calls
        outputs: list[Any] = [None] * len(self.graph.outputs)
        for place, item in enumerate(items.all):
            choice = int(chosen[place])
            if isinstance(item, CopyItem) and item.kind == "held":
                homes[item.name], inputs[item.name] = inputs[item.name], layouts[item.layouts[choice]]
            elif isinstance(item, CopyItem):
                if choice >= item.kept:
                    copies.append(Copy(item.ref, layouts[item.layouts[choice]], item.users))
            elif item.kind == "input":
                inputs[item.name] = layouts[items.options_of(item)[choice]]
                if items.on_host(item)[choice]:
                    on_host.append(item.name)
            elif item.kind == "output":
                outputs[int(item.name)] = layouts[items.options_of(item)[choice]]
            else:
                own = items.choices[item.name]
                if isinstance(own, CopyChoices) and choice < own.run:
                    continue
                if (id(own), choice) not in alike:
                    offer = self.offers.of(self.graph[item.name])  # type: ignore[arg-type]
                    alike[id(own), choice] = Choice(self.mesh, own.rows_of(choice), offer.source)
                choices[item.name] = alike[id(own), choice]
        graph = self.recomputable.chosen(choices)
        choices = {name: choice for name, choice in choices.items() if name in graph.makers}
        copies = [found for copy in copies if (found := self._in(graph, copy)) is not None]
        bound = folded.bound(solution)
        if bound is not None:  # no plan starts faster than the host does
            bound = max(bound, self._host_seconds)
        made = Plan(
            graph,
            self.mesh,
            self.cluster,
            inputs,
            choices,
            tuple(copies),
            tuple(outputs),
            optimizer=self.optimizer.name,
            memory=self.memory,
            pins=pins.texts,
            elsewhere=self.elsewhere,
            bound=bound,
            micro_batches=self.micro_batches,
            in_flight=self.in_flight,
            homes=homes,
            on_host=tuple(on_host),
        )
        made = replace(made, homes={name: home for name, home in homes.items() if made.once.differs(name)})
        needed = tuple(copy for copy in copies if copy.layout != made.layout(copy.ref))
        made = replace(made, copies=needed)
        return with_overlap(made) if self.overlap else made

    @cached_property
    def _host_seconds(self) -> float:
        """What the host needs for a step at least: where nothing is computed again."""
        return self.micro_batches * host_seconds(self.recomputable.graph, self.cluster.device)

    def _in(self, graph: Graph, copy: Copy) -> Copy | None:
        """A shared redistribution in the graph with those copies of calls that run; None if none of its users does."""
        users = tuple(name for name in copy.users if name in graph.makers)
        name = copy.ref.name if copy.ref.name in graph.makers else self.recomputable.copies[copy.ref.name]
        return Copy(Ref(name, copy.ref.output), copy.layout, users) if users else None

    def _timed(self, phase: str, work: Callable[[], Any]) -> Any:
        begun = time.process_time()
        result = work()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + time.process_time() - begun
        return result


def cheapest_that_fits(best: Plan, others: Iterable[Plan | None], memory: int) -> Plan:
    """The best plan, or one of the others that fits in memory and is preferred: a search may be cut short. What bounds
    the cost of the best plan bounds that of every plan, except of one whose equal layers do not share their choices."""
    for other in others:
        if other is not None and other.cost.peak <= memory and preferred(best, other) is other:
            bound = None if best.bound is None else min(best.bound, other.cost.seconds)
            best = other.noted(bound=bound, share_layers=best.share_layers)
    return best


def _cost_of(made: Plan | None) -> BaselineCost | None:
    if made is None:
        return None
    cost = made.cost
    return BaselineCost(cost.compute, cost.update, cost.communication, cost.peak, cost.waiting, cost.hidden)


def memory_of(memory: int | float | str | None, cluster: Cluster) -> int:
    """The bytes that a device may hold: by default all that it has."""
    return int(cluster.device.memory) if memory is None else bytes_of(memory)


_AMOUNT = re.compile(r"(\d+\.?\d*(?:e\d+)?)\s*([KMGT]?)(I?)B", re.IGNORECASE)


def bytes_of(memory: int | float | str) -> int:
    """Bytes from a number or from `80GB`, `512MiB`."""
    if isinstance(memory, str) and (match := _AMOUNT.fullmatch(memory.strip())):
        number, prefix, binary = match.groups()
        return round(float(number) * (1024 if binary else 1000) ** " KMGT".index(prefix.upper() or " "))
    if isinstance(memory, int | float) and 0 <= memory < math.inf:
        return int(memory)
    raise UsageError(f"memory {memory!r} is not a byte count: write it as 80GB or 512MiB")
