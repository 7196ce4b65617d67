"""The unsharded run that a plan is compared with: the model as the user wrote it, run by torch's own autograd.

Its random calls get the plan's random numbers, and in double precision casts inside it are widened too, so
the model itself is always the reference. The captured graph on whole tensors is run only to find the first
call that is wrong.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from ..forms import draw
from ..graph import (
    Graph,
    Node,
    Output,
    Ref,
    TensorInfo,
    arguments,
    as_module,
    autocast_on_cpu,
    autocast_to,
    branches_as_taken,
    opened,
    unchanged,
    without_memory,
)
from ..planning import Plan
from ..running import Lowering, MakeOptimizer, wide_dtype, widened
from ._draws import PlansDraws, draws_inside
from ._passes import of_pass


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
    seed: int = 0,
    wide: bool = False,
    passes: int = 1,
) -> Run:
    """Training steps of the user's model, with the random numbers of a plan, `wide` in double precision. A step is one
    or several passes, of which gradients are added up.

    Its weights are left unchanged. Raises `UnmatchedDraws` where the model makes other random calls than its graph.
    """
    module, run = as_module(model), Run()
    outputs = [o for o in graph.outputs if o.role == "user_output"]
    names = [output.target for output in outputs]
    losses = [entry.target for entry in graph.with_role("tangent") if entry.target in names]
    with _as_captured(module, graph), _own_state(module, wide):
        parameters = dict(module.named_parameters())
        trained = {e.target: parameters[e.target] for e in graph.with_role("parameter") if e.trainable}
        stepper = optimizer(list(trained.values())) if trained and steps else None
        for step in range(max(steps, 1)):
            loss = 0.0
            for number in range(passes):
                own = of_pass((tuple(args), dict(kwargs)), number)
                given, given_kwargs = pytree.tree_map(lambda v: _leaf(v, wide), own)
                with (
                    PlansDraws(graph, seed + step * passes + number) as draws,
                    _Wide() if wide else nullcontext(),
                ):
                    result = module(*given, **given_kwargs)
                    leaves = pytree.tree_leaves(opened(result))
                    run.outputs = {
                        o.target: _as_output(o, leaf) for o, leaf in zip(outputs, leaves, strict=True)
                    }
                    if graph.training:
                        torch.autograd.backward([run.outputs[name].sum() for name in losses])
                draws.require_all_made()
                loss += sum(float(run.outputs[name].detach().sum()) for name in losses)
            if not graph.training:
                break
            run.losses.append(loss)
            if step == 0:
                tensors = {**_named(graph, given, given_kwargs), **trained}
                run.gradients = {name: _gradient(tensors[name]) for name in graph.gradients}
            if stepper is not None:
                stepper.step()
                stepper.zero_grad()
        state = (*module.named_parameters(), *module.named_buffers())
        run.state = {name: tensor.detach() for name, tensor in state}
    return run


@contextmanager
def _own_state(module: nn.Module, wide: bool) -> Iterator[None]:
    """Within, the module's parameters and buffers are copies; tied ones stay tied. Afterwards it is as it was."""
    own: dict[int, Tensor] = {}

    def copy(tensor: Tensor | None) -> Tensor | None:
        if tensor is None:
            return None
        if id(tensor) not in own:
            value = widened(tensor.detach().clone(), wide)
            is_parameter = isinstance(tensor, nn.Parameter)
            own[id(tensor)] = nn.Parameter(value, tensor.requires_grad) if is_parameter else value
        return own[id(tensor)]

    with unchanged(module):
        for child in module.modules():
            for held in (child._parameters, child._buffers):
                held.update({name: copy(tensor) for name, tensor in held.items()})
        yield


