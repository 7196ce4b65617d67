"""The unsharded run that a plan is held against: the model itself, or its captured graph on whole tensors.

The model as the user wrote it, run by torch's own autograd, is the reference wherever it can be. Random operators and
double precision need the graph instead: there every draw can be given the stream that the sharded run has, and no cast
inside the model takes the precision away again.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils import _pytree as pytree

from ..forms import draw
from ..graph import Graph, Node, Ref, arguments, as_module, opened
from ..planning import Compute, Plan
from ..running import Lowering, MakeOptimizer, Pieces


@dataclass
class Run:
    """Whole tensors by name: outputs of the last step, gradients of the first, state after all steps."""

    outputs: dict[str, Any] = field(default_factory=dict)
    gradients: dict[str, Tensor | None] = field(default_factory=dict)
    state: dict[str, Tensor] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)


def is_random_graph(graph: Graph) -> bool:
    return any(node.facts.random for node in graph.nodes)


def run_model(
    graph: Graph,
    model: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    steps: int,
    optimizer: MakeOptimizer,
) -> Run:
    """Steps of the model as it is written. Its weights are left as they are."""
    module, run = as_module(model), Run()
    state = _copied_state(module)
    trained = {e.target: state[e.target] for e in graph.inputs if e.role == "parameter" and e.trainable}
    for tensor in trained.values():
        tensor.requires_grad_()
    stepper = optimizer(list(trained.values())) if trained and steps else None
    names = [output.target for output in graph.outputs if output.role == "user_output"]
    losses = [entry.target for entry in graph.with_role("tangent") if entry.target in names]
    with _mode(module, graph.training), torch.set_grad_enabled(graph.training):
        for step in range(max(steps, 1)):
            given, given_kwargs = pytree.tree_map(_leaf, (tuple(args), dict(kwargs)))
            result = functional_call(module, state, given, given_kwargs)
            run.outputs = dict(zip(names, pytree.tree_leaves(opened(result)), strict=True))
            if not graph.training:
                break
            torch.autograd.backward([run.outputs[name].sum() for name in losses])
            run.losses.append(sum(float(run.outputs[name].detach().sum()) for name in losses))
            if step == 0:
                inputs = _named(graph, given, given_kwargs)
                tensors = {**inputs, **trained}
                run.gradients = {name: _gradient(tensors[name]) for name in graph.gradients}
            if stepper is not None:
                stepper.step()
                stepper.zero_grad()
    run.state = {name: tensor.detach() for name, tensor in state.items()}
    return run


def run_captured(
    plan: Plan, given: Mapping[str, Any], steps: int, optimizer: MakeOptimizer, seed: int, wide: bool
) -> Run:
    """Steps of the captured graph on whole tensors."""
    graph, run = plan.graph, Run()
    inputs = {e.name: _widened(given[e.name].detach(), wide).clone() for e in graph.inputs}
    trained = {e.target: inputs[e.name] for e in graph.inputs if e.role == "parameter" and e.trainable}
    named = {e.target: e.name for e in graph.inputs if e.role != "tangent"}
    losses = {entry.target for entry in graph.with_role("tangent")}
    buffers = {entry.target for entry in graph.with_role("buffer")}
    stepper = optimizer(list(trained.values())) if trained and steps else None
    for step in range(max(steps, 1)):
        values = run_graph(plan, inputs, seed + step, wide)
        gradients: dict[str, Tensor | None] = {}
        for output in graph.outputs:
            value = output.constant if output.value is None else values[output.value]
            if output.role == "user_output":
                run.outputs[output.target] = value
            elif output.role == "gradient":
                gradients[output.target] = value
            elif output.target in buffers:
                inputs[named[output.target]] = value
        run.losses.append(sum(float(run.outputs[name].sum()) for name in losses if name in run.outputs))
        run.gradients = run.gradients or gradients
        if stepper is not None:
            for name, tensor in trained.items():
                tensor.grad = gradients.get(name)
            stepper.step()
    run.state = {e.target: inputs[e.name] for e in graph.inputs if e.role in ("parameter", "buffer")}
    return run


def run_graph(plan: Plan, given: Mapping[str, Any], seed: int, wide: bool) -> dict[Ref, Any]:
    """The graph on whole tensors, random operators with the plan's streams: every tensor of it."""
    graph, lowering = plan.graph, Lowering(plan, wide)
    entries = {entry.node.name: entry for entry in plan.schedule.entries if isinstance(entry, Compute)}
    values: dict[Ref, Any] = {}
    for entry in graph.inputs:
        values[Ref(entry.name)] = _widened(given[entry.name].detach(), wide)
    draws = torch.tensor(seed)
    with torch.no_grad():
        for node in graph.nodes:
            tensors = [values[ref] for ref in node.inputs]
            if _draws_inside(graph, node):
                made = _as_planned(lowering, entries[node.name], tensors, draws)
            else:
                made = _whole(lowering, node, tensors, draws)
            for position, value in enumerate(made):
                values[Ref(node.name, position)] = value
    return values


def _whole(lowering: Lowering, node: Node, tensors: Sequence[Tensor], seed: Tensor) -> tuple[Any, ...]:
    call = lowering.call(node).with_tensors(tensors)
    if node.facts.random:
        info = node.outputs[0]
        assert info is not None
        runs = [[(0, size)] if size else [] for size in info.shape]
        made = draw(call, seed, lowering.numbers[node.name], info.shape, runs)
    else:
        made = call()
    return tuple(made) if isinstance(made, tuple | list) else (made,)


def _draws_inside(graph: Graph, node: Node) -> bool:
    """Attention with dropout: its draws follow from how it is sharded."""
    known = node.facts
    return known.seeded and (known.dropout is None or graph.call(node)[known.dropout] != 0)


def _as_planned(
    lowering: Lowering, entry: Compute, tensors: Sequence[Tensor], seed: Tensor
) -> tuple[Any, ...]:
    """The call on pieces, put together again: the one way to have the streams of the plan."""
    pieces = [Pieces.of(t, layout) for t, layout in zip(tensors, entry.choice.input_layouts, strict=True)]
    ranks = range(lowering.plan.mesh.ranks)
    made = [lowering.on_rank(entry, rank)([p.locals[rank] for p in pieces], seed) for rank in ranks]
    columns = zip(*made, strict=True)
    return tuple(
        None if layout is None else layout.join(list(column))
        for layout, column in zip(entry.choice.output_layouts, columns, strict=True)
    )


def _copied_state(module: nn.Module) -> dict[str, Tensor]:
    """A copy of every parameter and buffer, tied ones once."""
    tensors = {
        **dict(module.named_parameters(remove_duplicate=True)),
        **dict(module.named_buffers(remove_duplicate=True)),
    }
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def _widened(tensor: Tensor, wide: bool) -> Tensor:
    return tensor.double() if wide and tensor.is_floating_point() else tensor


def _leaf(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    return value


def _named(graph: Graph, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    given = arguments(graph, args, kwargs)
    return {entry.target: given[entry.name] for entry in graph.with_role("user_input")}


def _gradient(tensor: Tensor) -> Tensor | None:
    return None if tensor.grad is None else tensor.grad.detach().clone()


@contextmanager
def _mode(module: nn.Module, training: bool) -> Iterator[None]:
    """In eval mode, unless it is to train; then as it is."""
    before = {part: part.training for part in module.modules()}
    if not training:
        module.eval()
    try:
        yield
    finally:
        for part, mode in before.items():
            part.training = mode
