"""`capture`: a module or function with example arguments becomes one graph, forward alone or with its backward.

Two of torch's tracers in a row: `torch.export` runs the Python program once on fake tensors and leaves a graph of
its calls; AOTAutograd turns that graph into the joint graph of forward and backward below autograd. Between the
two, what only the first graph still shows is handled: attention as one call, tied weights, which output is the loss.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from types import NoneType
from typing import Any, get_args

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export._tree_utils import reorder_kwargs
from torch.utils import _pytree as pytree

from ..calls import parameters
from ..errors import UsageError, require
from ._attention import fused_attention
from ._autograd import Kept, Undecided, refuse_hooks
from ._blocks import in_block
from ._boundaries import mark_boundaries
from ._branches import Branches, both_branches
from ._callable import as_module, call_arguments, name_of
from ._checks import without_error_checks
from ._cross_entropy import chunk_losses, torch_may_chunk
from ._device import active_autocast, autocast_to, on_any_device, quiet
from ._eager import IsCompiling, as_if_eager
from ._exported import (
    flatten,
    keep_one_of_tied,
    losses_of,
    returns_numbers,
    start_backward_from,
    take_out_copies,
    take_out_unread,
)
from ._fake import fake_arguments, known_values, make_state_fake
from ._graph import Execution, Graph, Live
from ._kept_state import noting_state
from ._linear import keep_layers
from ._loss import with_loss
from ._masks import simplify_attention
from ._mixtures import captured_experts, chooses_experts
from ._norms import fuse_norms
from ._policy import decompositions
from ._read import correct_dtypes, name_inputs, random_calls, read_inputs, read_nodes, read_outputs, tidy
from ._recompute import recompute_as_compiled
from ._recompute_blocks import Policies, policies_of, recompute_blocks
from ._recurrent import separate_layers
from ._refusal import NUMBER, frames_of, is_final, reads_values, refusal, value_read_at
from ._results import opened_results
from ._unchanged import unchanged
from ._values import undecided, values_read
from ._versions import matrix_checks_without_effect, met_a_number
from ._whole import wholes


def capture(
    model: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    training: bool = True,
    loss: str | Sequence[str] | None = None,
    loss_fn: Callable[..., Any] | None = None,
    execution: Execution = "eager",
    recompute: str | Mapping[str, str] = "none",
    boundaries: bool = False,
    split_products: bool = False,
) -> Graph:
    """The graph of `model(*args, **kwargs)`, with its backward if `training`.

    No memory is allocated for weights or arguments: they may be real, fake or on the meta device, and are left
    unchanged. With `training` the model is captured in its current mode (`model.train()`, `model.eval()`), without it
    in eval mode. `loss` names the outputs that backward starts from: by default the output called `loss`, else every
    scalar output, else all of them. `loss_fn` is a function of the model's result where the loss is computed outside
    of the model: the graph is that of both, and keyword arguments that `loss_fn` has parameters for go to it:
    `capture(model, (x,), {"target": labels}, loss_fn=torch.nn.functional.cross_entropy)`. Casts by an autocast that is
    active are part of the graph. `execution` is how the program is going to run, which decides what it costs: `eager`,
    `compiled` by torch.compile, which fuses calls into kernels, or `regional`: each block (`layers.3`) is compiled by
    itself, and the rest eager. `recompute` says what backward computes again instead of keeping it: `full`
    blocks, `selective` ones (all but attention and every second product), or either by pattern:
    `{"layers.[0-9]": "full"}`; `auto` leaves it to a plan. It is for eager programs: torch.compile decides that itself.
    With `boundaries` the graph is marked where it may be cut into stages. With `split_products` linear layers are calls
    of their own, whose products a plan may split against the collectives beside them.
    """
    name, module = name_of(model), as_module(with_loss(model, loss_fn))
    given = call_arguments(args, kwargs)
    require(loss, (str, list, tuple, NoneType), "loss", "the name of an output, or a list of them")
    if execution not in get_args(Execution):
        raise UsageError(f"execution is {execution!r}: use 'eager', 'compiled' or 'regional'")
    if training:
        refuse_hooks(name, module)
    policies = policies_of(recompute)
    if policies and execution != "eager":
        raise UsageError(
            f"recompute cannot be combined with execution={execution!r}: torch.compile decides itself what backward "
            "computes again"
        )
    capturing = partial(
        _captured, name, module, given, training, loss, execution, policies, boundaries, split_products
    )
    if not chooses_experts(module):
        return _with_values_or_without(capturing)
    with captured_experts(module) as note:
        graph = _with_values_or_without(capturing)
    return replace(graph, notes=(*graph.notes, note))


# Where a value is read, and the functions that called that one.
_NEAR = 2
# Functions of a program that are rewritten at most, one capture each.
_MOST_REWRITTEN = 20


def _with_values_or_without(capturing: Callable[..., Graph]) -> Graph:
    """Captured without values, or where a program reads some, with those that are known, and both branches of those
    that are not."""
    try:
        return capturing()
    except UsageError as error:
        first = error
    if reads_values(first.__cause__):
        branches = Branches()
        for _ in range(_MOST_REWRITTEN):
            try:
                return capturing(branches=branches)
            except UsageError as error:
                last = error
            if not any(branches.rewrite(*frame) for frame in list(frames_of(last.__cause__))[:_NEAR]):
                break
        if is_final(last.__cause__):
            raise last
    raise first  # what was refused at first is what the program does


def _captured(
    name: str,
    module: nn.Module,
    given: Any,
    training: bool,
    loss: str | Sequence[str] | None,
    execution: Execution,
    policies: Policies,
    boundaries: bool,
    split_products: bool,
    branches: Branches | None = None,
) -> Graph:
    # Imports torch's whole compiler, which takes a second that `import shardwise` should not take.
    from torch._functorch.aot_autograd import aot_export_joint_with_descriptors

    ties, autocast = _ties(module), active_autocast()
    compiled = in_block if execution == "regional" else lambda _: execution == "compiled"
    with unchanged(module), torch.set_grad_enabled(training), on_any_device(), autocast_to(autocast):
        try:
            exported, kept, (fake_args, fake_kwargs), notes = _exported(module, given, training, branches)
        except UsageError:
            raise
        except Exception as error:
            raise refusal(name, error) from error
        if training:
            _refuse_hidden_parameters(name, exported)
        in_spec, out_spec = exported.call_spec.in_spec, exported.call_spec.out_spec
        called = exported.module(check_guards=False)
        kept.put_back(called)
        outputs = _leaf_names(out_spec)
        keep_one_of_tied(called, ties)
        changed = take_out_copies(called)
        simplify_attention(called, fused_attention)
        separate_layers(called)
        fuse_norms(called, lambda node: not compiled(node))
        chunk_losses(called)
        if split_products:
            keep_layers(called)
        if boundaries:
            mark_boundaries(called, losses_of(called, outputs, loss))
        if training:
            start_backward_from(called, outputs, loss)
        names, arguments = _arguments(module, fake_args, reorder_kwargs(fake_kwargs, in_spec))
        flatten(called)
        try:
            with matrix_checks_without_effect(), ExitStack() as stack:
                joint = aot_export_joint_with_descriptors(
                    stack, called, tuple(arguments), decompositions=decompositions()
                ).graph_module
        except Exception as error:
            raise refusal(name, error, value_read_at(called)) from error
    _refuse_frozen_state(name, module, joint)
    random = random_calls(joint)
    tidy(joint)
    correct_dtypes(joint)
    if training and execution != "eager":
        recompute_as_compiled(joint, compiled)
    left = set(joint.graph.nodes)
    draws = tuple(node.name if node in left else None for node in random)
    trainable = {
        key
        for key, value in (*_state(module), *zip(names, arguments, strict=True))
        if training and getattr(value, "requires_grad", False)
    }
    try:
        name_inputs(joint, names, outputs)
        graph = Graph(
            name,
            training,
            read_inputs(joint, names, outputs, ties, trainable),
            read_nodes(joint),
            read_outputs(joint, names, outputs, changed),
            execution,
            Live(joint, in_spec, out_spec, draws, wholes(joint.graph), branches),
            tuple(notes),
            policies if training else (),
            autocast,
        )
    except UsageError as error:
        raise UsageError(f"{name} cannot be captured: it {error}") from error
    if training and not any(graph.gradients.values()):
        raise UsageError(
            f"{name} has nothing to train: no parameter or argument that requires a gradient reaches "
            f"{', '.join(outputs)}; capture it with training=False, or --inference on the command line"
        )
    return recompute_blocks(graph) if graph.recompute else graph


def _exported(
    module: nn.Module, given: Any, training: bool, branches: Branches | None
) -> tuple[torch.export.ExportedProgram, Kept, Any, list[str]]:
    """The program as torch exports it, its autograd customisations, the fake arguments that it was traced with, and
    what is not in the graph. With `branches` it may read values that follow from itself alone, which takes longer, and
    branch on others where it was rewritten for that."""
    is_compiling = IsCompiling()
    try:
        with quiet():
            return _export(module, given, training, branches, as_if_eager(module, is_compiling))
    except Exception as error:
        first = error
    if is_compiling.evaluated:
        return _export(module, given, training, branches, nullcontext())
    raise first


def _export(
    module: nn.Module,
    given: Any,
    training: bool,
    branches: Branches | None,
    around: AbstractContextManager[None],
) -> tuple[torch.export.ExportedProgram, Kept, Any, list[str]]:
    mode, notes = FakeTensorMode(allow_non_fake_inputs=True), list[str]()
    kept = Kept(notes)
    args, kwargs = fake_arguments(mode, given, training)
    with (
        unchanged(module),
        opened_results(module),
        undecided() if branches else nullcontext(),
        kept.recorded(),
        noting_state(module, notes),
        without_error_checks(notes),
        both_branches(notes),
        known_values(),
        torch_may_chunk(),
        values_read(module, branches, notes) if branches else nullcontext(),
        around,
    ):
        make_state_fake(mode, module, training)
        try:
            exported = torch.export.export(module, args, kwargs, strict=False)
        except AssertionError as error:
            if met_a_number(error):
                raise Undecided(NUMBER) from error
            raise
    if returns_numbers(exported):
        raise Undecided(NUMBER)
    return exported, kept, (args, kwargs), notes


def _refuse_hidden_parameters(name: str, exported: torch.export.ExportedProgram) -> None:
    lifted = exported.graph_signature.inputs_to_lifted_tensor_constants
    for node in exported.graph.find_nodes(op="placeholder"):
        constant = exported.constants.get(lifted.get(node.name, ""))
        if not (isinstance(constant, torch.Tensor) and constant.requires_grad):
            continue
        take_out_unread(node)
        if node.users:
            raise UsageError(
                f"{name} uses a tensor of shape {list(constant.shape)} that requires a gradient and is neither an "
                "argument nor a registered parameter: give it as an argument or register it"
            )
        exported.constants[lifted[node.name]] = constant.detach()


def _refuse_frozen_state(name: str, module: nn.Module, joint: torch.fx.GraphModule) -> None:
    """Raise if the backward of a custom function reads the model's weights directly: they would become constants."""
    state = {id(tensor): target for target, tensor in _state(module)}
    for node in joint.graph.find_nodes(op="get_attr"):
        target = state.get(id(getattr(joint, node.target)))
        if target is not None:
            raise UsageError(
                f"{name} cannot be captured: the backward of a custom function uses {target!r}, which is not "
                "among its arguments; save it for backward"
            )


