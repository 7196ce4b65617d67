"""`Planner`: choices, prices, the problem of a graph on a mesh, its solution, and the plan it stands for."""

import time
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from ..errors import UsageError, require
from ..expansion import Choice
from ..experiments import Confirmations
from ..graph import Graph, Ref, autocast_to, reduced_dtype, with_reduced_gradients
from ..layout import Layout, Sharding
from ..mesh import Cluster, Mesh
from ..progress import Progress, silent
from ..solver import Solution, solve
from ._again import CopyChoices, Recomputable
from ._amounts import memory_of
from ._baselines import BaselineRestriction, baselines
from ._choices import Layouts
from ._confirm import confirmed_plan
from ._elsewhere import Elsewhere, require_elsewhere
from ._fold import Folded, fold
from ._homes import require_host
from ._items import CopyItem, Items, Restriction
from ._kinds import Kinds
from ._memory import Memory
from ._offers import Offers
from ._order import with_late_gradients
from ._overlap import fastest, with_overlap
from ._pins import Pin, Pins
from ._plan import BaselineCost, Copy, Plan
from ._preferences import preferred
from ._prices import OptimizerCost, host_seconds
from ._proposal import PinsAndShardings, Proposal, with_shardings
from ._rates import Rates
from ._search import FEW, STEPS, Clock, Search, Unsolved
from ._timeline import links
from ._weights import Weights
from ._windows import Windows

GAP = 0.002  # of the solver, below which a better plan is not worth waiting for
COMPARED = 2_000  # steps that a search for a baseline must pay for, which is not run
MANY = 2_000  # items from which layers that are equal share their choices
_SCHEDULED = 2  # of the plans that are found with overlap, those that may be the fastest
# Times as long as for the cheapest plan without overlap, before rounds end: fewer where two more searches follow.
_LOOKED_FOR, _LOOKED_FAR = 4.5, 2.0


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
        if not self.late_gradients:
            return made
        other = with_overlap(self._as_captured(replace(made, ahead=None)))
        if other.cost.peak > self.memory or other.cost.seconds >= made.cost.seconds * (1 - gap):
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

    def _as_run(self, plan: Plan) -> Plan:
        """A baseline as it would run, had it the memory: with overlap also with its calls as they were captured."""
        if not self.overlap:
            return plan
        if plan.ahead is not None or plan.cost.peak > self.memory:
            plan = replace(plan, memory=None if plan.cost.peak > self.memory else plan.memory, ahead=None)
        return fastest([plan, self._as_captured(plan)] if self.late_gradients else [plan])

    def _as_captured(self, plan: Plan) -> Plan:
        return replace(plan, graph=Recomputable(self.captured).chosen(plan.choices))

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
        run = {name: made and self._as_run(made) for name, made in tried.items()}
        table = {name: _cost_of(made) for name, made in run.items()}
        # In the order of calls that the best plan has.
        alike = [made for name, made in run.items() if made is not None and made.graph is tried[name].graph]
        return cheapest_that_fits(best, alike, self.memory).noted(baselines=table)

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
        return best.noted(baselines={"without shardings": _cost_of(free and self._as_run(free))})

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

        With overlap it is the fastest of that without it and of those that are cheapest for some rates of links, and
        the bound is the largest of theirs.
        """
        begun = time.process_time()
        best, search = self._cheapest(held, restriction, share_layers, gap, clock, None, start)
        if not self.overlap:
            return best, search
        spent, begun = time.process_time() - begun, time.process_time()

        def over(far: bool) -> bool:
            return time.process_time() - begun > spent * (_LOOKED_FAR if far else _LOOKED_FOR)

        rates = Rates(Windows(self.graph, self.recomputable.copies), links(self.mesh, self.cluster))
        rates.add(best, None)
        found = [best]
        for weights, near in rates.tried(gap, over):
            try:
                made, _ = self._cheapest(
                    held, restriction, share_layers, near, clock, weights, None, search.held
                )
            except UsageError:  # there was no time left to find a plan that fits: there is one already
                break
            rates.add(made, weights, near)
            found.append(made)
        least = [rates.least(number) for number in range(len(found))]
        first, *others = dict.fromkeys([*np.argsort(least, kind="stable")[:_SCHEDULED].tolist(), 0])
        best = self._scheduled(found[first])
        for number in others:
            if least[number] < best.cost.seconds * (1 - gap):
                best = preferred(best, self._scheduled(found[number]))
        return best.noted(bound=rates.bound or None), search

    def _scheduled(self, made: Plan) -> Plan:
        return with_overlap(made) if made.ahead is None else made

    def _cheapest(
        self,
        held: Pins,
        restriction: Restriction | None,
        share_layers: bool | None,
        gap: float,
        clock: Clock,
        weights: Weights | None,
        start: Restriction | None,
        known: dict[bool, Memory] | None = None,
    ) -> tuple[Plan, Search]:
        items = self._timed("choices", lambda: self._items(held, restriction, weights))
        self.most_choices = max(map(len, items.all), default=0)
        if share_layers is None:
            share_layers = len(items.all) > MANY
        search = self._search(items, held, share_layers, gap, clock, start, known)
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
        known: dict[bool, Memory] | None = None,
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
            held=known,
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
        # Of many items, plans are scheduled when the most promising ones are known.
        return with_overlap(made) if self.overlap and len(items.all) <= FEW else made

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