@contextmanager
def _as_captured(module: nn.Module, graph: Graph) -> Iterator[None]:
    """Within, the module runs as it was captured: its mode, gradients, autocast, and attention with visible dropout."""
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.enter_context(_mode(module, graph.training))
        stack.enter_context(torch.set_grad_enabled(graph.training))
        if all(parameter.is_cpu for parameter in module.parameters()):
            stack.enter_context(autocast_on_cpu())
        stack.enter_context(autocast_to(graph.autocast))
        stack.enter_context(branches_as_taken())
        if graph.live is not None and graph.live.branches is not None:
            stack.enter_context(graph.live.branches.computed(module))
        if any(draws_inside(graph, node) for node in graph.nodes):
            stack.enter_context(
                sdpa_kernel(SDPBackend.MATH)
            )  # a fused kernel generates its dropout mask internally
        yield


class _Wide(TorchDispatchMode):
    """Within, everything is computed in double precision, whatever dtypes the program uses."""

    def __torch_dispatch__(
        self, op: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        written = any(argument.is_write for argument in op._schema.arguments)

        def wider(leaf: Any) -> Any:
            if isinstance(leaf, torch.dtype):
                return wide_dtype(leaf)
            return widened(leaf) if isinstance(leaf, Tensor) and not written else leaf

        args, kwargs = pytree.tree_map(wider, (args, kwargs or {}))
        return op(*args, **kwargs)


def run_graph(plan: Plan, given: Mapping[str, Any], seed: int, wide: bool) -> dict[Ref, Any]:
    """Every tensor of the captured graph run on whole tensors, with the plan's random numbers."""
    graph, lowering = plan.graph, Lowering(plan, wide)
    values: dict[Ref, Any] = {}
    for entry in graph.inputs:
        values[Ref(entry.name)] = widened(given[entry.name].detach(), wide)
    draws = torch.tensor(seed)
    with torch.no_grad():
        for node in graph.nodes:
            made = _whole(lowering, node, [values[ref] for ref in node.inputs], draws)
            for position, value in enumerate(made):
                values[Ref(node.name, position)] = value
    return values


def in_double(plan: Plan) -> Graph:
    """The graph with the dtypes that its tensors have when it runs in double precision: not all of them widen."""
    graph, lowering = plan.graph, Lowering(plan, wide=True)
    values: dict[Ref, Any] = {}
    with without_memory():
        for entry in graph.inputs:
            values[Ref(entry.name)] = torch.empty(entry.tensor.shape, dtype=wide_dtype(entry.tensor.dtype))
        for node in graph.nodes:
            made = lowering.call(node).with_tensors([values[ref] for ref in node.inputs])()
            for position, value in enumerate(made if isinstance(made, tuple | list) else (made,)):
                values[Ref(node.name, position)] = value

    def info(ref: Ref, given: TensorInfo | None) -> Any:
        return None if given is None else replace(given, dtype=values[ref].dtype)

    return replace(
        graph,
        inputs=tuple(replace(e, tensor=info(Ref(e.name), e.tensor)) for e in graph.inputs),
        nodes=tuple(
            replace(n, outputs=tuple(info(Ref(n.name, i), given) for i, given in enumerate(n.outputs)))
            for n in graph.nodes
        ),
    )


def _whole(lowering: Lowering, node: Node, tensors: Sequence[Tensor], seed: Tensor) -> tuple[Any, ...]:
    call = lowering.call(node).with_tensors(lowering.stored(node, tensors))
    if node.facts.random:
        info = node.outputs[0]
        assert info is not None
        runs = [[(0, size)] if size else [] for size in info.shape]
        made = draw(call, seed, node.stream, info.shape, runs)
    else:
        made = call()
    return tuple(made) if isinstance(made, tuple | list) else (made,)


def _as_output(output: Output, value: Any) -> Any:
    """A result of the model as its graph has it, where a number that it takes from a tensor is a tensor, and has no
    digits in a text."""
    if isinstance(value, int | float) and output.value is not None:
        return torch.tensor(value)
    return output.constant if isinstance(value, str) else value


def _leaf(value: Any, wide: bool) -> Any:
    if isinstance(value, Tensor):
        return widened(value.detach().clone(), wide).requires_grad_(value.requires_grad)
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
