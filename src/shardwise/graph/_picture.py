"""A graph as text: a one-page summary, and a table of all nodes."""

import textwrap
from collections.abc import Iterable, Sequence

from ._graph import Graph, Phase

# Operators that the summary lists, the most expensive first.
_LISTED = 12


def summary(graph: Graph) -> str:
    passes = "forward and backward" if graph.training else "forward"
    passes += ", compiled" if graph.execution == "compiled" else ""
    lines = [f"{graph.name}: {passes}, {len(graph.nodes)} nodes, {len(graph.ops)} different operators"]
    parameters = graph.with_role("parameter")
    if parameters:
        count = sum(p.tensor.numel for p in parameters)
        size = sum(p.tensor.bytes for p in parameters)
        tied = sum(len(p.aliases) for p in parameters)
        lines.append(
            f"parameters   {len(parameters)} tensors, {count:,} numbers, {scaled(size, 'B')}"
            + (f", {tied} tied to another" if tied else "")
        )
    if buffers := graph.with_role("buffer"):
        lines.append(f"buffers      {len(buffers)}, {scaled(sum(b.tensor.bytes for b in buffers), 'B')}")
    lines.append("inputs       " + _some(f"{i.target} {i.tensor}" for i in graph.with_role("user_input")))
    outputs = [o for o in graph.outputs if o.role == "user_output"]
    lines.append(
        "outputs      "
        + _some(f"{o.target} {graph.tensor(o.value) if o.value else o.constant}" for o in outputs)
    )
    if tangents := graph.with_role("tangent"):
        lines.append("backward of  " + _some(t.target for t in tangents))
    if changed := [o.target for o in graph.outputs if o.role == "mutation"]:
        lines.append("changes      " + _some(changed))
    lines += [f"note         {note}" for note in graph.notes]
    phases: tuple[Phase, ...] = ("forward", "backward") if graph.training else ("forward",)
    for phase in phases:
        nodes = [n for n in graph.nodes if n.phase == phase]
        lines.append(
            f"{phase:<12} {len(nodes)} nodes, {scaled(graph.flops(phase), 'flop')}, "
            f"{scaled(sum(n.bytes for n in nodes), 'B')} moved"
        )
    rows = []
    for op, count in graph.ops.items():
        mine = [n for n in graph.nodes if n.op == op]
        rows.append((sum(n.flops for n in mine), sum(n.bytes for n in mine), op, count))
    rows.sort(reverse=True)
    cells = [(op, str(count), scaled(f, "flop"), scaled(b, "B")) for f, b, op, count in rows[:_LISTED]]
    lines += ["", *columns(("operator", "calls", "flops", "moved"), cells)]
    if len(rows) > _LISTED:
        lines.append(f"and {len(rows) - _LISTED} more")
    return "\n".join(lines)


def table(graph: Graph, module: str = "", phase: Phase | None = None) -> str:
    targets = {i.name: f"grad({i.target})" if i.role == "tangent" else i.target for i in graph.inputs}

    def shown(name: str, output: int) -> str:
        return targets.get(name, name) + (f".{output}" if output else "")

    nodes = [
        node
        for node in graph.nodes
        if (not module or node.module == module or node.module.startswith(module + "."))
        and phase in (None, node.phase)
    ]
    side = min(24, max((len(node.name) for node in nodes), default=0)) + 2
    lines = []
    for node in nodes:
        inputs = ", ".join(shown(ref.name, ref.output) for ref in node.inputs)
        outputs = ", ".join("-" if t is None else str(t) for t in node.outputs)
        where = f"{node.phase} in {node.module}" if node.module else node.phase
        says = f"{where}, {scaled(node.flops, 'flop')}, {scaled(node.bytes, 'B')} moved"
        first, *rest = _folded(f"{node.op}({inputs}) -> {outputs}", side)
        if len(node.name) < side:
            first = node.name + first[len(node.name) :]
        else:
            lines.append(node.name)
        rule = graph.rule(node)
        rules = _folded(rule.notation, side) if rule is not None else []
        lines += [first, *rest, *rules, *_folded(says, side)]
    return "\n".join(lines)


def _folded(text: str, side: int) -> list[str]:
    """Lines of at most 80 columns, all of which begin at the same column; names are not broken."""
    return textwrap.wrap(
        text, 80, initial_indent=" " * side, subsequent_indent=" " * side, break_long_words=False
    )


def columns(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    return ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in (head, *rows)]


def scaled(number: float, unit: str) -> str:
    """`12.3 Gflop`, `4.0 MB`."""
    for prefix in ("", "k", "M", "G", "T", "P"):
        if abs(number) < 1000 or prefix == "P":
            break
        number /= 1000
    return f"{number:.0f} {unit}" if not prefix else f"{number:.1f} {prefix}{unit}"


def _some(items: Iterable[str], limit: int = 6) -> str:
    listed = list(items)
    more = f" and {len(listed) - limit} more" if len(listed) > limit else ""
    return (", ".join(listed[:limit]) + more) or "none"
