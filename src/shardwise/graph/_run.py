"""Running a captured graph unsharded, on real tensors: the check that it computes what the program computes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

import torch
from torch import Tensor
from torch.export._tree_utils import reorder_kwargs
from torch.utils import _pytree as pytree

from ..errors import UsageError
from ._callable import as_module, call_arguments
from ._graph import Graph, Live, TensorInfo


@dataclass(frozen=True)
class Ran:
    """The results of a run: the user's outputs by name, gradients by parameter or input, new values of mutated
    tensors."""

    outputs: dict[str, Any]
    gradients: dict[str, Tensor | None]
    mutations: dict[str, Tensor]


def run(
    graph: Graph,
    model: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    tangents: Mapping[str, Tensor] | None = None,
) -> Ran:
    """Run the graph with the model's weights. Missing tangents are ones. The model itself is not changed."""
    live, values = _live(graph), inputs_of(graph, model, args, kwargs, tangents)
    placeholders = live.module.graph.find_nodes(op="placeholder")
    with torch.no_grad():
        results = torch.fx.Interpreter(live.module).run(
            *(values[node.name] for node in placeholders), enable_io_processing=False
        )
    ran = Ran({}, {}, {})
    places: dict[str, dict[str, Any]] = {
        "user_output": ran.outputs,
        "gradient": ran.gradients,
        "mutation": ran.mutations,
    }
    # Where an input has no gradient the joint graph returns None, without a role.
    roles = [d is not None for d in live.module.graph.output_node().meta["desc"]]
    for output, value in zip(graph.outputs, compress(results, roles), strict=True):
        places[output.role][output.target] = value
    return ran


def inputs_of(
    graph: Graph,
    model: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    tangents: Mapping[str, Tensor] | None = None,
) -> dict[str, Any]:
    """The inputs of the graph by name: the model's state, the arguments, ones for tangents."""
    module = as_module(model)
    state: dict[str, Tensor] = {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }
    values = {**constants(graph), **arguments(graph, args, kwargs), **ones(graph, tangents)}
    for entry in graph.inputs:
        if entry.role in ("parameter", "buffer"):
            if entry.target not in state:
                raise UsageError(
                    f"the model has no {entry.role} {entry.target!r}: it is not the one captured"
                )
            values[entry.name] = state[entry.target]
    return values


def constants(graph: Graph) -> dict[str, Tensor]:
    """The tensors that the program holds without having registered them."""
    module = _live(graph).module
    return {entry.name: getattr(module, entry.target) for entry in graph.with_role("constant")}


def arguments(
    graph: Graph, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The user's arguments by the names of the graph's inputs. They must have the structure that was captured."""
    live = _live(graph)
    args, kwargs = call_arguments(args, kwargs)
    try:
        given = (args, reorder_kwargs(kwargs, live.in_spec))
    except ValueError as error:
        raise UsageError(f"{graph.name} is called with other arguments than captured: {error}") from None
    flat, spec = pytree.tree_flatten(given)
    if spec != live.in_spec:
        raise UsageError(
            f"{graph.name} is called with arguments of the form {_form(spec)}, "
            f"but was captured with {_form(live.in_spec)}"
        )
    return {name: flat[place] for name, place in live.arguments}


def ones(graph: Graph, tangents: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
    """Where backward starts: the given tangents by the outputs they belong to, ones for the others, and zeros for
    values that are written back, which have no incoming gradient."""
    given = {output.target: 1.0 for output in graph.outputs if output.role == "user_output"}
    given |= tangents or {}
    return {
        entry.name: _laid_out(given.get(entry.target, 0.0), entry.tensor)
        for entry in graph.with_role("tangent")
    }


def _form(spec: pytree.TreeSpec) -> str:
    """Arguments by their structure: `(*, [*, *])`, `{labels: *}`."""
    tree = pytree.tree_unflatten(["*"] * spec.num_leaves, spec)
    args, kwargs = tree
    named = [f"{name}={value}" for name, value in kwargs.items()]
    return f"({', '.join([*map(str, args), *named])})".replace("'*'", "*")


def _live(graph: Graph) -> Live:
    if graph.live is None:
        raise UsageError(
            f"graph of {graph.name} was loaded from JSON and cannot be run: capture the model again"
        )
    return graph.live


def _laid_out(value: Tensor | float, tensor: TensorInfo) -> Tensor:
    """The value with the strides that the graph was captured with: its views rely on them."""
    if tensor.stride is None:
        made = torch.empty(tensor.shape, dtype=tensor.dtype)
    else:
        made = torch.empty_strided(tensor.shape, tensor.stride, dtype=tensor.dtype)
    return made.copy_(torch.as_tensor(value))
