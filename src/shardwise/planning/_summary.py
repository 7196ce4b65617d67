"""A plan in words and tables: where the time goes, what is communicated, what is held, and against what."""

import math
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..calls import short_name
from ..display import Bar, Bars, Block, Heading, Table, as_text
from ..graph import Node, block_of, chosen_copies, pattern
from ._choices import Layouts
from ._prices import OptimizerCost
from ._schedule import Compute, Move, Wait

if TYPE_CHECKING:
    from ._evaluate import Cost
    from ._plan import BaselineCost, Plan


def summary(plan: "Plan", most: int = 10) -> str:
    return as_text(blocks(plan, most))


def blocks(plan: "Plan", most: int = 10) -> Iterator[Block]:
    """What the summary of a plan shows, with the `most` expensive calls and redistributions."""
    from ._candidates import candidates_blocks

    cost = plan.cost
    how = "" if plan.graph.execution == "eager" else f", {plan.graph.execution}"
    where = f"{plan.graph.name} on mesh {plan.mesh} of {plan.cluster.name}{how}"
    passes = f" of {plan.micro_batches} micro-batches" if plan.micro_batches > 1 else ""
    yield Heading(1, f"{where}: {time_text(cost.seconds)} a step{passes}")
    parts = _parts(plan)
    if cost.seconds:
        yield Bars(tuple(Bar(name, time_text(s), s / cost.seconds) for name, s in parts.items() if s))
    if cost.bytes_per_axis:
        yield Table(
            ("", ">", ""),
            [
                (f"over {axis}", bytes_text(sent), "a device and step")
                for axis, sent in cost.bytes_per_axis.items()
            ],
        )
    yield from _links(plan)
    allowed = f" of {bytes_text(plan.memory)}" if plan.memory is not None else ""
    yield Table(
        ("", ""),
        [
            (
                "memory",
                f"{bytes_text(cost.peak)}{allowed} at its peak, {bytes_text(cost.lasting)} throughout",
            ),
            ("over the step", f"`{sparkline(cost.held)}`"),
            *_again(plan),
            *_once(plan),
            *_on_host(plan),
        ],
    )
    if plan.shardings:
        yield Heading(2, "propagated from")
        yield Table(("", ""), list(plan.shardings.items()))
        yield departures_text(plan)
    yield _against(plan)
    yield from candidates_blocks(plan.candidates)
    yield from _dearest(plan, most)
    yield from _fallen_back(plan)
    yield from _confirmed(plan)


def _parts(plan: "Plan") -> dict[str, float]:
    """What the seconds of a step are for."""
    cost = plan.cost
    always = {"compute": cost.compute, "optimizer": cost.update}
    host = {"waiting for the host": cost.waiting}
    if plan.ahead is None:
        return {**always, **cost.communication, **host}
    line, passes = plan.timeline, plan.micro_batches
    slower = passes * (line.seconds - sum(line.exposed.values())) - cost.compute
    waited = {f"waiting for {link}": passes * seconds for link, seconds in line.exposed.items()}
    transfer = {"transfer": cost.communication.get("transfer", 0.0)}
    once = {"once per step": sum(move.change.price for move in plan.once.moves)}
    return {**always, "slower beside collectives": slower, **waited, **once, **transfer, **host}


def _again(plan: "Plan") -> Iterator[tuple[str, str]]:
    """What the plan has chosen to compute again."""
    copies = chosen_copies(plan.graph)
    timed = zip(plan.schedule.entries, plan.cost.entries, strict=True)
    again = [(e.node, s) for e, s in timed if isinstance(e, Compute) and e.node.name in copies and s]
    if again:
        blocks = len({block_of(node.module) for node, _ in again if block_of(node.module)})
        where = f" of {blocks} blocks" if blocks else ""
        yield "computed again", f"{len(again)} calls{where}, {time_text(sum(s for _, s in again))}"


def _on_host(plan: "Plan") -> Iterator[tuple[str, str]]:
    """What lives in the memory of the host."""
    if plan.on_host:
        optimizer, layouts = OptimizerCost.of(plan.optimizer), Layouts(plan.mesh)
        entries = [entry for entry in plan.graph.with_role("parameter") if entry.name in plan.on_host]
        local = [layouts.local(layouts.of(plan.home(entry.name)), entry.tensor) for entry in entries]
        held = bytes_text(sum(part.bytes + optimizer.state_bytes(part) for part in local))
        seconds = time_text(sum(optimizer.host_seconds(part, plan.cluster.device) for part in local))
        yield (
            "on the host",
            f"{len(local)} parameter{'s' if len(local) > 1 else ''}, {held}, {seconds} a step",
        )


def _once(plan: "Plan") -> Iterator[tuple[str, str]]:
    """What happens once per step instead of in every pass."""
    pairs = (("gathered", "parameter", plan.once.gathers), ("reduced", "gradient", plan.once.reductions))
    for verb, what, once in pairs:
        if moves := [move for move in once if move.change.steps]:
            seconds = time_text(sum(move.change.price for move in moves))
            yield f"{verb} once", f"{len(moves)} {what}{'s' if len(moves) > 1 else ''}, {seconds} a step"


def _links(plan: "Plan") -> Iterator[Block]:
    """How long links are used, and how much of that is beside calls."""
    busy, exposed = plan.timeline.busy, plan.timeline.exposed
    if plan.ahead is not None and busy:
        rows = [
            (
                f"collectives over {link}",
                time_text(s),
                f"{max(0.0, 1 - exposed.get(link, 0.0) / s):.0%} beside calls",
            )
            for link, s in busy.items()
            if s
        ]
        yield Table(("", ">", ""), rows)


