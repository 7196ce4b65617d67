"""Between the two tracers: the exported graph is made into one that AOTAutograd differentiates as the user would.

It has one parameter where weights are tied, new values of buffers as results instead of copies into them, and
backward only from the loss.
"""

import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from ..calls import facts
from ..errors import UsageError

aten = torch.ops.aten


def keep_one_of_tied(module: fx.GraphModule, ties: Mapping[str, str]) -> None:
    """Replace every use of a tied tensor by the one name that is kept."""
    for node in module.graph.find_nodes(op="get_attr"):
        node.target = ties.get(node.target, node.target)
    for other in ties:
        parent, _, name = other.rpartition(".")
        owner = module.get_submodule(parent)
        owner._parameters.pop(name, None)
        owner._buffers.pop(name, None)
    module.recompile()


def take_out_unread(node: fx.Node) -> None:
    """Remove the calls of operators that a node leads to whose results nothing reads. `vmap` leaves some behind, with
    tensors of its own."""
    for user in list(node.users):
        take_out_unread(user)
        op = user.target
        plain = isinstance(op, torch._ops.OpOverload) and op.namespace == "aten" and not op._schema.is_mutable
        if plain and not user.users:
            user.graph.erase_node(user)


def take_out_copies(module: fx.GraphModule) -> list[str]:
    """Turn copies into buffers, which export puts at the end, into further results; returns the buffers' names.

    A copy would change a tensor that backward needs. Where the new value was made in place the copy does nothing.
    """
    changed, values = [], []
    for node in module.graph.find_nodes(op="call_function", target=aten.copy_.default):
        buffer, value = node.args
        if buffer.op != "get_attr" or node.users:
            continue
        if _changed_in_place(value) is not buffer:
            changed.append(str(buffer.target))
            values.append(value)
        module.graph.erase_node(node)
    output = module.graph.output_node()
    with module.graph.inserting_before(output):
        values = [module.graph.call_function(aten.detach.default, (value,)) for value in values]
    output.args = ((*output.args[0], *values),)
    module.recompile()
    return changed


def _changed_in_place(node: fx.Node) -> fx.Node:
    """The node that was written to, if this is the result of in-place operators on it."""
    while isinstance(node.target, torch._ops.OpOverload):
        first = node.target._schema.arguments[:1]
        if not (first and first[0].is_write):
            break
        node = node.args[0]
    return node


def start_backward_from(
    module: fx.GraphModule, names: Sequence[str], loss: str | Sequence[str] | None
) -> None:
    """Detach the outputs that backward does not start from, so that they need no tangent.

    Each of the others gets a tangent of its own: outputs that share memory are copied, else
    AOTAutograd would differentiate one of them and derive the others from it outside the graph.
    """
    node = module.graph.output_node()
    values = dict(zip(names, node.args[0], strict=False))
    chosen = _chosen(values, loss)
    bases = Counter(_base(value) for name, value in values.items() if name in chosen)
    with module.graph.inserting_before(node):
        for name, value in values.items():
            if not isinstance(value, fx.Node):
                continue
            if name not in chosen:
                values[name] = module.graph.call_function(aten.detach.default, (value,))
            elif bases[_base(value)] > 1 or _base(value).op != "call_function":
                values[name] = module.graph.call_function(aten.clone.default, (value,))
    node.args = ((*values.values(), *node.args[0][len(values) :]),)
    module.recompile()


def losses_of(
    module: fx.GraphModule, names: Sequence[str], loss: str | Sequence[str] | None
) -> list[fx.Node]:
    """The results that backward starts from."""
    values = dict(zip(names, module.graph.output_node().args[0], strict=False))
    return [values[name] for name in _chosen(values, loss) if isinstance(values[name], fx.Node)]


def _chosen(values: Mapping[str, Any], loss: str | Sequence[str] | None) -> list[str]:
    if loss is None:
        numbers = [name for name, value in values.items() if _is_number(value)]
        return ["loss"] if "loss" in numbers else numbers or list(values)
    chosen = [loss] if isinstance(loss, str) else list(loss)
    for name in chosen:
        if name not in values:
            raise UsageError(
                f"there is no output {name!r} to start backward from: use one of {', '.join(values)}"
            )
    return chosen


def _base(value: Any) -> Any:
    """What an output is a view of, or itself."""
    while isinstance(value, fx.Node):
        maker = value.args[0] if value.target is operator.getitem else value
        if not facts(maker.target).view:
            break
        value = maker.args[0]
    return value


def flatten(module: fx.GraphModule) -> None:
    """Make the module take and return flat lists: results may be of classes that only the first tracer knows."""
    module._forward_pre_hooks.clear()
    module.graph.set_codegen(fx.graph.CodeGen())
    module.recompile()


def returns_numbers(exported: torch.export.ExportedProgram) -> bool:
    """Whether among the results are numbers that were taken from tensors."""
    results: list[fx.Node] = []
    fx.map_arg(exported.graph.output_node().args, results.append)
    return any(
        isinstance(node.meta.get("val"), torch.SymInt | torch.SymFloat | torch.SymBool) for node in results
    )


def _is_number(value: Any) -> bool:
    tensor = value.meta.get("val") if isinstance(value, fx.Node) else None
    return isinstance(tensor, torch.Tensor) and tensor.dim() == 0 and tensor.is_floating_point()
