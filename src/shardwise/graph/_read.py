"""From torch's joint graph to a `Graph`: roles from descriptors, costs from shapes, module paths from metadata."""

import operator
from collections.abc import Mapping, Sequence, Set
from typing import Any

import torch
from torch import Tensor, fx
from torch._functorch._aot_autograd import descriptors as desc

from ..calls import Call, facts
from ..errors import UsageError
from ._blocks import module_path
from ._flops import cost
from ._graph import Input, InputRole, Node, Output, Phase, Ref, TensorInfo
from ._recompute import is_backward, run_again_in_backward
from ._refusal import source_line
from ._whole import part_of


def tidy(module: fx.GraphModule) -> None:
    """Remove no-ops, always or with these shapes, duplicate views, and unused calls; let the
    backward make its own views."""
    views: dict[Any, fx.Node] = {}
    for node in list(module.graph.nodes):
        if node.op != "call_function":
            continue
        if _is_check(node.target):
            module.graph.erase_node(node)
            continue
        same = _same_as(node)
        if same is None and facts(node.target).view:
            key = (node.target, _hashable(node.args), _hashable(node.kwargs))
            same = views.setdefault(key, node)
        if same is not None and same is not node:
            node.replace_all_uses_with(same)
            module.graph.erase_node(node)
    run_again_in_backward(module.graph, _is_single_view)
    # A functional graph has no side effects: a call whose results are not used can be removed.
    module.graph.eliminate_dead_code(is_impure_node=lambda node: node.op in ("placeholder", "output"))
    module.recompile()


def correct_dtypes(module: fx.GraphModule) -> None:
    """Give results the dtypes that kernels give them, where fake tensors had others, and what follows from them."""
    changed: set[fx.Node] = set()
    for node in module.graph.nodes:
        if node.op != "call_function":
            continue
        value = node.meta.get("val")
        if not changed.isdisjoint(node.all_input_nodes):
            args, kwargs = fx.map_arg((node.args, node.kwargs), lambda given: given.meta["val"])
            value = node.target(*args, **kwargs)
        dtypes = facts(node.target).dtypes if _is_call(node) else None
        if dtypes is not None:
            call = Call(node.target, _arguments(node.args, _info_of), _arguments(node.kwargs, _info_of))
            made = [value] if isinstance(value, Tensor) else list(value)
            for place, dtype in dtypes(**call.arguments).items():
                if made[place] is not None:
                    made[place] = torch.empty_like(made[place], dtype=dtype)
            value = made[0] if isinstance(value, Tensor) else tuple(made)
        if _dtypes(value) != _dtypes(node.meta.get("val")):
            node.meta["val"] = value
            changed.add(node)


def _dtypes(value: Any) -> list[Any]:
    return [getattr(leaf, "dtype", None) for leaf in (value if isinstance(value, tuple | list) else (value,))]


def _is_check(op: Any) -> bool:
    """Checks of the values or metadata that were traced hold by construction, and return nothing."""
    return isinstance(op, torch._ops.OpOverload) and not op._schema.returns


def _is_single_view(node: fx.Node) -> bool:
    """Views cost nothing; what is kept between forward and backward is then the tensor itself, in whatever layout it
    has: a weight gathered for its transpose need not stay gathered."""
    return _is_call(node) and isinstance(node.meta.get("val"), Tensor) and facts(node.target).view


def _same_as(node: fx.Node) -> fx.Node | None:
    """The earlier node that always has the same value, if there is one."""
    known = facts(node.target)
    if known.identity:
        return node.args[0]
    if known.involution and node.args[0].target == node.target:
        return node.args[0].args[0]
    if known.shape_only and _info_of(node) == _info_of(node.args[0]):
        return node.args[0]
    return None