def _against(plan: "Plan") -> Table:
    """The plan, its baselines and the lower bound."""
    own, limit = plan.cost, math.inf if plan.memory is None else plan.memory
    costs: dict[str, Cost | BaselineCost] = {"this plan": own}
    costs |= {name: cost for name, cost in plan.baselines.items() if cost is not None}
    rows = [
        (name, time_text(c.seconds), bytes_text(c.peak), "does not fit" if c.peak > limit else "")
        for name, c in costs.items()
    ]
    if plan.bound is not None and own.seconds:
        short = max(0.0, 1 - plan.bound / own.seconds)
        shared = ", layers shared" if plan.share_layers else ""
        shared += ", following the shardings" if plan.shardings else ""
        rows.append(("lower bound", time_text(plan.bound), "", f"at most {short:.2%} can be gained{shared}"))
    return Table(("", ">step", ">memory", ""), rows)


def departures_text(plan: "Plan") -> str:
    """At how many calls the plan departs from what was propagated, and which kinds of calls these are."""
    proposal = plan.proposal
    assert proposal is not None  # a plan of shardings has one
    found = Counter(f"{short_name(node.op)} {_where(node)}" for node in proposal.departures(plan))
    if not found:
        return "every call follows the propagated shardings"
    kinds = [f"{text} x{times}" if times > 1 else text for text, times in found.most_common(3)]
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    total = f"{sum(found.values())} of {len(plan.graph.nodes)} calls"
    return f"{total} depart from the propagated shardings, by price: {', '.join(kinds)}{more}"


def _dearest(plan: "Plan", most: int) -> Iterator[Block]:
    """The entries that take longest, equal ones added up."""
    calls: Counter[str] = Counter()
    moves: Counter[str] = Counter()
    times: Counter[str] = Counter()
    for entry, seconds in zip(plan.schedule.entries, plan.cost.entries, strict=True):
        if not seconds or isinstance(entry, Wait):
            continue
        if isinstance(entry, Compute):
            text = f"{short_name(entry.node.op)} {_where(entry.node)}"
            calls[text] += seconds  # type: ignore[assignment]
        else:
            text = describe_move(plan, entry)
            moves[text] += seconds  # type: ignore[assignment]
        times[text] += 1
    for title, table in (("most expensive calls", calls), ("most expensive redistributions", moves)):
        if table:
            yield Heading(2, title)
            yield Table(
                (">", ""),
                [
                    (time_text(seconds), f"{text} x{times[text]}" if times[text] > 1 else text)
                    for text, seconds in table.most_common(most)
                ],
            )


def _where(node: Node) -> str:
    """The module without its numbers, so that layers add up."""
    phase = " (backward)" if node.phase == "backward" else ""
    return f"in {pattern(node.module) or 'the model'}{phase}"


def describe_move(plan: "Plan", move: Move) -> str:
    maker = plan.graph[move.source.ref.name]
    of = _where(maker) if isinstance(maker, Node) else f"of {pattern(maker.target)}"
    kinds = ", ".join(
        f"{step.kind} over {'+'.join(plan.mesh.names[a] for a in step.axes)}"
        for step in move.change.collectives
    )
    return f"{kinds} {of}: [{move.change.source}] -> [{move.change.target}]"


def _fallen_back(plan: "Plan") -> Iterator[Block]:
    """The nodes for which no rows are known but replication, and what that costs."""
    lost: dict[str, list[float]] = {}
    for entry, seconds in zip(plan.schedule.entries, plan.cost.entries, strict=True):
        if isinstance(entry, Compute) and entry.choice.source == "replicated":
            lost.setdefault(entry.node.op, []).append(seconds)
    if lost:
        yield Heading(2, "replicated for want of rows")
        dearest = sorted(lost.items(), key=lambda pair: -sum(pair[1]))
        yield Table((">", ""), [(time_text(sum(each)), f"{op} x{len(each)}") for op, each in dearest])


def _confirmed(plan: "Plan") -> Iterator[Block]:
    """What experiments said about the plan's calls."""
    found = plan.confirmation
    if found is None:
        return
    if found.refuted:
        yield Heading(2, "refuted by experiment and not used")
        yield Table(("", ""), [(f"{each.call} by {each.choice}", each.reason) for each in found.refuted])
    calls = found.confirmed + found.undecided
    undecided = f", {found.undecided} could not be tested" if found.undecided else ""
    yield f"{found.confirmed} of {calls} distinct sharded calls confirmed by experiment{undecided}"


def time_text(seconds: float) -> str:
    if seconds == float("inf"):
        return "impossible"
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.2f} {unit}"
    return f"{seconds / 1e-9:.0f} ns" if seconds else "0"


def bytes_text(count: float) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if count >= scale:
            return f"{count / scale:.2f} {unit}"
    return f"{count:.0f} B"


def exact_bytes_text(count: int) -> str:
    """All digits, so that it can be given as a limit: `20.185088 MB`."""
    for unit, digits in (("GB", 9), ("MB", 6), ("KB", 3)):
        if count >= 10**digits:
            whole, rest = divmod(count, 10**digits)
            return f"{whole}.{rest:0{digits}}".rstrip("0").rstrip(".") + f" {unit}"
    return f"{count} B"


def sparkline(values: tuple[int, ...], width: int = 48) -> str:
    """Values over time as a line of blocks, each the largest of its share."""
    if not values:
        return ""
    blocks = " ▁▂▃▄▅▆▇█"
    top = max(values) or 1
    count = min(width, len(values))
    line = ""
    for i in range(count):
        part = values[
            i * len(values) // count : max((i + 1) * len(values) // count, i * len(values) // count + 1)
        ]
        line += blocks[round(max(part) / top * (len(blocks) - 1))]
    return line
