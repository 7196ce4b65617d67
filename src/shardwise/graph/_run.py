"""Running a captured graph as it stands, on real tensors: the check that capture kept the program's meaning."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

import torch
from torch import Tensor
from torch._functorch._aot_autograd import descriptors as desc
from torch.export._tree_utils import reorder_kwargs
from torch.utils import _pytree as pytree

from ..errors import UsageError
from ._callable import as_module
from ._graph import Graph, Input, TensorInfo


@dataclass(frozen=True)
class Ran:
    """What a run gave: the user's outputs by name, gradients by parameter or input, new values of what changed."""

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
    """Run the graph with the model's weights. Tangents not given are ones. The model itself is not changed."""
    if graph.live is None:
        raise UsageError(
            f"graph of {graph.name} was loaded from JSON and cannot be run: capture the model again"
        )
    module = as_module(model)
    state: dict[str, Tensor] = {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }
    flat = pytree.tree_leaves((tuple(args), reorder_kwargs(dict(kwargs or {}), graph.live.in_spec)))
    values = []
    for node in graph.live.module.graph.find_nodes(op="placeholder"):
        match node.meta["desc"]:
            case desc.ParamAOTInput(target=target) | desc.BufferAOTInput(target=target):
                values.append(state[target])
            case desc.PlainAOTInput(idx=idx):
                values.append(flat[idx])
            case desc.TangentAOTInput():
                tangent = graph[node.name]
                assert isinstance(tangent, Input)
                values.append(_laid_out((tangents or {}).get(tangent.target, 1.0), tangent.tensor))
    with torch.no_grad():
        results = torch.fx.Interpreter(graph.live.module).run(*values, enable_io_processing=False)
    ran = Ran({}, {}, {})
    places: dict[str, dict[str, Any]] = {
        "user_output": ran.outputs,
        "gradient": ran.gradients,
        "mutation": ran.mutations,
    }
    # Where an input has no gradient the joint graph gives None, without a role.
    roles = [d is not None for d in graph.live.module.graph.output_node().meta["desc"]]
    for output, value in zip(graph.outputs, compress(results, roles), strict=True):
        places[output.role][output.target] = value
    return ran


def _laid_out(value: Tensor | float, tensor: TensorInfo) -> Tensor:
    """The value with the strides that the graph was captured with: its views rely on them."""
    if tensor.stride is None:
        made = torch.empty(tensor.shape, dtype=tensor.dtype)
    else:
        made = torch.empty_strided(tensor.shape, tensor.stride, dtype=tensor.dtype)
    return made.copy_(torch.as_tensor(value))
