"""What backward computes again instead of keeping it: views, and in compiled programs what torch.compile recomputes.

Compiled programs keep as little as a cut through the cheap calls of forward has to: torch's own partitioner says which
calls backward then begins with. They are in the graph twice, so that what is planned is what is run.
"""

from collections.abc import Callable

import torch
from torch import fx
from torch._functorch._aot_autograd import descriptors as desc

from ..calls import facts
from ._boxed import copy_of


def is_backward(node: fx.Node) -> bool:
    return node.meta.get("partitioner_tag") == "is_backward"


def run_again_in_backward(graph: fx.Graph, chosen: Callable[[fx.Node], bool]) -> None:
    """Run the chosen calls of forward that backward uses there again, each before its first use."""
    for node in reversed(list(graph.nodes)):
        later = [user for user in node.users if is_backward(user)]
        if not later or is_backward(node) or not chosen(node):
            continue
        with graph.inserting_before(min(later)):
            again = graph.node_copy(node)
        again.meta = {**node.meta, "partitioner_tag": "is_backward"}
        for user in later:
            user.replace_input_with(node, again)


def recompute_as_compiled(joint: fx.GraphModule, compiled: Callable[[fx.Node], bool]) -> None:
    """Let backward compute again what torch.compile would of the calls that are compiled; random numbers are kept."""
    names = _recomputed(joint)
    run_again_in_backward(
        joint.graph, lambda node: node.name in names and compiled(node) and not is_random(node)
    )
    joint.recompile()


def _recomputed(joint: fx.GraphModule) -> set[str]:
    """The names of the calls of forward that torch's partitioner puts into backward."""
    # Imports torch's whole compiler, which takes a second that `import shardwise` should not take.
    from torch._functorch import config
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    own = fx.GraphModule(joint, copy_of(joint.graph))
    given = [node.meta.get("val") for node in joint.graph.find_nodes(op="placeholder")]
    returned = joint.graph.output_node().meta["desc"]
    of_forward = sum(isinstance(kind, desc.PlainAOTOutput | desc.InputMutationAOTOutput) for kind in returned)
    with config.patch(cse=False):
        _, backward = min_cut_rematerialization_partition(own, given, num_fwd_outputs=of_forward)
    forward = {
        node.name for node in joint.graph.nodes if node.op == "call_function" and not is_backward(node)
    }
    return {node.name for node in backward.graph.nodes if node.op == "call_function"} & forward


def is_random(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and facts(node.target).random