def _ties(module: nn.Module) -> dict[str, str]:
    """For each further name of a tied parameter or buffer, the first name."""
    first: dict[int, str] = {}
    return {
        name: first[id(tensor)]
        for name, tensor in _state(module)
        if first.setdefault(id(tensor), name) != name
    }


def _state(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Every parameter and buffer under every one of its names."""
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


def _arguments(module: nn.Module, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[list[str], list[Any]]:
    """Names and values of the tensors and numbers among the arguments: `x`, `batch.labels`, `args.0`."""
    takes = parameters(module.forward)
    positional = list(takes.positional)
    positional += [f"{takes.more or 'args'}.{i}" for i in range(len(args) - len(positional))]
    given = [*zip(positional, args, strict=False), *kwargs.items()]
    leaves = [leaf for name, value in given for leaf in _named_leaves(value, name)]
    taken = dict(_state(module))
    return [f"args.{name}" if name in taken else name for name, _ in leaves], [leaf for _, leaf in leaves]


def _leaf_names(spec: pytree.TreeSpec) -> list[str]:
    """Names of the leaves of a result: `loss`, `hidden.0`, `output` for a single tensor."""
    tree = pytree.tree_unflatten(list(range(spec.num_leaves)), spec)
    return [name or "output" for name, _ in _named_leaves(tree)]


def _named_leaves(tree: Any, *prefix: str) -> list[tuple[str, Any]]:
    """The leaves of nested containers, each with the path that leads there, as text."""
    try:
        return [(_dotted(path, *prefix), leaf) for path, leaf in pytree.tree_flatten_with_path(tree)[0]]
    except ValueError:  # a class that is registered with torch without the names of its parts
        parts = tree.items() if isinstance(tree, Mapping) else enumerate(pytree.tree_leaves(tree))
        return [leaf for key, part in parts for leaf in _named_leaves(part, *prefix, str(key))]


def _dotted(path: Sequence[Any], *prefix: str) -> str:
    """A path through nested containers, as text."""
    fields = ("key", "idx", "name")
    keys = [next(getattr(key, field) for field in fields if hasattr(key, field)) for key in path]
    return ".".join(map(str, (*prefix, *keys)))
