"""A plan in words and tables: where the time goes, what is communicated, what is held, and against what."""

from collections import Counter
from collections.abc import Iterator
from textwrap import wrap
from typing import TYPE_CHECKING

from ..calls import short_name
from ..graph import Node
from ._items import pattern
from ._schedule import Call, Move

if TYPE_CHECKING:
    from ._plan import Plan

_WIDTH = 24


def summary(plan: "Plan", most: int = 10) -> str:
    return "\n".join(_lines(plan, most))


def _lines(plan: "Plan", most: int) -> Iterator[str]:
    cost = plan.cost
    yield f"{plan.graph.name} on mesh {plan.mesh} of {plan.cluster.name}: {time_text(cost.seconds)} a step"
    yield ""
    parts = {"compute": cost.compute, "optimizer": cost.update, **cost.communication}
    for name, seconds in parts.items():
        if seconds:
            bar = "#" * round(_WIDTH * seconds / cost.seconds)
            yield f"  {name:<16} {time_text(seconds):>10}  {seconds / cost.seconds:>6.1%}  {bar}"
    for axis, sent in cost.bytes_per_axis.items():
        yield f"  over {axis:<11} {bytes_text(sent):>10} a device and step"
    yield ""
    allowed = f" of {bytes_text(plan.memory)}" if plan.memory is not None else ""
    yield f"  memory           {bytes_text(cost.peak):>10}{allowed} at its peak, {bytes_text(cost.lasting)} throughout"
    yield f"  over the step    {sparkline(cost.held)}"
    yield from _against(plan)
    yield from _dearest(plan, most)
    yield from _fallen_back(plan)


def _against(plan: "Plan") -> Iterator[str]:
    yield ""
    yield f"  {'':<18}{'step':>12}{'memory':>12}"
    rows = [("this plan", plan.cost.seconds, plan.cost.peak)]
    for name, cost in plan.baselines.items():
        if cost is not None:
            rows.append((name, cost.seconds, cost.peak))
    for name, seconds, peak in rows:
        note = "  does not fit" if plan.memory is not None and peak > plan.memory else ""
        yield f"  {name:<18}{time_text(seconds):>12}{bytes_text(peak):>12}{note}"
    if plan.bound is not None and plan.cost.seconds:
        short = max(0.0, 1 - plan.bound / plan.cost.seconds)
        yield f"  {'lower bound':<18}{time_text(plan.bound):>12}{'':>12}  at most {short:.2%} can be gained"


def _dearest(plan: "Plan", most: int) -> Iterator[str]:
    """The entries that take longest, those that are alike added up."""
    calls: Counter[str] = Counter()
    moves: Counter[str] = Counter()
    times: Counter[str] = Counter()
    for entry, seconds in zip(plan.schedule.entries, plan.cost.entries, strict=True):
        if isinstance(entry, Call):
            text = f"{short_name(entry.node.op)} {_where(entry.node)}"
            calls[text] += seconds  # type: ignore[assignment]
        elif seconds:
            text = describe_move(plan, entry)
            moves[text] += seconds  # type: ignore[assignment]
        else:
            continue
        times[text] += 1
    for title, table in (("most expensive calls", calls), ("most expensive redistributions", moves)):
        if table:
            yield ""
            yield f"  {title}"
        for text, seconds in table.most_common(most):
            count = f" x{times[text]}" if times[text] > 1 else ""
            yield from wrap(f"    {time_text(seconds):>10}  {text}{count}", 80, subsequent_indent=" " * 16)


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


def _fallen_back(plan: "Plan") -> Iterator[str]:
    """The nodes for which no rows are known but replication, and what that costs."""
    lost: dict[str, list[float]] = {}
    for entry, seconds in zip(plan.schedule.entries, plan.cost.entries, strict=True):
        if isinstance(entry, Call) and entry.choice.source == "replicated":
            lost.setdefault(entry.node.op, []).append(seconds)
    if lost:
        yield ""
        yield "  replicated for want of rows"
    for op, each in sorted(lost.items(), key=lambda pair: -sum(pair[1])):
        yield f"    {time_text(sum(each)):>10}  {op} x{len(each)}"


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
