"""Joins a plan from elsewhere (a file, another rank) with this process's own capture of the model."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from ..errors import UsageError
from ..graph import (
    Graph,
    as_module,
    autocast_to,
    capture,
    chosen_again,
    has_layers,
    with_reduced_gradients,
)
from ..planning import Plan


def with_live_graph(
    plan: Plan,
    model: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    captured: Graph | None = None,
) -> Plan:
    """The plan with a graph that can be run: `captured`, if that is it, or a new capture of the model, which must be
    the one that was planned."""
    _require_state(plan.graph, as_module(model))
    if plan.graph.live is not None:
        return plan
    graph = captured and _in_order(plan.graph, captured)
    if graph is None or graph.live is None or graph != plan.graph:
        losses = [entry.target for entry in plan.graph.with_role("tangent")]
        with autocast_to(plan.graph.autocast):
            graph = capture(
                *(model, args, dict(kwargs)),
                training=plan.graph.training,
                loss=losses or None,
                execution=plan.graph.execution,
                recompute=dict(plan.graph.recompute) or "none",
                split_products=has_layers(plan.graph),
            )
        graph = with_reduced_gradients(graph, plan.graph.reduce, summed=plan.micro_batches > 1)
        graph = _in_order(plan.graph, chosen_again(graph, plan.graph.again))
    require_same_graph(plan.graph, graph)
    return replace(plan, graph=graph)


def require_same_graph(planned: Graph, found: Graph) -> None:
    """Raise unless a captured graph is the one that was planned."""
    if planned != found:
        raise UsageError(_difference(planned, found))


def _in_order(planned: Graph, found: Graph) -> Graph:
    """A captured graph with its calls in the order of the plan, if it has the same ones."""
    nodes = {node.name: node for node in found.nodes}
    if nodes.keys() != {node.name for node in planned.nodes}:
        return found
    return replace(found, nodes=tuple(nodes[node.name] for node in planned.nodes))


def require_no_written_arguments(graph: Graph) -> None:
    """Raise if the model writes to an argument: the caller's tensor would stay unchanged."""
    given = {entry.target for entry in graph.with_role("user_input")}
    for output in graph.outputs:
        if output.role == "mutation" and output.target in given:
            raise UsageError(
                f"{graph.name} writes to its argument {output.target!r}, which is not supported when it is sharded: "
                "return the new value instead"
            )


def _require_state(planned: Graph, module: nn.Module) -> None:
    """Raise unless the model has the parameters and buffers that were planned."""
    state = {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }
    for entry in planned.inputs:
        if entry.role not in ("parameter", "buffer"):
            continue
        found = state.get(entry.target)
        if found is None or tuple(found.shape) != entry.tensor.shape:
            has = "none of that name" if found is None else f"it as {str(found.dtype)[6:]}{list(found.shape)}"
            raise UsageError(
                f"the plan is for another model: it has {entry.role} {entry.target!r} as {entry.tensor}, "
                f"the model has {has}"
            )


def _difference(planned: Graph, found: Graph) -> str:
    for one, other in zip(planned.inputs, found.inputs, strict=False):
        if one != other:
            return (
                f"the plan is for another model or other arguments: it has {one.role} {one.target!r} as {one.tensor}, "
                f"the model has {other.role} {other.target!r} as {other.tensor}"
            )
    for here, there in zip(planned.nodes, found.nodes, strict=False):
        if here != there:
            return f"the plan is for another model: it has {here}, the model has {there}"
    return (
        f"the plan is for another model: it has {len(planned.nodes)} nodes, the model has {len(found.nodes)}"
    )