def _hashable(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return tuple(map(_hashable, value))
    if isinstance(value, dict):
        return tuple((key, _hashable(item)) for key, item in value.items())
    return value if isinstance(value, fx.Node) else (type(value), value)


def random_calls(module: fx.GraphModule) -> list[fx.Node]:
    """The random calls, in the order in which the program makes them."""
    return [node for node in module.graph.nodes if _draws(node)]


def _draws(node: fx.Node) -> bool:
    if not isinstance(node.target, torch._ops.OpOverload) or not facts(node.target).random:
        return False
    # With dropout rate 1 the program itself uses no random numbers.
    return not (facts(node.target).draws == "dropout" and node.args[1] == 1)


def name_inputs(module: fx.GraphModule, names: Sequence[str], outputs: Sequence[str]) -> None:
    """Call the placeholders what they stand for, `up_weight` or `gradient_of_loss`, where torch numbers them."""
    for node in module.graph.find_nodes(op="placeholder"):
        if isinstance(node.meta.get("val"), Tensor):
            role, target = _role(node, names, outputs)
            node._rename(f"gradient_of_{target}" if role == "tangent" else target)
    module.recompile()


def _role(node: fx.Node, names: Sequence[str], outputs: Sequence[str]) -> tuple[InputRole, str]:
    """What a placeholder stands for, and the name of that."""
    match node.meta["desc"]:
        case desc.ParamAOTInput(target=target):
            return "parameter", target
        case desc.BufferAOTInput(target=target):
            return "buffer", target
        case desc.PlainAOTInput(idx=idx):
            return "user_input", names[idx]
        case desc.TangentAOTInput(output=desc.PlainAOTOutput(idx=idx)):
            return "tangent", outputs[idx]
        case desc.TangentAOTInput(output=desc.InputMutationAOTOutput(mutated_input=base)):
            return "tangent", _name(base, names)
        case other:
            raise UsageError(
                f"has an input of kind {type(other).__name__} ({other.expr()}), which has no role"
            )


def read_inputs(
    module: fx.GraphModule,
    names: Sequence[str],
    outputs: Sequence[str],
    ties: Mapping[str, str],
    trainable: Set[str],
) -> tuple[Input, ...]:
    """`names` are the user's inputs, `outputs` the user's outputs, `ties` maps other names to the one kept."""
    found = []
    for node in module.graph.nodes:
        if node.op == "get_attr" and isinstance(constant := getattr(module, node.target), Tensor):
            found.append(Input(node.name, "constant", node.target, info(constant)))
        if node.op != "placeholder" or not isinstance(node.meta.get("val"), Tensor):
            continue
        role, target = _role(node, names, outputs)
        aliases = tuple(other for other, kept in ties.items() if kept == target)
        trains = role != "tangent" and target in trainable
        found.append(Input(node.name, role, target, info(node.meta["val"]), aliases, trains))
    return tuple(found)


def argument_places(module: fx.GraphModule) -> tuple[tuple[str, int], ...]:
    """The placeholders that stand for the user's arguments, each with its place among their leaves."""
    found = []
    for node in module.graph.find_nodes(op="placeholder"):
        match node.meta["desc"]:
            case desc.PlainAOTInput(idx=idx):
                found.append((node.name, idx))
    return tuple(found)


def read_outputs(
    module: fx.GraphModule, names: Sequence[str], outputs: Sequence[str], changed: Sequence[str]
) -> tuple[Output, ...]:
    """Besides the user's outputs, the program returns the new values of the buffers named in `changed`."""
    node = module.graph.output_node()
    found = []
    for value, given in zip(node.args[0], node.meta["desc"], strict=True):
        ref = _ref(value) if isinstance(value, fx.Node) else None
        match given:
            case None:  # instead of a gradient, for an input that has none
                continue
            case desc.PlainAOTOutput(idx=idx) if idx >= len(outputs):
                found.append(Output("mutation", changed[idx - len(outputs)], ref))
            case desc.PlainAOTOutput(idx=idx):
                found.append(Output("user_output", outputs[idx], ref, None if ref else value))
            case desc.GradAOTOutput(grad_of=base):
                found.append(Output("gradient", _name(base, names), ref))
            case desc.InputMutationAOTOutput(mutated_input=base):
                found.append(Output("mutation", _name(base, names), ref))
            case _:
                raise UsageError(
                    f"has an output of kind {type(given).__name__} ({given.expr()}), which has no role"
                )
    return tuple(found)


def read_nodes(module: fx.GraphModule) -> tuple[Node, ...]:
    paths, numbers = _module_paths(module.graph), _autograd_numbers(module.graph)
    return tuple(_node(node, paths[node], numbers.get(node)) for node in module.graph.nodes if _is_call(node))


def _autograd_numbers(graph: fx.Graph) -> dict[fx.Node, int]:
    """The calls of backward, numbered by the nodes of autograd's graph that make them, one after another.

    Where gradients of several users are added, torch records the number of some node that ran before.
    """
    numbers: dict[fx.Node, int] = {}
    last, count = None, -1
    for node in graph.nodes:
        if _is_call(node) and is_backward(node) and not facts(node.target).view:
            count += last is None or node.meta.get("seq_nr") != last
            last = node.meta.get("seq_nr")
            numbers[node] = count
    return numbers


def _module_paths(graph: fx.Graph) -> dict[fx.Node, str]:
    """The module that each node belongs to, "" for the model itself.

    Where the gradients of several users of a value are added, autograd records none: the sum belongs to the module
    that computed the value.
    """
    paths: dict[fx.Node, str] = {}
    for node in reversed(graph.nodes):
        paths[node] = module_path(node)
        if not paths[node] and is_backward(node):
            paths[node] = next((paths[user] for user in node.users if user.op != "output"), "")
    return paths


def info(tensor: Tensor, source: str = "") -> TensorInfo:
    if tensor.layout != torch.strided:
        kind, where = str(tensor.layout).removeprefix("torch."), f" at {source}" if source else ""
        raise UsageError(f"computes with a {kind} tensor{where}; use a dense one")
    if any(not isinstance(size, int) for size in tensor.shape):
        raise UsageError(
            f"computes a tensor whose shape depends on tensor values{f' at {source}' if source else ''}"
        )
    shape = tuple(tensor.shape)
    return TensorInfo(shape, tensor.dtype, None if tensor.is_contiguous() else tuple(tensor.stride()))


def _is_call(node: fx.Node) -> bool:
    return node.op == "call_function" and node.target is not operator.getitem


def _node(node: fx.Node, path: str, autograd: int | None) -> Node:
    source = source_line(node.meta.get("stack_trace"))
    op = node.target
    if not isinstance(op, torch._ops.OpOverload):
        called = getattr(op, "__name__", str(op))
        raise UsageError(
            f"calls {called}{f' at {source}' if source else ''}, which is not an operator on tensors"
        )
    value = node.meta["val"]
    made = value if isinstance(value, tuple | list) else (value,)
    outputs = tuple(info(tensor, source) if isinstance(tensor, Tensor) else None for tensor in made)
    call = Call(op, _arguments(node.args, _info_of), _arguments(node.kwargs, _info_of))
    flops, moved = cost(call, outputs)
    phase: Phase = "backward" if is_backward(node) else "forward"
    args, kwargs = _arguments(node.args, _ref), {n: _arguments(node.kwargs[n], _ref) for n in call.kwargs}
    return Node(
        node.name, str(op), args, kwargs, outputs, path, phase, source, flops, moved, part_of(node), autograd
    )


def _ref(node: fx.Node) -> Ref:
    if node.op == "call_function" and node.target is operator.getitem:
        return Ref(node.args[0].name, node.args[1])
    return Ref(node.name)


def _info_of(node: fx.Node) -> TensorInfo | None:
    value = node.meta["val"]
    return info(value) if isinstance(value, Tensor) else None


def _arguments(value: Any, replace: Any) -> Any:
    if isinstance(value, fx.Node):
        return replace(value)
    if isinstance(value, tuple | list):
        return tuple(_arguments(item, replace) for item in value)
    if isinstance(value, dict):
        return {key: _arguments(item, replace) for key, item in value.items()}
    return value


def _name(given: Any, names: Sequence[str]) -> str:
    match given:
        case desc.ParamAOTInput(target=target) | desc.BufferAOTInput(target=target):
            return target
        case desc.PlainAOTInput(idx=idx):
            return names[idx]
    raise UsageError(f"has an input of kind {type(given).__name__} ({given.expr()}), which has no role")
